"""The Arrow columns of a message's contents: in commands, in the journal and on the wire.

Clients import this too, so it loads nothing else.
"""

from __future__ import annotations

import pyarrow as pa

HEADERS = pa.map_(pa.string(), pa.string())
FIELDS: dict[str, pa.Field] = {
    "payload": pa.field("payload", pa.binary(), nullable=False),
    "key": pa.field("key", pa.string()),
    "headers": pa.field("headers", HEADERS),
    "content_type": pa.field("content_type", pa.string()),
    # Dotted words by which bindings route it.
    "subject": pa.field("subject", pa.string()),
    # When the message came to be; where it is left out, that is when the frame was written.
    "created_us": pa.field("created_us", pa.int64()),
}
