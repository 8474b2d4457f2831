"""How a broker proves to NATS who it is, and what it says when it may not come in. No secret is ever printed.

- A file of credentials is a `.creds` file of NATS (a token and a key of a user), or has one line:
  `user:password`, or a token.
- A secret may also stand in the URLs: `nats://user:password@host`, `nats://token@host`. It is taken out of
  them: servers that NATS tells of later are reached with it as well.
- TLS is asked for by `nats_ca`, `nats_cert` or a URL with `tls://`; also where the server insists on it.
"""

from __future__ import annotations

import ssl
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import unquote, urlsplit

from fasti.errors import InvalidArgument, Unauthenticated, Unavailable

_CREDS_BYTES_MAX = 64 << 10
_BEGIN = "-----BEGIN NATS USER JWT-----"


class Secret(NamedTuple):
    """As nats-py takes it: all None is nobody in particular."""

    credentials: str | None = None
    user: str | None = None
    password: str | None = None
    token: str | None = None


def read_secret(path: Path, field: str) -> Secret:
    """What a file of credentials has. Raises `InvalidArgument`, with the file's name and nothing of it."""
    try:
        with open(path, encoding="utf-8") as opened:
            text = opened.read(_CREDS_BYTES_MAX)
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text"
        raise InvalidArgument(f"{path} can't be read: {reason}", field=field) from error
    if _BEGIN in text:
        return Secret(credentials=str(path))
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if len(lines) != 1:
        raise InvalidArgument(
            f"{path} is neither a .creds file of NATS nor one line with user:password or a token",
            field=field,
        )
    return _secret(lines[0])


def _secret(text: str) -> Secret:
    user, colon, password = text.partition(":")
    return Secret(user=user, password=password) if colon else Secret(token=user)


def split_urls(urls: Sequence[str]) -> tuple[list[str], Secret]:
    """The URLs without what is secret in them, and that. Raises `InvalidArgument` if they differ in it."""
    plain: list[str] = []
    secrets: set[Secret] = set()
    for url in urls:
        parts = urlsplit(url)
        before, at, host = parts.netloc.rpartition("@")
        plain.append(parts._replace(netloc=host).geturl())
        if at:
            user, colon, password = before.partition(":")
            found = Secret(user=unquote(user), password=unquote(password))
            secrets.add(found if colon else Secret(token=unquote(user)))
        else:
            secrets.add(Secret())
    if len(secrets) > 1:
        raise InvalidArgument(
            "the addresses of NATS have different users: give all of them the same one",
            field="nats",
        )
    return plain, secrets.pop()


def access_options(
    urls: Sequence[str],
    credentials: Path | None = None,
    ca: Path | None = None,
    cert: Path | None = None,
    key: Path | None = None,
    field: str = "nats_credentials",
) -> dict[str, Any]:
    """The fields of `NatsOptions` but for its times. Raises `InvalidArgument`."""
    plain, secret = split_urls(urls)
    if credentials is not None:
        if secret != Secret():
            raise InvalidArgument(
                f"{field} is given, and nats has a user as well: which one is meant?", field=field
            )
        secret = read_secret(credentials, field)
    encrypted = ca is not None or cert is not None or urls[0].startswith(("tls://", "wss://"))
    tls = make_tls(ca, cert, key) if encrypted else None
    return {"urls": plain, "tls": tls, **secret._asdict()}


def make_tls(ca: Path | None, cert: Path | None, key: Path | None) -> ssl.SSLContext:
    """Servers are checked against `ca`, or what the system trusts. Raises `InvalidArgument`."""
    try:
        context = ssl.create_default_context(cafile=None if ca is None else str(ca))
    except (OSError, ssl.SSLError) as error:
        message = f"{ca} has no certificates that can be read"
        raise InvalidArgument(message, field="nats_ca") from error
    if cert is not None:
        try:
            context.load_cert_chain(str(cert), None if key is None else str(key))
        except (OSError, ssl.SSLError) as error:
            message = f"{cert} and {key} are not a certificate and its key"
            raise InvalidArgument(message, field="nats_cert") from error
    return context


def unreachable(urls: Sequence[str], trouble: Exception | None) -> Unavailable | Unauthenticated:
    """Why there is no connection, in one line; nats-py tells only what went wrong last."""
    places = ", ".join(split_urls(urls)[0])
    text = str(trouble or "").removeprefix("nats: ").strip("'\" ")
    if "authorization violation" in text.lower() or "authentication" in text.lower():
        return Unauthenticated(
            f"NATS at {places} refuses these credentials: look at nats_credentials, and at the users of NATS"
        )
    if isinstance(trouble, ssl.SSLCertVerificationError):
        return Unauthenticated(
            f"the certificate of NATS at {places} is not trusted ({trouble.verify_message}): nats_ca "
            "names the file of the authority that signed it"
        )
    if isinstance(trouble, ssl.SSLError) or "tls" in text.lower():
        return Unavailable(f"TLS to NATS at {places} fails: {text or type(trouble).__name__}")
    return Unavailable(f"no NATS server answers at {places}")
