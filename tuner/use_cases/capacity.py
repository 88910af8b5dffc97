"""The use case of `tuner capacity`: the highest request rate of one configuration, searched in one trial."""

from __future__ import annotations

import csv
import threading
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from records.trials import RATES_FILE, Phase, TrialKind, TrialOutcome
from tuner.engines.base import EngineInfo, EngineSettings
from tuner.engines.factory import EngineFactory
from tuner.engines.simulator.prediction import Platform
from tuner.scoring.goals import Slo
from tuner.settings.study import StudySettings
from tuner.specs import LaunchSpec, TrialSpec
from tuner.study.specification.plan import StudyPlan, gpus_of_trial, plan_study
from tuner.study.specification.resolve_workload import study_price
from tuner.trial.pipeline import run_trial
from tuner.use_cases.engines import check_models, chosen_engine, names_of, refuse_unsimulated_arguments
from tuner.use_cases.places import new_folder
from tuner.use_cases.simulate import split_advice
from tuner.workloads.traffic import Traffic


@dataclass(frozen=True)
class CapacityResult:
    """A capacity search that ended.

    Attributes:
        outcome: what was measured or why it failed.
        slos: the bounds that a rate has to keep.
        folder: its logs and, unless it failed, the table of rates.
        requests_per_arrival: requests of each arrival: of a session several, else 1.
        advice: over how many GPUs a model fits whose simulated server lacks memory, as the end of a message.
    """

    outcome: TrialOutcome
    slos: tuple[Slo, ...]
    folder: Path
    requests_per_arrival: float = 1.0
    advice: str = ""

    @property
    def searches(self) -> list[float | None]:
        """The capacity that each search found, in requests per second; None where no rate met the SLOs."""
        return [repeat.metrics.get("capacity") for repeat in self.outcome.repeats]

    @property
    def file(self) -> Path:
        """The table of rates, as CSV."""
        return self.folder / RATES_FILE

    @property
    def missed(self) -> list[float]:
        """The rates at which an SLO was missed, in requests per second."""
        with self.file.open(encoding="utf-8", newline="") as file:
            return [float(row["rate"]) for row in csv.DictReader(file) if row["held"] == "False"]

    @property
    def is_lower_bound(self) -> bool:
        """True if every rate met the SLOs, so that the capacity may be higher."""
        return not self.missed


class CapacityObserver(Protocol):
    """Receives the events of a search, in order."""

    def opened(self, engine: EngineInfo, hardware: str) -> None:
        """The settings are checked and the search begins, on hardware of this name."""

    def phase(self, phase: Phase) -> None:
        """A phase of the trial begins; each rate is one benchmark phase."""


def search_capacity(settings: StudySettings, observer: CapacityObserver, stop: threading.Event) -> CapacityResult:
    """Search the highest request rate at which every SLO holds, on one server; `output` gets a subfolder of its own.

    Raises:
        UserError: for a setting that cannot work.
    """
    engine_settings, devices = chosen_engine(replace(settings, workers=1))
    simulated = engine_settings.card is not None
    on_cpu = not devices.gpus and not simulated
    plan = plan_study(settings, names_of(settings), on_cpu=on_cpu, simulated=simulated)
    if simulated:
        refuse_unsimulated_arguments(plan, engine_settings)
    check_models(plan, engine_settings)
    folder = new_folder(Path(settings.output))
    engine = EngineFactory(replace(engine_settings, secrets=plan.secrets))(0)
    try:
        observer.opened(engine.info(), devices.profile.name if devices.each == 1 else devices.names[0])
        price = study_price(None, devices.profile, plan.goals, engine.info().provenance)
        trial = _trial(plan, folder)
        used = trial.launch.gpus(trial.gpus)
        spec = replace(trial, price_per_hour=None if price is None else price.per_gpu_hour * used)
        outcome = run_trial(engine, spec, stop, worker="w0", device=devices.names[0], report=observer.phase)
    finally:
        engine.close()
    load = plan.workload
    each = load.requests_per_arrival if isinstance(load, Traffic) else 1.0
    return CapacityResult(outcome, plan.goals.slos, folder, each, _advice(plan, engine_settings, outcome))


def _advice(plan: StudyPlan, engine: EngineSettings, outcome: TrialOutcome) -> str:
    """Return the end of a failure's message if the simulated server lacks memory; see `split_advice`."""
    if engine.card is None or outcome.failure is None or not outcome.failure.kind.lacks_memory:
        return ""
    assert engine.version is not None
    assert plan.shape is not None  # `refuse_unsimulated_arguments` has read it
    site = Platform.simulated(engine.card, engine.version, engine.gpus)
    return split_advice(site, plan.server.arguments, plan.server.environment, plan.shape)


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
            command=server.command,
            folder=server.folder,
        ),
        workload=plan.workload,
        repeats=settings.repeats,
        artifacts=folder,
        limits=plan.limits,
        capacity_slos=plan.goals.slos,
        gpus=gpus_of_trial(settings),
    )
