"""Who may come in: tokens, kept as hashes in a TOML file.

A line of the file is `name = "sha256:<hex>"`. A token is 32 random bytes, so its hash needs no
salt and no slow function: there is nothing to guess. The token itself is shown once, when it is
made, and stored nowhere.

`Credentials.check` may be called from any thread. The file is looked at with each call and read
again when it has changed, so that a revoked token is refused from the next call on; a file that
can't be read any more leaves the old tokens in force and is logged.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import logging
import os
import re
import secrets
import threading
import tomllib
from contextlib import suppress
from pathlib import Path

from fasti.doors.private_files import check_private
from fasti.errors import AlreadyExists, FastiError, InvalidArgument, NotFound, PermissionDenied

_log = logging.getLogger("fasti.doors.credentials")

_PREFIX = "sha256:"
_HASH = re.compile(r"sha256:[0-9a-f]{64}")
_NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")
_TOKEN_PREFIX = "fasti_"
Stamp = tuple[int, int, int, int]


def hash_token(token: str) -> str:
    """The hash of a token, as the file has it."""
    return _PREFIX + hashlib.sha256(token.encode()).hexdigest()


class Credentials:
    """The tokens of a file, and those that this process added for its own children."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._own: dict[str, str] = {}
        self._stamp = _stamp(path)
        self._names = _read_private(path)

    def add(self, name: str) -> str:
        """A new token that only this process knows of."""
        token = new_token()
        with self._lock:
            self._own[name] = hash_token(token)
        return token

    def check(self, token: str) -> str | None:
        """The name behind a token, or None. How long it takes tells nothing about any hash."""
        digest = hash_token(token)
        match: str | None = None
        for name, stored in self._current().items():
            if hmac.compare_digest(stored, digest):
                match = name
        return match

    def _current(self) -> dict[str, str]:
        with self._lock:
            stamp = _stamp(self._path)
            if stamp != self._stamp:
                self._stamp = stamp
                try:
                    self._names = _read_private(self._path)
                    _log.info("credentials were reloaded: %d names", len(self._names))
                except FastiError as error:
                    _log.error("credentials were not reloaded: %s", error.message)
            return {**self._names, **self._own}


def new_token() -> str:
    """A random one, with a prefix by which scanners of leaked secrets can know it."""
    return _TOKEN_PREFIX + secrets.token_urlsafe(32)


def _read_private(path: Path) -> dict[str, str]:
    check_private(path)
    return read_file(path)


def read_file(path: Path) -> dict[str, str]:
    """Names and hashes. Raises `invalid_argument` with the line's name if one can't be."""
    try:
        names = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise NotFound(f"{path}: no such file") from error
    except OSError as error:
        raise PermissionDenied(f"{path}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InvalidArgument(f"{path}: not TOML: {error}", field="credentials") from error
    for name, stored in names.items():
        if not isinstance(stored, str) or not _HASH.fullmatch(stored):
            raise InvalidArgument(
                f'{path}: {name!r} should be "sha256:" and 64 hexadecimal digits', field=name
            )
    return names


def create(path: Path, name: str) -> str:
    """Makes a token for a new name and stores its hash; the file is made if it isn't there."""
    if not _NAME.fullmatch(name):
        raise InvalidArgument(
            f"{name!r}: a name has 1 to 64 letters, digits, dots, dashes and underscores",
            field="name",
            limit=64,
        )
    names = read_file(path) if path.exists() else {}
    if name in names:
        raise AlreadyExists(f"{path} has a token for {name!r} already: revoke it first")
    token = new_token()
    _write(path, {**names, name: hash_token(token)})
    return token


def revoke(path: Path, name: str) -> None:
    """Removes a name. Brokers that use the file refuse its token from the next call on."""
    names = read_file(path)
    if name not in names:
        raise NotFound(f"{path} has no token for {name!r}")
    del names[name]
    _write(path, names)


def _write(path: Path, names: dict[str, str]) -> None:
    """Whole or not at all, and readable by its owner only."""
    text = "".join(f"{json.dumps(name)} = {json.dumps(stored)}\n" for name, stored in names.items())
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        with suppress(OSError):
            temporary.unlink()
        raise PermissionDenied(f"{path}: {error.strerror}") from error


def _stamp(path: Path) -> Stamp:
    """Another one whenever the file has changed; zeros when it isn't there."""
    try:
        status = path.stat()
    except OSError:
        return 0, 0, 0, 0
    return status.st_ino, status.st_size, status.st_mtime_ns, status.st_mode
