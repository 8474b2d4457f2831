"""Tokens and the file that holds their hashes."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from fasti.doors.credentials import Credentials, create, read_file, revoke
from fasti.errors import AlreadyExists, InvalidArgument, NotFound


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "credentials.toml"


def test_a_token_opens_and_is_nowhere_in_the_file(path: Path) -> None:
    token = create(path, "billing")
    other = create(path, "mail.worker-1")
    credentials = Credentials(path)
    assert credentials.check(token) == "billing"
    assert credentials.check(other) == "mail.worker-1"
    assert credentials.check(token + "x") is None
    assert credentials.check("") is None
    assert token not in path.read_text()
    assert path.stat().st_mode & 0o777 == 0o600


def test_the_hash_is_no_token(path: Path) -> None:
    create(path, "a")
    (stored,) = read_file(path).values()
    assert Credentials(path).check(stored) is None


def test_a_revoked_token_is_refused_at_once_and_a_new_one_taken(path: Path) -> None:
    old = create(path, "a")
    credentials = Credentials(path)
    revoke(path, "a")
    assert credentials.check(old) is None
    new = create(path, "a")
    assert credentials.check(new) == "a"
    assert credentials.check(old) is None


def test_a_name_has_one_token(path: Path) -> None:
    create(path, "a")
    with pytest.raises(AlreadyExists):
        create(path, "a")
    with pytest.raises(NotFound):
        revoke(path, "b")


@pytest.mark.parametrize("name", ["", "a b", 'a"', "a\n", "é", "x" * 65])
def test_names_that_cannot_be(path: Path, name: str) -> None:
    with pytest.raises(InvalidArgument):
        create(path, name)
    assert not path.exists()


@pytest.mark.parametrize("text", ["x", 'a = "secret"', "a = 5", '[a]\nb = "sha256:00"'])
def test_a_file_that_cannot_be(path: Path, text: str) -> None:
    path.write_text(text)
    path.chmod(0o600)
    with pytest.raises(InvalidArgument):
        Credentials(path)


def test_a_file_that_breaks_leaves_the_tokens_in_force(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    token = create(path, "a")
    credentials = Credentials(path)
    with caplog.at_level(logging.ERROR):
        path.write_text("nonsense")
        assert [credentials.check(token) for _ in range(3)] == ["a"] * 3
        assert len(caplog.records) == 1, "it is told once, not with every call"
        path.unlink()
        assert [credentials.check(token) for _ in range(3)] == ["a"] * 3
        assert len(caplog.records) == 2


def test_a_process_may_have_tokens_of_its_own(path: Path) -> None:
    create(path, "a")
    credentials = Credentials(path)
    token = credentials.add("http")
    assert credentials.check(token) == "http"
    revoke(path, "a")
    assert credentials.check(token) == "http"
    assert "http" not in read_file(path)
