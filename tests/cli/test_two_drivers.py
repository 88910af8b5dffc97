"""Two drivers of one study: the second is refused, wherever it starts."""

import json
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from records.trials import TrialRecord
from storage import locks
from storage.errors import StorageUnavailable, WaitInterrupted
from tests.cli.command import CommandOutput, everything_in, run_apart, run_here
from tests.postgres import PostgresServer, postgres_server
from tuner.cancellation import Wishes
from tuner.executors.base import Executor
from tuner.settings.study import StudySettings
from tuner.study.protocols import StudyObserver
from tuner.use_cases import optimize as optimize_run

OPTIONS = ("--engine", "simulated", "--confirm-rounds", "0", "--trials", "2", "--study", "s", "--plain")
LOAD = {"num_prompts": 8, "max_concurrency": 4}
SMALL: dict[str, Any] = {"study": "s", "engine": "simulated", "confirm_rounds": 0, **LOAD}


@pytest.fixture(scope="module")
def postgres() -> Iterator[PostgresServer]:
    """A PostgreSQL server for both tests."""
    with postgres_server() as server:
        yield server


BOTH = ["sqlite", pytest.param("postgresql", marks=[pytest.mark.program("postgresql"), pytest.mark.slow])]


@pytest.fixture(params=BOTH)
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A database of each kind that both drivers reach."""
    if request.param == "sqlite":
        return str(tmp_path / "shared.db")
    server: PostgresServer = request.getfixturevalue("postgres")
    return server.new_database()


class SecondDriver(StudyObserver):
    """Starts a second driver of the study in another folder when the first trial has finished."""

    def __init__(self, folder: Path, storage: str) -> None:
        self._folder = folder
        self._storage = storage
        self.output: CommandOutput | None = None

    def finished(self, record: TrialRecord) -> None:
        """Start it once, and wait for its end."""
        if self.output is None:
            self.output = run_apart(self._folder, "optimize", *OPTIONS, "--storage", self._storage, TUNER_VLLM="")


def test_a_second_driver_in_another_folder_is_refused(
    tmp_path: Path, storage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    one.mkdir()
    other.mkdir()
    (tmp_path / "alias.db").symlink_to(tmp_path / "shared.db")
    monkeypatch.chdir(one)
    observer = SecondDriver(other, storage.replace("shared.db", "alias.db"))
    study = StudySettings(**SMALL, trials=2, min_gain=0, storage=storage)
    optimize_run.optimize(study, observer, Wishes())
    assert observer.output is not None
    holder = f"process {os.getpid()} on host {socket.gethostname()}"
    message = f"tuner: --study 's': {holder} is running this study; wait for it, or choose another name\n"
    assert (observer.output.code, observer.output.err) == (2, message)
    assert everything_in(other) == []
    rows = json.loads(run_here(one, "study", "trials", "--json", "--storage", storage).out)
    assert [row["number"] for row in rows] == list(range(2))


def test_the_lock_is_held_until_the_executor_has_stopped(
    tmp_path: Path, storage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    made = optimize_run._executor
    holders: list[locks.Holder | None] = []

    def observed(*arguments: object) -> Executor:
        executor = made(*arguments)  # type: ignore[arg-type]
        close = executor.close

        def close_and_note() -> None:
            close()
            holders.append(locks.study_lock(storage, "s").holder())

        monkeypatch.setattr(executor, "close", close_and_note)
        return executor

    monkeypatch.setattr(optimize_run, "_executor", observed)
    study = StudySettings(**SMALL, trials=1, storage=storage)
    optimize_run.optimize(study, StudyObserver(), Wishes())
    assert set(holders) == {locks.Holder.this_process()}  # closed before the report, and at the end
    assert locks.study_lock(storage, "s").holder() is None


@pytest.mark.parametrize(
    ("error", "code"), [(locks.LockLost("taken"), 1), (StorageUnavailable("down"), 1), (WaitInterrupted("down"), 130)]
)
def test_a_lost_database_is_no_mistake_of_the_user(
    tmp_path: Path, error: Exception, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lost(*_: object) -> None:
        raise error

    monkeypatch.setattr("tuner.cli.output.pages.optimize.optimize", lost)
    said = run_here(tmp_path, "optimize", *OPTIONS)
    assert (said.code, said.err) == (code, f"tuner: {error}\n")
