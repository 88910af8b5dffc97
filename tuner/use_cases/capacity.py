"""The use case of `tuner capacity`: the highest request rate of one configuration, searched in one trial."""

from __future__ import annotations

import csv
import itertools
import os
import threading
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from records.trials import Phase, TrialKind, TrialOutcome
from search_spaces.schema import VLLM
from tuner.engines.base import EngineInfo, EngineSettings
from tuner.engines.factory import EngineFactory
from tuner.engines.vllm.toolbox import check_prompts, find_executable
from tuner.errors import SettingError
from tuner.processes.family import own_identity
from tuner.scoring.goals import Slo
from tuner.settings.study import StudySettings
from tuner.specs import LaunchSpec, TrialSpec
from tuner.study.specification.builder import StudyPlan, limits_of, plan_study
from tuner.study.specification.resolve_workload import study_price
from tuner.study.specification.settings import gpus_of_trial
from tuner.trial.pipeline import run_trial
from tuner.use_cases.devices import Devices, find_devices, grouped
from tuner.use_cases.engines import check_command, check_tokenizer, named_engine, study_engine
from tuner.use_cases.places import home
from tuner.use_cases.simulate import (
    check_engine_name,
    refuse_simulation_options,
    refuse_unsimulated_arguments,
    simulated_engine,
    wants_simulation,
)

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


class CapacityObserver(Protocol):
    """Receives the events of a search, in order."""

    def opened(self, engine: EngineInfo, hardware: str) -> None:
        """The settings are checked and the search begins, on hardware of this name."""

    def phase(self, phase: Phase) -> None:
        """A phase of the trial begins; each rate is one benchmark phase."""


def search_capacity(settings: StudySettings, observer: CapacityObserver, stop: threading.Event) -> CapacityResult:
    """Search the highest request rate at which every SLO holds, on one server.

    Args:
        settings: those of a study; `output` is the folder of searches, in which this one gets a new subfolder.
        observer: receives the events.
        stop: when set, the search ends and the server is stopped.

    Raises:
        UserError: for a setting that cannot work.
    """
    check_command(settings)
    engine_settings, devices = _engine(settings, gpus_of_trial(settings))
    simulated = engine_settings.card is not None
    engine_name = study_engine(engine_settings)
    on_cpu = not devices.gpus and not simulated
    plan = plan_study(settings, on_cpu=on_cpu, simulated=simulated, engine=engine_name)
    if simulated:
        refuse_unsimulated_arguments(plan, engine_settings)
    if engine_name == VLLM and engine_settings.executable is not None:
        check_prompts(plan.workload, Path(engine_settings.executable), plan.model.tokenizer)
    check_tokenizer(plan)
    output = Path(settings.output)
    if output.exists() and not output.is_dir():
        raise SettingError("output", str(output), "this is a file", "give a folder")
    folder = _new_folder(output)
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
    return CapacityResult(outcome, plan.goals.slos, folder)


def _engine(choice: StudySettings, gpus: int) -> tuple[EngineSettings, Devices]:
    """Return the engine and its devices: vLLM with GPUs or a given executable, else a simulated one."""
    check_engine_name(choice.engine)
    named = named_engine(replace(choice, workers=1), gpus)
    if named is not None:
        return named
    if wants_simulation(choice.engine, choice.vllm, choice.gpu):
        simulated, devices = simulated_engine(choice.gpu, choice.vllm_version, choice.preset, None)
        return replace(simulated, gpus=gpus), grouped(devices, gpus)
    refuse_simulation_options(choice.gpu, choice.vllm_version)
    devices = find_devices(1, gpus)
    executable = os.fspath(find_executable(choice.vllm))
    return EngineSettings("vllm", executable, home(), driver=own_identity(), gpus=devices.each), devices


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
            command=server.command,
            folder=server.folder,
        ),
        workload=plan.workload,
        repeats=settings.repeats,
        artifacts=folder,
        limits=limits_of(settings),
        capacity_slos=plan.goals.slos,
        gpus=gpus_of_trial(settings),
    )
