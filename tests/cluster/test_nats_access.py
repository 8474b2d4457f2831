"""Who a broker is to NATS: user, token, `.creds` file, TLS with and without a certificate of its own."""

from __future__ import annotations

import base64
import json
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import nkeys
import pytest
import trustme

from fasti.cluster.nats import NatsConnection, NatsOptions
from fasti.cluster.nats_access import access_options
from fasti.errors import FastiError, InvalidArgument, Unauthenticated, Unavailable
from tests.cluster.nats_rig import NatsServers, wait_until

_PASSWORD = "p@ss:w/rd"


@contextmanager
def a_server(extra: str) -> Iterator[NatsServers]:
    servers = NatsServers(1, extra=extra)
    try:
        wait_until(lambda: "Server is ready" in log_of(servers), "the server")
        yield servers
    finally:
        servers.close()


def log_of(servers: NatsServers) -> str:
    return (servers.directory / "n0.log").read_text()


def connect(urls: list[str], **access: Any) -> None:
    """Comes in and asks for something, or raises."""
    connection = NatsConnection(NatsOptions(**access_options(urls, **access)))
    try:
        assert connection.stream_state("none") is None
        assert connection.server_name == "n0"
    finally:
        connection.close()


def refused(urls: list[str], **access: Any) -> FastiError:
    with pytest.raises((Unauthenticated, Unavailable)) as caught:
        connect(urls, **access)
    assert "\n" not in str(caught.value)
    return caught.value


def with_user(url: str, user: str) -> str:
    return url.replace("://", f"://{user}@")


def write(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def test_a_user_is_taken_from_the_address_or_a_file(tmp_path: Path) -> None:
    with a_server(f'authorization {{ user: fasti, password: "{_PASSWORD}" }}') as servers:
        (url,) = servers.urls
        connect([with_user(url, "fasti:p%40ss%3Aw%2Frd")])
        connect([url], credentials=write(tmp_path / "user.txt", f"fasti:{_PASSWORD}\n"))
        for error in (
            refused([url]),
            refused([with_user(url, "fasti:other-secret")]),
            refused([url], credentials=write(tmp_path / "wrong.txt", "fasti:other-secret")),
        ):
            assert isinstance(error, Unauthenticated)
            assert "refuses these credentials" in str(error)
            assert "other-secret" not in str(error)
            assert _PASSWORD not in str(error)


def test_a_token_is_taken_from_the_address_or_a_file(tmp_path: Path) -> None:
    with a_server('authorization { token: "a-long-token" }') as servers:
        (url,) = servers.urls
        connect([with_user(url, "a-long-token")])
        connect([url], credentials=write(tmp_path / "token", "a-long-token\n"))
        error = refused([with_user(url, "another-token")])
        assert isinstance(error, Unauthenticated)
        assert "another-token" not in str(error)


def test_a_creds_file_is_taken(tmp_path: Path) -> None:
    operator, account = Identity(nkeys.PREFIX_BYTE_OPERATOR), Identity(nkeys.PREFIX_BYTE_ACCOUNT)
    system = Identity(nkeys.PREFIX_BYTE_ACCOUNT)
    limits = {"mem_storage": -1, "disk_storage": -1, "streams": -1, "consumer": -1, "subs": -1}
    every = {"conn": -1, "leaf": -1, "data": -1, "payload": -1, "imports": -1, "exports": -1}
    accounts = {
        account.name: operator.sign(account.name, "account", limits={**limits, **every}),
        system.name: operator.sign(system.name, "account", limits={**every, "subs": -1}),
    }
    claims = operator.sign(operator.name, "operator", system_account=system.name)
    preload = "\n".join(f"{name}: {token}" for name, token in accounts.items())
    extra = f"""
operator: {claims}
system_account: {system.name}
resolver: MEMORY
resolver_preload: {{
{preload}
}}
"""
    with a_server(extra) as servers:
        user = Identity(nkeys.PREFIX_BYTE_USER)
        token = account.sign(user.name, "user", subs=-1, data=-1, payload=-1)
        connect(servers.urls, credentials=write(tmp_path / "good.creds", user.creds(token)))
        stranger = Identity(nkeys.PREFIX_BYTE_ACCOUNT).sign(user.name, "user", subs=-1)
        wrong = write(tmp_path / "wrong.creds", user.creds(stranger))
        error = refused(servers.urls, credentials=wrong)
        assert isinstance(error, Unauthenticated)
        assert stranger not in str(error)


def test_tls_is_checked_on_both_sides(tmp_path: Path) -> None:
    authority, other = trustme.CA(), trustme.CA()
    ca, cert, key = (tmp_path / name for name in ("ca.pem", "cert.pem", "key.pem"))
    own = authority.issue_cert("127.0.0.1")
    own.private_key_pem.write_to_path(key)
    own.cert_chain_pems[0].write_to_path(cert)
    authority.cert_pem.write_to_path(ca)
    wrong_ca, wrong_cert = tmp_path / "other.pem", tmp_path / "other-cert.pem"
    other.cert_pem.write_to_path(wrong_ca)
    other.issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(wrong_cert)
    server = f'tls {{ cert_file: "{cert}", key_file: "{key}", ca_file: "{ca}"'
    with a_server(f"{server} }}") as servers:
        connect(servers.urls, ca=ca)
        error = refused(servers.urls, ca=wrong_ca)
        assert "not trusted" in str(error)
        assert "nats_ca" in str(error)
    with a_server(f"{server}, verify: true }}") as servers:
        connect(servers.urls, ca=ca, cert=cert, key=key)
        refused(servers.urls, ca=ca)
        refused(servers.urls, ca=ca, cert=wrong_cert)


def test_what_contradicts_itself_is_refused_without_a_connection(tmp_path: Path) -> None:
    one = write(tmp_path / "one", "u:p")
    for urls, access, field in (
        (["nats://a:b@x", "nats://c:d@y"], {}, "nats"),
        (["nats://a:b@x"], {"credentials": one}, "nats_credentials"),
        (["nats://x"], {"credentials": write(tmp_path / "two", "a\nb\n")}, "nats_credentials"),
        (["nats://x"], {"credentials": tmp_path / "none"}, "nats_credentials"),
        (["nats://x"], {"ca": one}, "nats_ca"),
        (["nats://x"], {"cert": one, "key": one}, "nats_cert"),
    ):
        with pytest.raises(InvalidArgument) as caught:
            access_options(urls, **access)
        assert caught.value.field == field
        assert "u:p" not in str(caught.value)


class Identity:
    """A key of NATS, and the claims that it signs."""

    def __init__(self, prefix: int) -> None:
        self._seed = nkeys.encode_seed(secrets.token_bytes(32), prefix)
        # The pair is made of what it is given, which it may wipe.
        self._pair = nkeys.from_seed(bytearray(self._seed))
        self.name = self._pair.public_key.decode()

    def sign(self, subject: str, kind: str, **claims: Any) -> str:
        body = {
            "jti": f"{subject}-{kind}",
            "iat": int(time.time()),
            "iss": self.name,
            "name": kind,
            "sub": subject,
            "nats": {"type": kind, "version": 2, **claims},
        }
        head = {"typ": "JWT", "alg": "ed25519-nkey"}
        text = ".".join(_encode(json.dumps(part).encode()) for part in (head, body))
        return f"{text}.{_encode(self._pair.sign(text.encode()))}"

    def creds(self, token: str) -> str:
        return f"""-----BEGIN NATS USER JWT-----
{token}
------END NATS USER JWT------

-----BEGIN USER NKEY SEED-----
{bytes(self._seed).decode()}
------END USER NKEY SEED------
"""


def _encode(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()
