"""The Arrow schemas of the protocol."""

from __future__ import annotations

import pyarrow as pa

from fasti.core.fields import FIELDS, HEADERS

VERSION = 1

# In a request: the shard that it is for, where there are several.
SHARD_NUMBER = "shard_number"
# In a request: the answer may be out of date. In the answer, and in a read's schema: as of when it is.
STALE = "stale"
AS_OF = "as_of_us"
# What may be read so: actions, and calls that read streams.
STALE_ACTIONS = frozenset(("topic", "get", "count", "kv_get", "kv_describe"))
STALE_READS = frozenset(("list",))

# What a produce stream may have; only `payload` must be there.
PRODUCE_TYPES: dict[str, pa.DataType] = {
    "payload": pa.binary(),
    "due_us": pa.int64(),
    "delay_us": pa.int64(),
    "key": pa.string(),
    "headers": HEADERS,
    "content_type": pa.string(),
    "priority": pa.int32(),
    "subject": pa.string(),
    "expires_us": pa.int64(),
    "expires_after_us": pa.int64(),
}

# What a consumer writes.
RETURNED = pa.schema(
    [
        pa.field("id", pa.int64()),
        pa.field("token", pa.int64()),
        pa.field("started_us", pa.int64()),
        pa.field("due_us", pa.int64()),
    ]
)

_CONTENTS = [
    pa.field("created_us", pa.int64()),
    FIELDS["key"],
    FIELDS["headers"],
    FIELDS["content_type"],
    FIELDS["subject"],
    FIELDS["payload"].with_nullable(True),
]

# Pieces of files, as a backup reads them.
BACKUP_CHUNKS = pa.schema(
    [
        pa.field("name", pa.string()),
        pa.field("offset", pa.int64()),
        pa.field("data", pa.binary()),
    ]
)

# What a consumer reads.
LEASED = pa.schema(
    [
        pa.field("id", pa.int64()),
        pa.field("due_us", pa.int64()),
        pa.field("version", pa.int64()),
        pa.field("attempts", pa.int32()),
        pa.field("priority", pa.int32()),
        pa.field("last_reason", pa.string()),
        pa.field("expires_us", pa.int64()),
        *_CONTENTS,
    ]
)
CONTENT_NAMES = [field.name for field in _CONTENTS]

# What reads tell of a message without opening its payload, and with it.
METADATA = pa.schema(
    [
        pa.field("id", pa.int64()),
        pa.field("partition", pa.int32()),
        pa.field("state", pa.string()),
        pa.field("due_us", pa.int64()),
        pa.field("version", pa.int64()),
        pa.field("attempts", pa.int32()),
        pa.field("owner", pa.string()),
        pa.field("consumer", pa.string()),
        pa.field("reason", pa.string()),
        pa.field("priority", pa.int32()),
        pa.field("leased_us", pa.int64()),
        pa.field("lease_until_us", pa.int64()),
        pa.field("died_us", pa.int64()),
        pa.field("expires_us", pa.int64()),
    ]
)
# Moments that only some messages have: null for the others.
SOME_MOMENTS = ("leased_us", "lease_until_us", "died_us", "expires_us")
MESSAGES = pa.schema([*METADATA, *_CONTENTS])
STATUS = pa.field("status", pa.string())

# Rows of a log.
LOG_ROWS = pa.schema(
    [pa.field("partition", pa.int32()), pa.field("offset", pa.int64()), *_CONTENTS]
)

BUCKETS = pa.schema([pa.field("start_us", pa.int64()), pa.field("count", pa.int64())])

# Answers to requests: where each goes, and until when it is waited for.
REPLIED = pa.schema(
    [
        pa.field("to", pa.string()),
        pa.field("deadline_us", pa.int64()),
        FIELDS["payload"].with_nullable(True),
        FIELDS["headers"],
        FIELDS["content_type"],
    ]
)

# Entries of a key-value topic. `expires_us` is null where an entry stays for ever.
KV_ROWS = pa.schema(
    [
        pa.field("key", pa.string()),
        pa.field("clustering", pa.string()),
        pa.field("version", pa.int64()),
        pa.field("expires_us", pa.int64()),
        pa.field("created_us", pa.int64()),
        FIELDS["headers"],
        FIELDS["content_type"],
        pa.field("value", pa.binary()),
    ]
)

# What happened to entries: `op` is put, delete or expire.
CHANGES = pa.schema(
    [
        pa.field("position", pa.int64()),
        pa.field("op", pa.string()),
        pa.field("at_us", pa.int64()),
        *(KV_ROWS.field(name) for name in KV_ROWS.names if name != "created_us"),
    ]
)
