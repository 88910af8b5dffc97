"""A study whose database stops answering: PostgreSQL is restarted, an SQLite file is locked, the driver is killed."""

import random
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import optuna
import pytest
from sqlalchemy.engine.default import DefaultDialect

from records.trials import Failure
from storage.errors import StorageUnavailable, WaitInterrupted
from storage.waiting import DatabaseWait
from tests.postgres import PostgresServer, postgres_server
from tests.unit.study.conftest import Bench
from tests.unit.study.test_run import peak_at_16
from tuner.specs import TrialSpec

ROOT = Path(__file__).parents[3]
TRIALS = 6
LOST_IN = 3
"""The trial during which the database is lost."""

Answer = dict[str, float | None] | Failure
KILLED = """
import os, signal, sys
from pathlib import Path
from storage.waiting import DatabaseWait
from tests.unit.study.conftest import Bench
from tests.unit.study.test_lost_database import TRIALS, Lost, lock

folder = Path(sys.argv[1])
def kill(_: str) -> None:
    os.kill(os.getpid(), signal.SIGKILL)
wait = DatabaseWait(kill, first_delay_s=0.01, busy_s=0.01)
locks = []  # a connection that nobody holds ends its lock
lost = Lost(lambda: locks.append(lock(folder)))
Bench(folder, folder / "two.yaml", wait=wait).run(lost, trials=TRIALS, confirm_rounds=0)
"""


class Lost:
    """A landscape that calls `lose` once, in one trial; `ran` are the numbers and rounds of the trials that ran."""

    def __init__(self, lose: Callable[[], object] = lambda: None) -> None:
        self._lose = lose
        self.lost_in = LOST_IN
        self.ran: set[tuple[int, int]] = set()

    def __call__(self, spec: TrialSpec, index: int) -> Answer:
        trial = (spec.number, spec.round)
        if trial == (self.lost_in, 0) and trial not in self.ran:
            self._lose()
        self.ran.add(trial)
        return peak_at_16(spec, index)


def lock(folder: Path) -> sqlite3.Connection:
    """Lock the study's SQLite file for writers."""
    connection = sqlite3.connect(folder / "t.db", check_same_thread=False)
    connection.execute("BEGIN EXCLUSIVE")
    return connection


def quick(report: Callable[[str], None], stop: threading.Event | None = None, limit_s: float = 600.0) -> DatabaseWait:
    return DatabaseWait(report, stop, limit_s, first_delay_s=0.01, longest_delay_s=0.1, busy_s=0.01)


def results(bench: Bench) -> list[tuple[object, ...]]:
    """Return the trials, without the clock's numbers; check that Optuna has the same ones."""
    storage = optuna.storages.RDBStorage(bench.url)
    stored = optuna.load_study(study_name="s", storage=storage).get_trials(deepcopy=False)
    records = bench.records()
    assert [trial.number for trial in stored] == [record.number for record in records if not record.round]
    assert all(trial.state.is_finished() for trial in stored)
    storage.engine.dispose()
    return [
        (
            record.number,
            record.round,
            record.attempts,
            dict(record.config),
            record.state,
            record.verdict and record.verdict.score,
        )
        for record in records
    ]


@pytest.fixture
def undisturbed(bench: Bench, tmp_path: Path) -> list[tuple[object, ...]]:
    """The trials of the same study on a database that always answers."""
    (tmp_path / "undisturbed").mkdir()
    other = Bench(tmp_path / "undisturbed", bench.space_file)
    other.run(peak_at_16, trials=TRIALS)
    return results(other)


@pytest.fixture(scope="module")
def postgres() -> Iterator[PostgresServer]:
    with postgres_server() as server:
        yield server


@pytest.mark.slow
def test_a_study_outlives_a_restart_of_postgresql(
    bench: Bench, postgres: PostgresServer, undisturbed: list[tuple[object, ...]]
) -> None:
    lines: list[str] = []

    def report(line: str) -> None:
        lines.append(line)
        if line.startswith("waiting"):
            postgres.start()

    bench.database, bench.wait = postgres.new_database(), quick(report)
    bench.run(Lost(postgres.stop), trials=TRIALS)
    assert results(bench) == undisturbed
    waiting, again = lines
    assert waiting.startswith("waiting at most 10 min for the database (")
    assert waiting.endswith("); Ctrl-C ends the wait")
    assert again.startswith("the database answers again after ")
    assert list(bench.folder.rglob("unstored-*")) == []


def test_connections_that_the_server_ends_are_made_again(
    bench: Bench, postgres: PostgresServer, undisturbed: list[tuple[object, ...]]
) -> None:
    lines: list[str] = []
    bench.database, bench.wait = postgres.new_database(), quick(lines.append)
    bench.listener.on_finished = lambda _: postgres.end_connections()
    bench.run(Lost(), trials=TRIALS)
    assert results(bench) == undisturbed


def test_a_study_outlives_a_locked_sqlite_file(bench: Bench, undisturbed: list[tuple[object, ...]]) -> None:
    lines: list[str] = []
    locks: list[sqlite3.Connection] = []

    def report(line: str) -> None:
        lines.append(line)
        if line.startswith("waiting"):
            locks[0].close()

    bench.wait = quick(report)
    bench.run(Lost(lambda: locks.append(lock(bench.folder))), trials=TRIALS)
    assert results(bench) == undisturbed
    assert lines[0] == "waiting at most 10 min for the database (database is locked); Ctrl-C ends the wait"
    assert lines[1].startswith("the database answers again after ")


@pytest.mark.parametrize("ended_by", ["limit", pytest.param("Ctrl-C", marks=pytest.mark.slow)])
def test_an_outcome_that_was_not_stored_is_stored_by_the_next_run(
    bench: Bench, undisturbed: list[tuple[object, ...]], ended_by: str
) -> None:
    locks: list[sqlite3.Connection] = []
    stop = threading.Event()
    if ended_by == "limit":
        bench.wait = quick(lambda _: None, limit_s=0.1)
        error, message = StorageUnavailable, r"^for \d+ s the database did not answer: database is locked; run the same"
    else:
        bench.wait = quick(lambda _: stop.set(), stop)
        error, message = WaitInterrupted, "^interrupted while the database did not answer: database is locked; run the"
    first = Lost(lambda: locks.append(lock(bench.folder)))
    with pytest.raises(error, match=message):
        bench.run(first, trials=TRIALS)
    (kept,) = bench.folder.rglob("unstored-*")
    assert kept.stat().st_mode & 0o077 == 0
    locks[0].close()
    second = Lost()
    bench.run(second, trials=TRIALS)
    assert results(bench) == undisturbed
    assert (LOST_IN, 0) in first.ran
    assert (LOST_IN, 0) not in second.ran
    assert f"#{LOST_IN}: its outcome was not stored by the last run and is stored now" in bench.listener.notes
    assert list(bench.folder.rglob("unstored-*")) == []


@pytest.mark.slow
def test_the_outcome_in_hand_survives_a_killed_driver(bench: Bench) -> None:
    done = subprocess.run([sys.executable, "-c", KILLED, str(bench.folder)], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert [path.name for path in bench.folder.rglob("unstored-*")] == [f"unstored-{LOST_IN}-0.json"]
    landscape = Lost()
    bench.run(landscape, trials=TRIALS, confirm_rounds=0)
    assert landscape.ran == {(4, 0), (5, 0)}
    assert [record.state for record in bench.records()] == ["ok"] * TRIALS


def test_a_kept_outcome_of_another_study_or_without_content_is_ignored(bench: Bench) -> None:
    bench.run(peak_at_16, trials=1, confirm_rounds=0)
    folder = bench.folder / "artifacts"
    folder.mkdir(exist_ok=True)
    for number, text in enumerate(('{"study": "older", "number": 0}', "", "[]")):
        (folder / f"unstored-{number}-0.json").write_text(text)
    bench.run(peak_at_16, trials=2, confirm_rounds=0)
    assert len(bench.records()) == 2
    assert list(folder.glob("unstored-*")) == []


@pytest.mark.slow
def test_every_write_may_lose_its_connection_before_or_after_its_commit(
    bench: Bench, undisturbed: list[tuple[object, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.wait = quick(lambda _: None)
    chance = random.Random(0)
    commit = DefaultDialect.do_commit
    lost: list[str] = []

    def unreliable(dialect: DefaultDialect, connection: sqlite3.Connection) -> None:
        fate = chance.random()
        if fate > 0.15:
            commit(dialect, connection)  # type: ignore[no-untyped-call]
        if fate < 0.3:
            lost.append("before" if fate <= 0.15 else "after")
            error = sqlite3.OperationalError("database is locked")
            error.sqlite_errorcode = sqlite3.SQLITE_BUSY
            raise error

    landscape = Lost(lambda: monkeypatch.setattr(DefaultDialect, "do_commit", unreliable))
    landscape.lost_in = 0
    bench.run(landscape, trials=TRIALS)
    monkeypatch.undo()
    assert results(bench) == undisturbed
    assert {"before", "after"} == set(lost)
    assert list(bench.folder.rglob("unstored-*")) == []


def test_the_wait_is_for_the_database_only(bench: Bench) -> None:
    """An error of another kind ends the run at once."""
    lines: list[str] = []
    bench.wait = quick(lines.append)

    def drop() -> None:
        with closing(sqlite3.connect(bench.folder / "t.db")) as connection:
            connection.execute("DROP TABLE tuner_repeats")

    with pytest.raises(Exception, match="no such table: tuner_repeats"):
        bench.run(Lost(drop), trials=TRIALS)
    assert lines == []
