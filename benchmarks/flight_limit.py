"""What Arrow Flight alone moves here: rows into a server that does nothing but answer."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from typing import Any

import pyarrow as pa
import pyarrow.flight as fl

_BATCH = 5_000
_BATCHES = 400


class _Sink(fl.FlightServerBase):  # type: ignore[misc]
    def do_put(self, context: Any, descriptor: Any, reader: Any, writer: Any) -> None:
        while True:
            try:
                reader.read_chunk()
            except StopIteration:
                return
            writer.write(b"{}")


def flight_limit() -> int:
    """Rows a second of 100 bytes in batches of 5,000, one answer each, between two processes."""
    command = [sys.executable, "-m", "benchmarks.flight_limit"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as server:
        assert server.stdout is not None
        port = int(server.stdout.readline())
        try:
            return _measure(port)
        finally:
            server.kill()


def _measure(port: int) -> int:
    schema = pa.schema([("payload", pa.binary()), ("due_us", pa.int64())])
    arrays = [pa.array([b"x" * 100] * _BATCH), pa.array([0] * _BATCH)]
    batch = pa.RecordBatch.from_arrays(arrays, schema=schema)
    with fl.FlightClient(f"grpc://127.0.0.1:{port}") as client:
        writer, reader = client.do_put(fl.FlightDescriptor.for_command(b"{}"), schema)

        def read_answers() -> None:
            for _ in range(_BATCHES):
                reader.read()

        answers = threading.Thread(target=read_answers)
        begin = time.perf_counter()
        answers.start()
        for _ in range(_BATCHES):
            writer.write_batch(batch)
        answers.join()
        seconds = time.perf_counter() - begin
        writer.done_writing()
        writer.close()
    return round(_BATCH * _BATCHES / seconds)


def main() -> None:
    """The server: says its port, then waits to be killed."""
    server = _Sink(("127.0.0.1", 0))
    print(server.port, flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()
