"""One sync at a time for each database."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from dashboards.mlflow.tracking import one_at_a_time

RELATIVE = "sqlite:///tuner_study/tuner.db"


def held_in(folder: Path, url: str) -> bool:
    """Return whether another sync of the database, seen from a folder, would have to wait."""
    entered = threading.Event()

    def enter() -> None:
        with one_at_a_time(url):
            entered.set()

    thread = threading.Thread(target=enter, daemon=True)
    thread.start()
    return not entered.wait(0.5)


def test_two_folders_with_the_same_relative_path_do_not_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    one.mkdir()
    other.mkdir()
    monkeypatch.chdir(one)
    with one_at_a_time(RELATIVE):
        monkeypatch.chdir(other)
        assert not held_in(other, RELATIVE)
        assert held_in(one, f"sqlite:///{one / 'tuner_study' / 'tuner.db'}")
