"""Storage URLs."""

from __future__ import annotations

import sqlite3

import pytest
from sqlalchemy import make_url
from sqlalchemy.exc import OperationalError

from storage import StorageError, normalise_url
from storage.database import create_database_engine, mask_password, parse_storage_url
from storage.errors import database_reason


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
def test_a_path_or_a_url_is_normalised(text: str, url: str) -> None:
    assert normalise_url(text) == url


@pytest.mark.parametrize("name", ["a?b.db", "a#b.db", "100%.db", "%41.db"])
def test_special_characters_of_a_file_name_are_preserved(name: str) -> None:
    assert make_url(normalise_url(name)).database == name


def test_a_home_folder_is_expanded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    assert normalise_url("~/study.db") == "sqlite:////home/me/study.db"


def test_an_empty_storage_is_refused() -> None:
    with pytest.raises(StorageError, match="the storage is empty"):
        normalise_url("  ")


def test_every_password_in_a_url_is_masked() -> None:
    url = parse_storage_url("postgresql://me:s3cret@host/db?password=s3cret&connect_timeout=3")
    assert "s3cret" not in mask_password(url)
    assert mask_password(url).startswith("postgresql+psycopg://me:***@host/db?")
    assert "connect_timeout=3" in mask_password(url)


@pytest.mark.parametrize("url", ["mysql://me:s3cret@host/db", "mysql+nodriver://host/db", "oracel://host/db"])
def test_an_unsupported_database_lists_the_supported_ones(url: str) -> None:
    with pytest.raises(StorageError, match=r"is not a supported database: use SQLite .* or PostgreSQL") as raised:
        create_database_engine(parse_storage_url(url))
    assert "pip install" not in str(raised.value)
    assert "s3cret" not in str(raised.value)


def test_the_error_for_a_missing_driver_names_the_package() -> None:
    with pytest.raises(StorageError, match=r"the driver .* is not installed: `pip install 'psycopg\[binary\]'`"):
        create_database_engine(parse_storage_url("postgresql+asyncpg://host/db"))


def test_a_wrapped_database_error_has_its_reason() -> None:
    wrapped = RuntimeError("wrapped")
    wrapped.__cause__ = OperationalError("SELECT 1", {}, sqlite3.OperationalError("database is locked.\nmore"))
    assert database_reason(wrapped) == "database is locked"
    assert database_reason(RuntimeError("other")) is None
