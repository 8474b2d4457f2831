"""Key-value topics: the latest value of each key, with its version.

Made by `client.kv(topic)`; any thread may call.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from fasti.client.arguments import ArrowBatch, ArrowTable
from fasti.client.columns import as_bytes
from fasti.client.durations import Duration, as_datetime
from fasti.client.kept import Kept, keep
from fasti.client.kv_columns import names_batch, pieces, put_batch
from fasti.client.outcomes import Outcome, Outcomes
from fasti.client.transport import Header, Transport
from fasti.client.watch import Watch, WatchPosition, watch_position
from fasti.errors import InvalidArgument
from fasti.model import Limits

if TYPE_CHECKING:
    from fasti.client.stale import StaleKeyValues

# A key, or a key and a clustering key.
Place = str | tuple[str, str | None]


@dataclass(frozen=True, slots=True)
class Entry:
    """A value as it was when it was asked for."""

    key: str
    clustering: str | None
    value: bytes
    version: int
    headers: dict[str, str]
    content_type: str | None
    created_us: int
    # None: it stays.
    expires_us: int | None

    @property
    def expires(self) -> datetime | None:
        """When it goes by itself."""
        return None if self.expires_us is None else as_datetime(self.expires_us)

    @classmethod
    def of_row(cls, row: dict[str, Any]) -> Entry:
        """From a row of the protocol."""
        return cls(
            row["key"],
            row["clustering"],
            row["value"],
            row["version"],
            dict(row["headers"] or ()),
            row["content_type"],
            row["created_us"],
            row["expires_us"],
        )


class KeyValues:
    """The entries of one key-value topic.

        profiles = client.kv("profiles")
        profiles.put("user-7", b"...", version=0)            # 0: must not exist
        profiles.get("user-7").value
        profiles.put("user-7", b"...", version=1).status     # "ok", or "conflict" and the version it has
        profiles.put("session-9", b"...", ttl="30m")
        profiles.delete("user-7")

    An entry is named by a key, or by a key and a clustering key: those of one key lie together, in
    order. A version is bumped by every change, and a key that is made again never has an old one.
    """

    def __init__(
        self,
        transport: Transport,
        topic: str,
        limits: Limits | None = None,
        watches: Kept[Watch] | None = None,
    ) -> None:
        self.topic = topic
        self._transport = transport
        self._limits = limits or Limits()
        # The client ends them when it is closed.
        self._watches: Kept[Watch] = Kept() if watches is None else watches

    # Changing

    def put(
        self,
        key: str,
        value: bytes,
        *,
        clustering: str | None = None,
        version: int | None = None,
        ttl: Duration | None = None,
        expires: Any = None,
        headers: Mapping[str, str] | None = None,
        content_type: str | None = None,
    ) -> Outcome:
        """Sets a value; `outcome.version` is its new version.

        With `version`, only if that is the present one (0: if there is none); else the answer is
        `conflict` and has the present one. `ttl` is how long it stays, `expires` an aware datetime
        until which; without either it stays for ever.
        """
        return self.put_many(
            [key],
            [as_bytes(value)],
            clustering=clustering,
            version=version,
            ttl=ttl,
            expires=expires,
            headers=headers,
            content_type=content_type,
        )[0]

    def put_many(
        self,
        keys: Any,
        values: Any = None,
        *,
        clustering: Any = None,
        version: Any = None,
        ttl: Any = None,
        expires: Any = None,
        headers: Any = None,
        content_type: Any = None,
    ) -> Outcomes:
        """Sets many values: an outcome for each row, in order.

        `keys` is a mapping of keys to values, a column of keys beside a column `values`, or an Arrow
        table with `key`, `value` and any of `clustering`, `version`, `ttl` or `ttl_us`, `expires` or
        `expires_us`, `headers`, `content_type`. The others are columns, or one value for all. Rows
        with the same name happen one after another, in their order.
        """
        batch = put_batch(
            keys,
            values,
            clustering=clustering,
            version=version,
            ttl=ttl,
            expires=expires,
            headers=headers,
            content_type=content_type,
        )
        return self._outcomes("kv_put", batch)

    def delete(
        self, key: str, *, clustering: str | None = None, version: int | None = None
    ) -> Outcome:
        """Removes an entry: `ok`, `not_found`, or `conflict` when it has another version."""
        return self.delete_many([key], clustering=clustering, version=version)[0]

    def delete_many(self, keys: Any, *, clustering: Any = None, version: Any = None) -> Outcomes:
        """Removes many: an outcome for each row."""
        return self._outcomes("kv_delete", names_batch(keys, clustering, version))

    def _outcomes(self, action: str, batch: pa.RecordBatch) -> Outcomes:
        outcomes = []
        for piece in pieces(batch, self._limits):
            reply, _ = self._transport.call(action, {"topic": self.topic}, [piece])
            outcomes.append(Outcomes.of_reply(reply))
        return Outcomes.joined(outcomes)

    # Reading

    def get(self, key: str, *, clustering: str | None = None) -> Entry | None:
        """The entry, or None."""
        row: dict[str, Any] = self.get_many([key], clustering=clustering).to_pylist()[0]
        return Entry.of_row(row) if row["status"] == "ok" else None

    def get_many(self, keys: Any, *, clustering: Any = None, values: bool = True) -> ArrowTable:
        """Many at once: an Arrow table with a row for each that was asked for, in order.

        The columns are `key`, `clustering`, `version`, `expires_us`, `created_us`, `headers`,
        `content_type`, `value` and `status` (`ok` or `not_found`).
        """
        batch = names_batch(keys, clustering, None)
        tables: list[pa.Table] = []
        for piece in pieces(batch, self._limits) or [batch]:
            tables += self._got(piece, values)
        return pa.concat_tables(tables)

    def _got(self, names: pa.RecordBatch, values: bool) -> list[pa.Table]:
        header = {"topic": self.topic, "value": values}
        try:
            return [self._transport.call("kv_get", header, [names])[1][0]]
        except InvalidArgument as error:
            # The values are more than one answer holds.
            half = names.num_rows // 2
            if error.details.get("field") != "batch_bytes_max" or not half:
                raise
        return self._got(names.slice(0, half), values) + self._got(names.slice(half), values)

    def stale(self) -> StaleKeyValues:
        """Reads that may be out of date, and go on while a cluster's servers have no majority."""
        from fasti.client.stale import StaleKeyValues

        return StaleKeyValues(self._transport, self.topic, self._limits)

    def range(
        self,
        *,
        key: str | None = None,
        prefix: str | None = None,
        start: Place | None = None,
        end: Place | None = None,
        limit: int | None = 1000,
        values: bool = True,
    ) -> ArrowTable:
        """Entries in the order of (key, clustering), as an Arrow table; at most `limit`.

        All of them, or those whose key begins with `prefix`, or from `start` up to but not including
        `end` (each a key, or a key and a clustering key), or all clustering keys of one `key`.
        """
        batches = self.scan(
            key=key, prefix=prefix, start=start, end=end, limit=limit, values=values
        )
        return pa.Table.from_batches(list(batches))

    def scan(
        self,
        *,
        key: str | None = None,
        prefix: str | None = None,
        start: Place | None = None,
        end: Place | None = None,
        limit: int | None = None,
        values: bool = True,
    ) -> Iterator[ArrowBatch]:
        """The same in batches, for any number of entries."""
        ticket = scan_ticket(self.topic, key, prefix, start, end, limit, values)
        return self._transport.read(ticket)

    def entries(self, **filters: Any) -> Iterator[Entry]:
        """The same one by one; filters as for `scan`."""
        for batch in self.scan(**filters, values=True):
            for row in batch.to_pylist():
                yield Entry.of_row(row)

    def count(self) -> int:
        """How many entries there are."""
        header, _ = self._transport.call("kv_describe", {"topic": self.topic})
        return int(header["entries"])

    def position(self) -> WatchPosition:
        """Where the changes are by now: `watch(position=...)` gives all that come behind it.

        A number; where a broker has several shards, one for each that the topic has, by its number. To
        see everything, take the position, read all entries, then watch from there: nothing is
        lost, though what changed meanwhile may be seen twice.
        """
        return watch_position(self._transport, self.topic)

    def watch(
        self,
        *,
        position: WatchPosition | None = None,
        prefix: str | None = None,
        timeout: Duration | None = None,
    ) -> Watch:
        """Changes as they happen: puts, deletes and expiries, each once, in order.

            with profiles.watch(prefix="user-") as changes:
                for change in changes:
                    print(change.op, change.key, change.value)

        From `position` on, or from now. A connection that is lost is made again, and nothing is
        missed meanwhile. With `timeout` the iteration ends after that long without a change. Raises
        `gone` when the position is so old that the broker has forgotten what came next.
        """
        made = Watch(self._transport, self.topic, position, prefix, timeout)
        keep(self._watches, made)
        return made

    def __iter__(self) -> Iterator[Entry]:
        return self.entries()

    def __repr__(self) -> str:
        return f"<KeyValues of {self.topic!r}>"


def scan_ticket(
    topic: str,
    key: str | None,
    prefix: str | None,
    start: Place | None,
    end: Place | None,
    limit: int | None,
    values: bool,
) -> Header:
    """The ticket of a scan. Raises `invalid_argument` on ways to say it that can't be used together."""
    if sum([key is not None, prefix is not None, start is not None or end is not None]) > 1:
        raise InvalidArgument(
            "give key, prefix, or start and end, but not several of them", field="prefix"
        )
    ticket: Header = {"call": "kv", "topic": topic, "value": values}
    if key is not None:
        ticket["key"] = key
    if prefix is not None:
        ticket["prefix"] = prefix
    for name, place in (("from", start), ("to", end)):
        if place is not None:
            ticket[name] = _place(place, "start" if name == "from" else "end")
    if limit is not None:
        ticket["limit"] = limit
    return ticket


def _place(given: Any, field: str) -> list[str | None]:
    parts = [given, None] if isinstance(given, str) else list(given) if _is_pair(given) else []
    if not parts:
        raise InvalidArgument(
            f"{field} must be a key, or a pair of key and clustering key, not {given!r}",
            field=field,
        )
    return parts


def _is_pair(given: Any) -> bool:
    if not isinstance(given, tuple) or len(given) != 2:
        return False
    return isinstance(given[0], str) and isinstance(given[1], str | None)
