"""The use case of `tuner capacity`: the highest request rate of one configuration, searched in one trial."""

from __future__ import annotations

import csv
import itertools
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from storage.records import Phase, TrialKind, TrialOutcome
from tuner.engines.base import EngineSettings
from tuner.engines.factory import EngineFactory
from tuner.engines.vllm.installation.executable import find_executable
from tuner.errors import SettingError
from tuner.processes.identity import own_identity
from tuner.scoring.slo import Slo
from tuner.specs import LaunchSpec, TrialSpec
from tuner.study.specification.builder import StudyPlan, plan_study
from tuner.study.specification.settings import StudySettings
from tuner.trial.pipeline import run_trial
from tuner.use_cases.devices import find_devices
from tuner.use_cases.places import home

RATES_FILE = "capacity.csv"


@dataclass(frozen=True)
class CapacityResult:
    """A capacity search that ended; `folder` has its logs and, unless it failed, the table of rates."""

    outcome: TrialOutcome
    slos: tuple[Slo, ...]
    folder: Path

    @property
    def searches(self) -> list[float | None]:
        """The capacity that each search found, in requests per second; None where no rate met the SLOs."""
        return [repeat.metrics.get("capacity") for repeat in self.outcome.repeats]

    @property
    def rates(self) -> str:
        """The table of rates as CSV text."""
        return (self.folder / RATES_FILE).read_text(encoding="utf-8")

    @property
    def is_lower_bound(self) -> bool:
        """True if every rate met the SLOs, so that the capacity may be higher."""
        return not any(row["held"] == "False" for row in csv.DictReader(self.rates.splitlines()))


def search_capacity(
    settings: StudySettings, vllm: str | None, output: Path, on_phase: Callable[[Phase], None], stop: threading.Event
) -> CapacityResult:
    """Search the highest request rate at which every SLO holds, on one server.

    Args:
        settings: model, workload, goals, server, limits and repeats are used.
        vllm: the vLLM executable; None: the one that is found.
        output: folder of searches; this one gets a new subfolder.
        on_phase: called at the start of each phase of the trial; each rate is one benchmark phase.
        stop: when set, the search ends and the server is stopped.

    Raises:
        UserError: for a setting that cannot work.
    """
    devices = find_devices(1)
    executable = os.fspath(find_executable(vllm))
    plan = plan_study(settings, on_cpu=not devices.gpus)
    if output.exists() and not output.is_dir():
        raise SettingError("output", str(output), "this is a file", "give a folder")
    folder = _new_folder(output)
    engine = EngineFactory(EngineSettings("vllm", executable, home(), driver=own_identity()))(0)
    try:
        spec = _trial(plan, folder)
        outcome = run_trial(engine, spec, stop, worker="w0", device=devices.names[0], report=on_phase)
    finally:
        engine.close()
    return CapacityResult(outcome, plan.goals.slos, folder)


def _new_folder(output: Path) -> Path:
    """Return the first of the folders 1, 2, … within `output` that does not exist: two searches never share logs."""
    return next(folder for number in itertools.count(1) if not (folder := output / str(number)).exists())


def _trial(plan: StudyPlan, folder: Path) -> TrialSpec:
    server, settings = plan.server, plan.settings
    return TrialSpec(
        study=plan.name,
        number=0,
        round=0,
        attempt=1,
        kind=TrialKind.ENQUEUED,
        config={},
        launch=LaunchSpec(
            model=plan.model,
            argv=(),
            base_argv=server.arguments,
            environment=dict(server.environment),
        ),
        workload=plan.workload,
        repeats=settings.search.repeats,
        artifacts=folder,
        limits=settings.limits,
        capacity_slos=plan.goals.slos,
    )
