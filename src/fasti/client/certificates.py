"""Certificates that are given by file or as bytes, for TLS to a broker."""

from __future__ import annotations

import os
import re

from fasti.errors import InvalidArgument

Pem = str | os.PathLike[str] | bytes
_CERTIFICATE = re.compile(rb"-----BEGIN CERTIFICATE-----.*?-----END CERTIFICATE-----", re.DOTALL)
_KEY = re.compile(rb"-----BEGIN ([A-Z ]*PRIVATE KEY)-----.*?-----END \1-----", re.DOTALL)


def read_authority(given: Pem | None) -> bytes | None:
    """The authority that is to be trusted. Raises `invalid_argument` if it is none."""
    if given is None:
        return None
    pem = _read(given, "tls_ca")
    if not _CERTIFICATE.search(pem):
        raise InvalidArgument("tls_ca has no certificate in PEM", field="tls_ca")
    return pem


def read_client_certificate(given: Pem | None) -> tuple[bytes, bytes] | None:
    """A chain and its key, from one file. Raises `invalid_argument` if one of them is missing."""
    if given is None:
        return None
    pem = _read(given, "tls_client_cert")
    chain, key = _CERTIFICATE.findall(pem), _KEY.search(pem)
    if not chain or key is None:
        missing = "private key" if chain else "certificate"
        raise InvalidArgument(
            f"tls_client_cert has no {missing} in PEM: it needs both, one after the other",
            field="tls_client_cert",
        )
    return b"\n".join(chain) + b"\n", key[0] + b"\n"


def _read(given: Pem, field: str) -> bytes:
    try:
        if isinstance(given, bytes):
            return given
        with open(given, "rb") as file:
            return file.read()
    except OSError as error:
        raise InvalidArgument(f"{field} can't be read: {error}", field=field) from error
