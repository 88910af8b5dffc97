"""Storage URLs."""

from __future__ import annotations

import pytest
from sqlalchemy import make_url

from storage import StorageError, normalise_url
from storage.database import masked, parse


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ("study.db", "sqlite:///study.db"),
        (" runs/study.db ", "sqlite:///runs/study.db"),
        ("/data/a b.db", "sqlite:////data/a b.db"),
        ("sqlite:///study.db", "sqlite:///study.db"),
        ("postgres://u:p@h:1/d", "postgresql+psycopg://u:p@h:1/d"),
        ("postgresql://h/d", "postgresql+psycopg://h/d"),
        ("postgresql+psycopg2://h/d", "postgresql+psycopg2://h/d"),
    ],
)
def test_what_a_user_writes_becomes_a_url(text: str, url: str) -> None:
    assert normalise_url(text) == url


@pytest.mark.parametrize("name", ["a?b.db", "a#b.db", "100%.db", "%41.db"])
def test_a_file_keeps_its_name(name: str) -> None:
    assert make_url(normalise_url(name)).database == name


def test_a_home_folder_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    assert normalise_url("~/study.db") == "sqlite:////home/me/study.db"


def test_nothing_is_no_storage() -> None:
    with pytest.raises(StorageError, match="the storage is empty"):
        normalise_url("  ")


def test_a_password_is_masked_wherever_it_stands() -> None:
    url = parse("postgresql://me:s3cret@host/db?password=s3cret&connect_timeout=3")
    assert "s3cret" not in masked(url)
    assert masked(url).startswith("postgresql+psycopg://me:***@host/db?")
    assert "connect_timeout=3" in masked(url)
