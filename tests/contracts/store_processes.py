"""The contract of the store for several processes and threads, a killed process, and a thousand trials."""

import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from sqlalchemy import event
from sqlalchemy.engine import Engine

from records.trials import ServerFacts
from storage import Store, open_store
from tests import store_samples as samples

ROOT = Path(__file__).parents[2]


class StoreFixture:
    """Opens the store on the implementation's empty database."""

    @pytest.fixture
    def store(self, url: str) -> Iterator[Store]:
        """An open, empty store."""
        store = open_store(url)
        yield store
        store.close()

    @pytest.fixture
    def begun(self, store: Store) -> Store:
        """A store with study `s` and its pending trial 0, begun once."""
        store.create_study(samples.study())
        store.add_trial(samples.pending(0))
        store.begin_attempt("s", 0, 0)
        return store


class ProcessContract(StoreFixture):
    """Several processes and threads, and a killed process."""

    def test_four_processes_create_and_write_one_database_at_once(self, url: str) -> None:
        firsts = range(0, 4000, 1000)
        writers = [_Writer(url, "many", first, 25) for first in firsts]
        for step in ("ready", "open"):
            assert [writer.line() for writer in writers] == [step] * 4
            if step == "open":
                _create_study(url, "many")
            for writer in writers:
                writer.go()
        assert [writer.end() for writer in writers] == [(0, "")] * 4
        store = open_store(url)
        trials = store.trials("many", finished=True)
        store.close()
        assert [trial.number for trial in trials] == [first + n for first in firsts for n in range(25)]
        assert {trial.attempts for trial in trials} == {1}

    def test_four_threads_open_a_new_database_at_once(self, url: str) -> None:
        with ThreadPoolExecutor(4) as pool:
            for store in pool.map(open_store, [url] * 4):
                assert store.studies() == []
                store.close()

    def test_attempts_counted_by_many_threads_are_not_lost(self, begun: Store) -> None:
        with ThreadPoolExecutor(4) as pool:
            counted = list(pool.map(lambda _: begun.begin_attempt("s", 0, 0), range(20)))
        assert sorted(counted) == list(range(2, 22))

    def test_every_finished_trial_survives_a_killed_process(self, url: str) -> None:
        store = open_store(url)
        store.create_study(samples.study("killed"))
        reported: list[int] = []
        for first in (0, 100_000):
            writer = _Writer(url, "killed", first, 90_000)
            for step in ("ready", "open"):
                assert writer.line() == step
                writer.go()
            reported += [int(writer.line()) for _ in range(15)]
            reported += writer.kill()
        trials = store.trials("killed")
        finished = [trial for trial in trials if trial.outcome is not None]
        assert {trial.number for trial in finished} >= set(reported)
        assert all(trial.outcome == samples.success() and trial.verdict == samples.verdict() for trial in finished)
        assert len(trials) - len(finished) <= 2
        store.add_trial(samples.pending(999_999, study="killed"))
        store.close()


class SizeContract(StoreFixture):
    """Many trials."""

    def test_the_number_of_statements_does_not_depend_on_the_number_of_trials(self, store: Store) -> None:
        store.create_study(samples.study())
        counts = []
        for first, last in ((0, 3), (3, 12)):
            for number in range(first, last):
                store.add_trial(samples.pending(number))
                store.finish_trial("s", number, 0, samples.success(server=ServerFacts()), samples.verdict())
            with counted() as statements:
                trials = store.trials("s")
            assert len(trials) == last
            assert {trial.state for trial in trials} == {"ok"}
            counts.append(len(statements))
        assert counts[0] == counts[1] <= 6

    def test_a_study_s_conclusion_is_not_read_with_each_trial(self, store: Store) -> None:
        store.create_study(samples.study())
        for number in range(3):
            store.add_trial(samples.pending(number))
        with counted() as statements:
            store.trials("s")
        joined = [each for each in statements if "tuner_trials" in each and "conclusion" in each]
        assert joined == []


class counted:
    """Counts the SQL statements of every engine while it is open."""

    def __enter__(self) -> list[str]:
        self._statements: list[str] = []
        event.listen(Engine, "before_cursor_execute", self._count)
        return self._statements

    def __exit__(self, *_: object) -> None:
        event.remove(Engine, "before_cursor_execute", self._count)

    def _count(self, _connection: object, _cursor: object, statement: str, *_: object) -> None:
        self._statements.append(statement)


class _Writer:
    """A process of `store_writer`, controlled step by step."""

    def __init__(self, url: str, study: str, first: int, count: int) -> None:
        command = [sys.executable, "-m", "tests.contracts.store_writer", url, study, str(first), str(count)]
        pipe = subprocess.PIPE
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        self._process = subprocess.Popen(
            command, cwd=ROOT, env=environment, stdin=pipe, stdout=pipe, stderr=pipe, text=True
        )

    def line(self) -> str:
        """Return the next line of its output."""
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    def go(self) -> None:
        """Let the process take its next step."""
        assert self._process.stdin is not None
        self._process.stdin.write("go\n")
        self._process.stdin.flush()

    def end(self) -> tuple[int, str]:
        """Wait for its end and return its exit code and its standard error."""
        _, errors = self._process.communicate(timeout=120)
        return self._process.returncode, errors

    def kill(self) -> list[int]:
        """End it with SIGKILL and return the numbers that it had printed and that were not read yet."""
        self._process.kill()
        output, _ = self._process.communicate(timeout=30)
        return [int(line) for line in output.split()]


def _create_study(url: str, name: str) -> None:
    store = open_store(url)
    store.create_study(samples.study(name))
    store.close()
