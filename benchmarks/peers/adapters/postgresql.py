"""PostgreSQL: a table with an index on the due time, and `FOR UPDATE SKIP LOCKED`.

A lease is a transaction of its own, as in every queue here: it moves the row's due time by the
length of the lease, so that an unfinished message comes again. An ack deletes the row. A consumer that
finds nothing asks again every two milliseconds.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from array import array
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.peers import client as peers
from benchmarks.peers.server import Server as BaseServer
from benchmarks.peers.server import output, user_exists

_POLL_S = 0.002
_PROGRAMS = Path("/usr/lib/postgresql")


class Server(BaseServer):
    """Defaults, with `synchronous_commit` on and memory that suits the machine."""

    package, program = "postgresql", "postgres"

    @classmethod
    def executable(cls) -> str | None:
        found = sorted(_PROGRAMS.glob("*/bin/postgres"), key=lambda path: float(path.parts[-3]))
        return str(found[-1]) if found else shutil.which(cls.program)

    @classmethod
    def missing(cls) -> str | None:
        if (why := super().missing()) is not None:
            return why
        if os.getuid() == 0 and not user_exists("postgres"):
            return "postgres does not run as root, and there is no user postgres"
        return None

    @classmethod
    def version(cls) -> str:
        return output(cls.executable() or cls.program, "--version").split()[2]

    def user(self) -> str | None:
        return "postgres"

    def environment(self) -> Mapping[str, str]:
        return {"LC_ALL": "C.UTF-8"}

    def prepare(self) -> None:
        data = self.directory / "data"
        if data.exists():
            return
        root = os.getuid() == 0
        if root:
            shutil.chown(self.directory, "postgres")
            for above in self.directory.parents:
                if above.stat().st_mode & 0o005 != 0o005 and above.owner() == "root":
                    above.chmod(above.stat().st_mode | 0o055)
        program = str(Path(str(self.executable())).with_name("initdb"))
        subprocess.run(
            [program, "-D", str(data), "-U", "postgres", "-A", "trust", "-E", "UTF8", "--no-sync"],
            check=True,
            stdout=self._log,
            stderr=self._log,
            cwd=self.directory,
            env={**os.environ, **self.environment()},
            user=self.user() if root else None,
        )

    def command(self) -> list[str]:
        given = {
            "listen_addresses": "127.0.0.1",
            "port": self.port,
            "unix_socket_directories": "",
            "synchronous_commit": "on",
            "shared_buffers": "512MB",
            "max_wal_size": "4GB",
        }
        options = [word for name, value in given.items() for word in ("-c", f"{name}={value}")]
        return [str(self.executable()), "-D", str(self.directory / "data"), *options]

    def answers(self) -> bool:
        program = Path(str(self.executable())).with_name("pg_isready")
        command = [str(program), "-q", "-h", "127.0.0.1", "-p", str(self.port), "-U", "postgres"]
        return subprocess.run(command, check=False, stderr=subprocess.DEVNULL).returncode == 0

    @property
    def address(self) -> str:
        return f"host=127.0.0.1 port={self.port} user=postgres dbname=postgres"


def connect(address: str, queue: str) -> Client:
    """By psycopg 3 with its compiled part."""
    import psycopg

    connection = psycopg.connect(address, autocommit=True, prepare_threshold=2)
    table = '"' + queue.replace("-", "_") + '"'
    # Clients of one queue may come at the same time.
    connection.execute("SELECT pg_advisory_lock(1)")
    connection.execute(
        f"CREATE TABLE IF NOT EXISTS {table} (id bigserial PRIMARY KEY, due bigint NOT NULL,"
        " attempts int NOT NULL DEFAULT 0, payload bytea NOT NULL)"
    )
    connection.execute(f'CREATE INDEX IF NOT EXISTS {table[:-1]}_due" ON {table} (due, id)')
    connection.execute("SELECT pg_advisory_unlock(1)")
    return Client(connection, table)


class Client(peers.Client):
    """One connection, every statement a transaction."""

    def __init__(self, connection: Any, table: str) -> None:
        self._connection = connection
        self._cursor = connection.cursor(binary=True)
        self._copy = f"COPY {table} (due, payload) FROM STDIN WITH (FORMAT BINARY)"
        self._insert = f"INSERT INTO {table} (due, payload) VALUES (%s, %s) RETURNING id"
        self._insert_many = (
            f"INSERT INTO {table} (due, payload)"
            " SELECT * FROM unnest(%s::bigint[], %s::bytea[]) RETURNING id"
        )
        self._delete = f"DELETE FROM {table} WHERE id = %s"
        self._delete_many = f"DELETE FROM {table} WHERE id = ANY(%s)"
        self._update = f"UPDATE {table} SET due = %s WHERE id = %s"
        self._update_many = f"UPDATE {table} SET due = %s WHERE id = ANY(%s)"
        self._lease = (
            f"UPDATE {table} SET due = %s, attempts = attempts + 1 WHERE id IN"
            f" (SELECT id FROM {table} WHERE due <= %s ORDER BY due, id LIMIT %s"
            " FOR UPDATE SKIP LOCKED) RETURNING id, payload"
        )

    def schedule(self, payload: bytes, due_us: int) -> Any:
        row = self._cursor.execute(self._insert, (due_us or peers.now_us(), payload)).fetchone()
        return row[0]

    def schedule_batch(self, column: Any, dues_us: array[int]) -> None:
        with self._cursor.copy(self._copy) as copy:
            copy.set_types(["int8", "bytea"])
            for row in zip(dues_us, column, strict=True):
                copy.write_row(row)

    def schedule_many(self, payloads: list[bytes], dues_us: array[int]) -> Sequence[Any]:
        rows = self._cursor.execute(self._insert_many, (list(dues_us), payloads)).fetchall()
        return [row[0] for row in rows]

    def cancel(self, handle: Any) -> None:
        self._change(1, self._delete, (handle,))

    def cancel_many(self, handles: Sequence[Any]) -> None:
        self._change(len(handles), self._delete_many, (list(handles),))

    def move(self, handle: Any, due_us: int) -> None:
        self._change(1, self._update, (due_us, handle))

    def move_many(self, handles: Sequence[Any], due_us: int) -> None:
        self._change(len(handles), self._update_many, (due_us, list(handles)))

    def _change(self, count: int, statement: str, arguments: tuple[Any, ...]) -> None:
        done = self._cursor.execute(statement, arguments).rowcount
        assert done == count, f"{done} of {count} changed"

    def consume(self, handler: peers.Handler, idle_s: float, batch: int = 1) -> None:
        while rows := self._take(batch, idle_s):
            enough = False
            for _, payload in rows:
                enough = handler(payload) or enough
            self._ack(rows)
            if enough:
                return

    def consume_batches(self, handler: peers.BatchHandler, count: int, idle_s: float) -> None:
        while rows := self._take(count, idle_s):
            self._ack(rows)
            if handler(len(rows)):
                return

    def _ack(self, rows: list[Any]) -> None:
        if len(rows) == 1:
            self._cursor.execute(self._delete, (rows[0][0],))
        else:
            self._cursor.execute(self._delete_many, ([row[0] for row in rows],))

    def _take(self, count: int, idle_s: float) -> list[Any]:
        deadline = time.monotonic() + idle_s
        while True:
            now = peers.now_us()
            given = (now + peers.LEASE_S * 1_000_000, now, count)
            rows = self._cursor.execute(self._lease, given).fetchall()
            if rows or time.monotonic() > deadline:
                return list(rows)
            time.sleep(_POLL_S)

    def close(self) -> None:
        self._connection.close()
