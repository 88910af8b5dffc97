"""A study on a stub engine: real Optuna, real SQLite, no server."""

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from records.trials import Failure, TrialRecord
from search_spaces import Context, hardware_named, load_space
from storage import Store, normalise_url, open_store
from storage.waiting import DatabaseWait
from tests.empty_database import write_empty_database
from tests.fakes.stub_engine import Landscape, StubEngine
from tuner.cancellation import Wishes
from tuner.clock import Clock
from tuner.engines.base import EngineInfo
from tuner.executors.base import InlineExecutor
from tuner.settings.study import ConfirmationSettings, SearchSettings
from tuner.specs import ModelRef, TrialSpec
from tuner.study.protocols import StagePlan, StudyObserver
from tuner.study.run import RunResult, open_study, run_study
from tuner.study.source_studies import source_studies
from tuner.study.specification.resolve_workload import make_goals
from tuner.study.specification.spec import Budget, ServerSettings, StudySpec, with_stored_settings
from tuner.workloads.spec import ClosedLoop

SPACE = """
description: two knobs for tests
parameters:
  max_num_seqs: {description: d, type: int, low: 1, high: 64, log: true, flag: --max-num-seqs, engine_default: 32}
  block_size: {description: d, type: categorical, choices: [16, 32, 64], flag: --block-size}
"""


PLAIN = Context(
    hardware=hardware_named("cpu"),
    engine_version=None,
    flags=None,
    model=None,
    packages=None,
    concurrency=10,
    input_len=8,
    output_len=8,
)
"""A machine without a GPU; engine and model are unknown."""


@dataclass
class Notes(StudyObserver):
    """An observer that records the events."""

    finished_trials: list[TrialRecord] = field(default_factory=list)
    retried_trials: list[tuple[str, Failure]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    stages: list[StagePlan] = field(default_factory=list)
    on_finished: Callable[[TrialRecord], None] | None = None

    def stage(self, plan: StagePlan) -> None:
        self.stages.append(plan)

    def finished(self, record: TrialRecord) -> None:
        self.finished_trials.append(record)
        if self.on_finished is not None:
            self.on_finished(record)

    def retried(self, spec: TrialSpec, failure: Failure) -> None:
        self.retried_trials.append((spec.uid, failure))

    def note(self, text: str) -> None:
        self.notes.append(text)


@dataclass
class Bench:
    """One study in a folder; `run` runs it like the command line does."""

    folder: Path
    space_file: Path
    listener: Notes = field(default_factory=Notes)
    engines: list[StubEngine] = field(default_factory=list)
    stop: threading.Event = field(default_factory=threading.Event)
    wishes: Wishes | None = None
    database: str | None = None
    wait: DatabaseWait | None = None

    @property
    def url(self) -> str:
        return normalise_url(self.database or str(self.folder / "t.db"))

    def spec(self, **changes: Any) -> StudySpec:
        """Return the study with some fields changed; those of its search and confirmation by their own names."""
        space = load_space(self.space_file)
        names = ("finalists", "confirm_rounds", "baseline_repeats", "reduce")
        confirmation = {"reduce": False, **{name: changes.pop(name) for name in names if name in changes}}
        search = {name: changes.pop(name) for name in ("seed", "sampler", "learn_from", "repeats") if name in changes}
        values: dict[str, Any] = {
            "name": "s",
            "model": ModelRef("m", "m", "m"),
            "workload": ClosedLoop(max_concurrency=10, num_prompts=100, input_len=8, output_len=8),
            "space": space.resolve(PLAIN),
            "goals": make_goals(["output_throughput", "p99_tpot_ms"], ["p99_tpot_ms<50", "success_rate>=1"]),
            "server": ServerSettings(),
            "artifacts": self.folder / "artifacts",
            "search": SearchSettings(**{"seed": 3, **search}),
            "confirmation": ConfirmationSettings(**confirmation),
        }
        return StudySpec(**{**values, **changes})

    def store(self) -> Store:
        return open_store(self.url, self.wait)

    def run(self, landscape: Landscape, trials: int = 8, slots: int = 1, **changes: Any) -> RunResult:
        self.engines = []

        def make(_: int) -> StubEngine:
            engine = StubEngine(landscape)
            self.engines.append(engine)
            return engine

        spent = {name: changes.pop(name) for name in ("timeout_s", "min_gain", "ablate") if name in changes}
        budget = Budget(trials, **spent)
        clock: Clock | None = changes.pop("clock", None)
        executor = InlineExecutor(make, slots)
        store = self.store()
        try:
            info: EngineInfo = executor.engine_info()
            spec = with_stored_settings(self.spec(**changes), store)
            sources = source_studies(store, spec, info)
            from tuner.clock import RealClock

            open_study(store, spec, info, ["cpu"] * slots, RealClock())
            wishes = self.wishes or Wishes(self.stop)
            return run_study(
                spec, info, budget, store, self.url, executor, self.listener, wishes, clock, sources=sources
            )
        finally:
            executor.close()
            store.close()

    def records(self) -> list[TrialRecord]:
        store = self.store()
        try:
            return store.trials("s")
        finally:
            store.close()


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    write_empty_database(tmp_path / "t.db")
    file = tmp_path / "two.yaml"
    file.write_text(SPACE)
    return Bench(tmp_path, file)
