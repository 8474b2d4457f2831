"""Client certificates: strangers get no further than the handshake, and the HTTP port works."""

from __future__ import annotations

import asyncio
import os
import ssl
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
import trustme
from typer.testing import CliRunner

import fasti
import fasti.aio
from fasti.broker.launch import BrokerProcess
from fasti.cli.main import app as commands
from fasti.doors.credentials import create
from fasti.errors import FastiError, InvalidArgument, Unavailable
from tests.faults.conftest import Tried
from tests.integration.serve_rig import SMALL, ask


class Certified(NamedTuple):
    broker: BrokerProcess
    folder: Path
    token: str

    @property
    def address(self) -> str:
        return f"fasti+tls://localhost:{self.broker.port}"

    @property
    def trust(self) -> dict[str, str]:
        return {"token": self.token, "tls_ca": str(self.folder / "authority.pem")}

    @property
    def client(self) -> str:
        return str(self.folder / "client.pem")


@pytest.fixture(scope="module")
def certified(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Certified]:
    folder = tmp_path_factory.mktemp("certified")
    # The broker's authority and that of its clients need not be the same.
    authority, clients = trustme.CA(), trustme.CA()
    authority.cert_pem.write_to_path(folder / "authority.pem")
    clients.cert_pem.write_to_path(folder / "clients.pem")
    own = authority.issue_cert("localhost", "127.0.0.1")
    own.private_key_and_cert_chain_pem.write_to_path(folder / "own.pem")
    own.private_key_pem.write_to_path(folder / "key.pem")
    own.cert_chain_pems[0].write_to_path(folder / "cert.pem")
    for name, signer in (("client", clients), ("stranger", trustme.CA())):
        made = signer.issue_cert(f"{name}@example.com")
        made.private_key_and_cert_chain_pem.write_to_path(folder / f"{name}.pem")
    # No other may read tokens and keys.
    for file in folder.iterdir():
        file.chmod(stat.S_IRUSR | stat.S_IWUSR)
    token = create(folder / "tokens.toml", "honest")
    settings = {
        **SMALL,
        "tls_cert": folder / "cert.pem",
        "tls_key": folder / "key.pem",
        "tls_client_ca": folder / "clients.pem",
        "credentials": folder / "tokens.toml",
    }
    with BrokerProcess(folder / "data", http="127.0.0.1:0", settings=settings) as broker:
        yield Certified(broker, folder, token)


@pytest.mark.fault(
    "strangers", "no certificate, or one of another authority, with a token", "no connection"
)
def test_only_who_has_a_certificate_gets_through(certified: Certified, tried: Tried) -> None:
    for shown in (None, certified.folder / "stranger.pem", certified.folder / "own.pem"):
        with pytest.raises(Unavailable, match="tls_client_cert=, --tls-client-cert"):
            fasti.connect(
                certified.address, tls_client_cert=shown, timeout="10s", **certified.trust
            )
    with fasti.connect(
        certified.address, tls_client_cert=certified.client, **certified.trust
    ) as client:
        assert client.health()["ready"]
    # As bytes, and the token counts as ever.
    pem = Path(certified.client).read_bytes()
    with pytest.raises(FastiError, match="token"):
        fasti.connect(
            certified.address,
            token="wrong",
            tls_ca=certified.trust["tls_ca"],
            tls_client_cert=pem,
        )
    tried.times = 3


def test_asyncio_and_the_environment(certified: Certified, monkeypatch: pytest.MonkeyPatch) -> None:
    async def look() -> bool:
        options = {**certified.trust, "tls_client_cert": certified.client}
        async with fasti.aio.connect(certified.address, **options) as client:  # type: ignore[arg-type]
            return bool((await client.health())["ready"])

    assert asyncio.run(look())
    monkeypatch.setenv("FASTI_ADDRESS", certified.address)
    monkeypatch.setenv("FASTI_TOKEN", certified.token)
    monkeypatch.setenv("FASTI_TLS_CA", certified.trust["tls_ca"])
    monkeypatch.setenv("FASTI_TLS_CLIENT_CERT", certified.client)
    with fasti.connect() as client:
        assert client.health()["ready"]
    assert CliRunner().invoke(commands, ["topics", "list"]).exit_code == 0
    monkeypatch.delenv("FASTI_TLS_CLIENT_CERT")
    shown = ["topics", "list", "--tls-client-cert", certified.client]
    assert CliRunner().invoke(commands, shown).exit_code == 0


def test_the_http_port_reaches_the_broker_and_asks_for_none(certified: Certified) -> None:
    trust = ssl.create_default_context(cafile=certified.trust["tls_ca"])
    assert ask(certified.broker, "/readyz", trust=trust).status == 200
    assert ask(certified.broker, "/metrics", certified.token, trust).status == 200
    assert ask(certified.broker, "/metrics", trust=trust).status == 401


def test_a_file_that_lacks_one_of_both_is_refused(certified: Certified) -> None:
    for name, missing in (("key.pem", "certificate"), ("cert.pem", "private key")):
        with pytest.raises(InvalidArgument, match=f"no {missing}"):
            fasti.connect(certified.address, tls_client_cert=certified.folder / name)
    with pytest.raises(InvalidArgument, match="tls_client_cert can't be read"):
        fasti.connect(certified.address, tls_client_cert=os.devnull + "/none")


def test_an_authority_that_is_none_is_refused_before_the_start(
    certified: Certified, tmp_path: Path
) -> None:
    settings = {
        "tls_cert": certified.folder / "cert.pem",
        "tls_key": certified.folder / "key.pem",
        "tls_client_ca": certified.folder / "key.pem",
    }
    with pytest.raises(InvalidArgument, match="no certificate in PEM"):
        BrokerProcess(tmp_path / "data", settings=settings)
    with pytest.raises(InvalidArgument, match="tls_cert isn't"):
        BrokerProcess(
            tmp_path / "data", settings={"tls_client_ca": certified.folder / "clients.pem"}
        )
