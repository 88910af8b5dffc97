"""The contract of every executor; the test class of each implementation supplies `make`."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from records.trials import Failure, FailureKind, Phase, TrialKind
from tests.fakes.stub_engine import StubEngine
from tuner.engines.base import Engine
from tuner.executors.base import Executor, Finished
from tuner.specs import LaunchSpec, ModelRef, TrialSpec
from tuner.workloads.spec import ClosedLoop

DEADLINE_S = 60.0

Make = Callable[[Callable[[int], Engine], int], Executor]


def figures(spec: TrialSpec, index: int) -> dict[str, float | None] | Failure:
    """Throughput is a hundred times the trial's number; 7 fails, 8 raises an untyped exception."""
    if spec.number == 7:
        return Failure(FailureKind.OUT_OF_MEMORY_STARTUP, Phase.READY, "out of memory")
    if spec.number == 8:
        raise ZeroDivisionError("a bug of ours")
    return {"output_throughput": 100.0 * spec.number, "success_rate": 1.0}


@dataclass(frozen=True)
class StubFactory:
    """Builds stub engines; with `held`, a benchmark lasts until the file exists."""

    held: Path | None = None

    def __call__(self, slot: int) -> Engine:
        return StubEngine(figures, _FileEvent(self.held) if self.held is not None else None)  # type: ignore[arg-type]


@dataclass(frozen=True)
class _FileEvent:
    path: Path

    def is_set(self) -> bool:
        return self.path.exists()


def spec(folder: Path, number: int, attempt: int = 1) -> TrialSpec:
    return TrialSpec(
        study="s",
        number=number,
        round=0,
        attempt=attempt,
        kind=TrialKind.SEARCH,
        config={},
        launch=LaunchSpec(ModelRef("m", "m", "m"), ("--x", "1")),
        workload=ClosedLoop(num_prompts=10),
        repeats=2,
        artifacts=folder / str(number),
    )


def wait_until_started(executor: Executor, count: int | None = None) -> None:
    """Wait until `count` workers have started; None: all."""
    count = executor.slots if count is None else count
    deadline = time.monotonic() + DEADLINE_S
    while executor.slots - len(executor.starting()) < count:
        assert time.monotonic() < deadline
        executor.wait_any(1.0)


def started(make: Make, factory: Callable[[int], Engine], slots: int) -> Executor:
    executor = make(factory, slots)
    wait_until_started(executor)
    assert executor.idle() == list(range(slots))
    return executor


def gather(executor: Executor, count: int) -> list[Finished]:
    """Wait until `count` trials have ended."""
    found: list[Finished] = []
    deadline = time.monotonic() + DEADLINE_S
    while len(found) < count and time.monotonic() < deadline:
        found += executor.wait_any(1.0)
    return found


class ExecutorContract:
    """Tests of one implementation; a subclass defines the fixture `make`."""

    @pytest.fixture
    def make(self) -> Iterator[Make]:
        raise NotImplementedError

    def test_a_trial_returns_its_outcome(self, make: Make, tmp_path: Path) -> None:
        executor = started(make, StubFactory(), 1)
        assert executor.engine_info().version == "0.0+stub"
        assert executor.wait_any(0.0) == []
        assert executor.fits(0, 2)  # workers without GPUs: a server of two ranks, too
        executor.submit(spec(tmp_path, 3), 0)
        [finished] = gather(executor, 1)
        assert finished.slot == 0
        assert finished.spec.uid == "3"
        assert finished.outcome.succeeded
        assert [repeat.seed for repeat in finished.outcome.repeats] == [1000, 1001]
        assert finished.outcome.metric("output_throughput") == 300.0
        assert finished.outcome.server is not None
        assert finished.outcome.server.kv_cache_tokens == 1234
        assert [path.name for path in (tmp_path / "3").iterdir()] == ["server.log"]
        assert executor.idle() == [0]

    def test_slots_work_at_the_same_time_and_take_one_trial_each(self, make: Make, tmp_path: Path) -> None:
        gate = tmp_path / "go"
        executor = started(make, StubFactory(gate), 2)
        executor.submit(spec(tmp_path, 1), 0)
        executor.submit(spec(tmp_path, 2), 1)
        assert executor.idle() == []
        assert executor.wait_any(0.2) == []
        assert [state.trial for state in executor.states()] == ["1", "2"]
        with pytest.raises(ValueError, match="slot 0 is busy"):
            executor.submit(spec(tmp_path, 3), 0)
        with pytest.raises(ValueError, match="slot 5"):
            executor.submit(spec(tmp_path, 3), 5)
        gate.touch()
        assert {f.spec.number: f.slot for f in gather(executor, 2)} == {1: 0, 2: 1}

    def test_a_failure_is_an_outcome_and_the_worker_survives(self, make: Make, tmp_path: Path) -> None:
        executor = started(make, StubFactory(), 1)
        kinds, messages = [], []
        for number in (7, 8):
            executor.submit(spec(tmp_path, number), 0)
            [finished] = gather(executor, 1)
            assert finished.outcome.failure is not None
            kinds.append(finished.outcome.failure.kind)
            messages.append(finished.outcome.failure.message)
        assert kinds == [FailureKind.OUT_OF_MEMORY_STARTUP, FailureKind.TUNER_ERROR]
        assert "ZeroDivisionError" in messages[1]
        executor.submit(spec(tmp_path, 1), 0)
        assert gather(executor, 1)[0].outcome.succeeded

    def test_cancel_returns_every_running_trial_and_close_ends_one(self, make: Make, tmp_path: Path) -> None:
        executor = started(make, StubFactory(tmp_path / "never"), 2)
        executor.submit(spec(tmp_path, 1), 0)
        executor.submit(spec(tmp_path, 2), 1)
        executor.cancel()
        kinds = [f.outcome.failure.kind if f.outcome.failure else None for f in gather(executor, 2)]
        assert kinds == [FailureKind.CANCELLED] * 2
        (tmp_path / "never").touch()
        executor.submit(spec(tmp_path, 3), 1)
        assert gather(executor, 1)[0].outcome.succeeded
        (tmp_path / "never").unlink()
        executor.submit(spec(tmp_path, 4), 0)
        executor.close()
        executor.close()
