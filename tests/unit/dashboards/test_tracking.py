"""One sync at a time for each database."""

from __future__ import annotations

import os
import socket
import tempfile
from pathlib import Path

import pytest

from dashboards.mlflow.ui import one_at_a_time
from storage.errors import StorageError
from storage.locks import sync_lock
from tests.postgres import postgres_server

RELATIVE = "sqlite:///tuner_study/tuner.db"
ME = f"process {os.getpid()} on host {socket.gethostname()}"


@pytest.fixture
def folders(tmp_path: Path) -> tuple[Path, Path]:
    """Two folders, each with the folder of the default database."""
    for name in ("one", "other"):
        (tmp_path / name / "tuner_study").mkdir(parents=True)
    return tmp_path / "one", tmp_path / "other"


def test_two_folders_with_the_same_relative_path_do_not_wait(
    folders: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = folders
    monkeypatch.chdir(one)
    with one_at_a_time(RELATIVE):
        monkeypatch.chdir(other)
        with one_at_a_time(RELATIVE, wait_s=0):
            pass
        with pytest.raises(StorageError), one_at_a_time(f"sqlite:///{one / 'tuner_study/tuner.db'}", wait_s=0):
            pass


def test_the_wait_names_the_other_process_and_has_an_end(folders: tuple[Path, Path]) -> None:
    url = f"sqlite:///{folders[0] / 'tuner.db'}"
    lines: list[str] = []
    message = f"^{ME} has been logging this database to MLflow for 0 s; end it, or run `tuner sync` later$"
    with one_at_a_time(url), pytest.raises(StorageError, match=message), one_at_a_time(url, lines.append, wait_s=0.3):
        pass
    assert lines == [f"waiting at most 0 s for {ME}, which logs this database to MLflow"]
    with one_at_a_time(url, wait_s=0):
        pass


@pytest.mark.program("postgresql")
def test_a_sync_of_postgresql_takes_a_lock_of_the_database() -> None:
    with postgres_server() as server:
        url, other = server.new_database(), server.new_database()
        with one_at_a_time(url), one_at_a_time(other, wait_s=0):
            assert str(sync_lock(url).holder()) == ME
            with pytest.raises(StorageError, match=ME), one_at_a_time(url, wait_s=0):
                pass
        assert sync_lock(url).holder() is None


def test_a_symbolic_link_in_place_of_the_lock_is_refused(tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.write_text("precious")
    (tmp_path / "tuner.db.sync.lock").symlink_to(target)
    refusal = r"tuner\.db\.sync\.lock: it is a symbolic link; remove it"
    with pytest.raises(StorageError, match=refusal), one_at_a_time(f"sqlite:///{tmp_path / 'tuner.db'}"):
        pass
    assert target.read_text() == "precious"


def test_nothing_is_in_the_shared_temporary_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A predictable name there can be taken by another user: a symbolic link would truncate its target."""
    shared = tmp_path / "shared"
    shared.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(shared))
    with one_at_a_time(f"sqlite:///{tmp_path / 'tuner.db'}"):
        assert list(shared.iterdir()) == []
        assert (tmp_path / "tuner.db.sync.lock").is_file()
    assert not (tmp_path / "tuner.db.sync.lock").exists()
