"""Where the examples get their broker from: `--address`, or one of their own that ends with them."""

import argparse
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

import fasti


def parse_address() -> str | None:
    """What the command line says."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--address", help="of a broker, such as fasti://127.0.0.1:7170")
    address: str | None = parser.parse_args().address
    return address


@contextmanager
def connected(owner: str = "") -> Iterator[fasti.Client]:
    """A client of the broker at `--address`; without it, of one inside this process.

    Topics that the example has made are deleted at its end, so that it can be run again.
    """
    address = parse_address()
    with tempfile.TemporaryDirectory() as directory:
        with fasti.connect(address or f"embedded:{directory}", owner=owner) as client:
            before = {topic.name for topic in client.topics()}
            try:
                yield client
            finally:
                for topic in client.topics():
                    if topic.name not in before:
                        client.delete_topic(topic.name)
