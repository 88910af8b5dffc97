"""The use case of `tuner optimize`: a study from its settings to its result and its script."""

from __future__ import annotations

import os
import shlex
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from records.measured import REFERENCES
from records.trials import Provenance, TrialRecord
from search_spaces.argv import has_random_weights
from storage import Store, normalise_url, open_store
from storage.waiting import DatabaseWait
from tuner.cancellation import Wishes
from tuner.clock import RealClock
from tuner.engines.base import EngineInfo, EngineSettings
from tuner.engines.factory import EngineFactory
from tuner.engines.kind import EngineKind, Feature
from tuner.engines.kinds import kind_of
from tuner.engines.server.devices import OWN_VARIABLES
from tuner.errors import SettingError, UserError
from tuner.executors import ray_environment
from tuner.executors.base import CheckedExecutor, Executor, InlineExecutor
from tuner.files import home
from tuner.gpu import SlowdownWatch, load_warning
from tuner.gpu import devices as gpu_devices
from tuner.observers.fan_out import FanOut
from tuner.observers.host_learning import HostLearner, learned_host, this_host
from tuner.observers.mlflow_follower import MlflowFollower, unreachable
from tuner.processes.secrets import mask_url_passwords
from tuner.quality.harness import HarnessTask
from tuner.quality.task import Task
from tuner.results import text
from tuner.settings.study import StudySettings
from tuner.study.alternatives import front_of_study
from tuner.study.protocols import MlflowLacks, StudyObserver, StudyStart
from tuner.study.run import RunResult, open_study, run_study
from tuner.study.simulator_prior import hardly_met_slos
from tuner.study.source_studies import SourceStudy, source_studies
from tuner.study.specification.builder import build_spec, with_stored_parameters
from tuner.study.specification.plan import StudyPlan, plan_study
from tuner.study.specification.spec import Budget, StudySpec, with_stored_settings
from tuner.study.study_folder import refuse_running, study_lock
from tuner.use_cases.answers import answer_check, check_of_winner, quality_task
from tuner.use_cases.devices import Devices, leave_cluster, this_machine
from tuner.use_cases.engines import (
    check_models,
    chosen_engine,
    names_of,
    refuse_unsimulated_arguments,
    with_plan,
)
from tuner.use_cases.files import check_disk, check_output, write_files
from tuner.use_cases.places import artifacts_folder, database_url, storage_url, tracking_uri
from tuner.use_cases.would_help import would_help


@dataclass(frozen=True)
class OptimizeResult:
    """A run that ended.

    `records` are all trials of the study. `script` is that of the winner, or of the trial that is nearest to the SLOs;
    None without either. `tracking_uri` is MLflow's, and `mlflow_lacks` says what MLflow lacks. `check` is the command
    that compares the winner's answers with those of the unquantized model; None where none may differ, or where they
    were compared. `report` is the HTML file; None without a conclusion, or if it could not be written.
    """

    spec: StudySpec
    engine: EngineInfo
    run: RunResult
    records: tuple[TrialRecord, ...]
    script: Path | None
    tracking_uri: str
    mlflow_lacks: MlflowLacks
    check: str | None = None
    report: Path | None = None

    @property
    def has_result(self) -> bool:
        """Whether the study has a winner, or keeps the defaults, by the rounds that its settings include."""
        conclusion, confirmation = self.run.conclusion, self.spec.confirmation
        if conclusion is None or conclusion.winner is None:
            return False
        return conclusion.confirmed or not (confirmation.confirm_rounds and confirmation.baseline_repeats)


def optimize(
    settings: StudySettings,
    observer: StudyObserver,
    wishes: Wishes,
    permit: Callable[[StudySpec], None] = lambda spec: None,
    measured: Callable[[], None] = lambda: None,
) -> OptimizeResult:
    """Run or resume a study, and write the script of its winner.

    Every setting is checked before anything is written.

    Args:
        settings: settings of the study and of this run.
        observer: receives the study's events.
        wishes: end the run early; the study is saved.
        permit: raises a `UserError` for a study that may not run, before any of its servers starts.
        measured: called when the devices are free; the script, the report and MLflow need none.

    Raises:
        UserError: for a setting that cannot work.
    """
    budget = Budget.of(settings)
    engine_settings, devices = chosen_engine(settings)
    if devices.idle:
        observer.note(f"{devices.idle} of the GPUs are idle: each trial needs {devices.each}")
    simulated = engine_settings.card is not None
    with ExitStack() as stack:
        if settings.ray_address is not None:
            stack.callback(leave_cluster)
        names, on_cpu = names_of(settings), not devices.gpus and not simulated
        plan = plan_study(settings, names, on_cpu=on_cpu, simulated=simulated, card=devices.profile.key)
        here = not simulated and settings.ray_address is None
        task = quality_task(plan.goals.slos, settings.quality_task, names, len(devices.names), here=here)
        artifacts = artifacts_folder(database_url(settings.storage))
        if settings.learn_from:
            storage_url(settings.storage, create=False)  # source studies need a database that exists
        check_disk(artifacts.parent)
        check_output(Path(settings.output), plan.name)
        check_models(plan, engine_settings)
        wait = DatabaseWait(observer.note, wishes.stop)
        server = _database_server(settings.storage, wait)
        refuse_running(database_url(settings.storage), plan.name)
        held = stack.enter_context(ExitStack())  # released after the executor has stopped its servers
        checked = with_plan(engine_settings, plan)
        executor = _executor(checked, devices, settings.ray_address)
        stack.callback(executor.close)
        engine = executor.engine_info()
        spec = _with_facts(build_spec(plan, engine, devices.profile, artifacts), task, devices)
        if simulated:
            refuse_unsimulated_arguments(plan, engine_settings)
        url = storage_url(settings.storage, create=True)
        store = server or open_store(url, wait)
        stack.callback(store.close)
        spec = _with_stored(plan, spec, engine, devices, store)
        sources = source_studies(store, spec, engine)
        permit(spec)
        runner = _checked(executor, spec, task, checked, store, observer, wishes.stop, stack)
        store.check_before_writes(held.enter_context(study_lock(url, spec.name)).check)
        spec.artifacts.mkdir(parents=True, exist_ok=True)
        open_study(store, spec, engine, list(devices.names), RealClock())
        return _run(plan, spec, engine, sources, budget, store, url, runner, observer, wishes, measured)


def _with_facts(spec: StudySpec, task: Task | HarnessTask | None, devices: Devices) -> StudySpec:
    """Return the spec with the digest of the questions, this machine, and the drivers of the GPUs."""
    spec = spec if task is None else replace(spec, quality_task=task.digest)
    drivers = {"drivers": list(devices.drivers)} if devices.drivers else {}
    return replace(spec, facts={**spec.facts, "machines": [this_machine()], **drivers})


def _with_stored(plan: StudyPlan, spec: StudySpec, engine: EngineInfo, devices: Devices, store: Store) -> StudySpec:
    """Return the spec with what the database fixes or tells: settings of the first run, and lessons of the hosts."""
    spec = with_stored_settings(with_stored_parameters(plan, spec, engine, store), store)
    return replace(spec, learned=learned_host(store, spec, engine, devices.hosts or (this_host(),)))


def _checked(
    executor: Executor,
    spec: StudySpec,
    task: Task | HarnessTask | None,
    settings: EngineSettings,
    store: Store,
    observer: StudyObserver,
    stop: threading.Event,
    stack: ExitStack,
) -> Executor:
    """Return the executor; with questions, it runs only configurations that keep the answers."""
    if task is None:
        return executor
    device = executor.states()[0].device
    return CheckedExecutor(executor, answer_check(spec, task, settings, device, store, observer.note, stop, stack))


def _run(
    plan: StudyPlan,
    spec: StudySpec,
    engine: EngineInfo,
    sources: Sequence[SourceStudy],
    budget: Budget,
    store: Store,
    url: str,
    executor: Executor,
    observer: StudyObserver,
    wishes: Wishes,
    measured: Callable[[], None],
) -> OptimizeResult:
    """Run the study and MLflow's follower, and write the script of the winner and the report."""
    observer.opened(StudyStart(spec, budget, engine, executor.slots, tuple(store.trials(spec.name))))
    if spec.learned is not None:
        observer.note(f"predictions are corrected by {text.learned(spec.learned.to_dict())}")
    for line in hardly_met_slos(spec, engine):
        observer.note(line)
    uri = tracking_uri(url)
    follower = _follow(spec, store, url, uri, observer)
    learner = HostLearner(store, spec, engine, observer.note, wishes.stop)
    every = FanOut(observer, follower, learner)

    def free_devices() -> None:
        executor.close()
        measured()

    try:
        with _disturbances(plan.settings, engine, observer):
            result = run_study(
                *(spec, engine, budget, store, url, executor, every, wishes),
                sources=sources,
                learned=learner.learned,
                measured=free_devices,
            )
        result = _completed(result, plan, spec, engine, store)
        script, report = write_files(
            result, spec.name, store, url, Path(plan.settings.output), spec.artifacts, observer.note
        )
        lacks = follower.wait(wishes.at_once if wishes.stop.is_set() else wishes.stop)
    finally:
        learner.close()
        follower.close()
    records, check = tuple(store.trials(spec.name)), check_of_winner(store, spec.name)
    return OptimizeResult(spec, engine, result, records, script, uri, lacks, check, report)


def _not_inherited(settings: StudySettings, kind: EngineKind) -> list[str]:
    """Return the variables of this process that would set the engine's servers, and that the study does not name."""
    named = {*OWN_VARIABLES, *settings.env}
    arguments = " ".join(settings.server_arguments)
    found = (name for name in os.environ if name.startswith(kind.variables) and name not in named)
    return sorted(name for name in found if f"${{{name}}}" not in arguments)


@contextmanager
def _disturbances(settings: StudySettings, engine: EngineInfo, observer: StudyObserver) -> Iterator[None]:
    """Say what disturbs a study: random weights, variables that servers lack, other work here, GPUs with low clocks."""
    if has_random_weights(settings.server_arguments) and engine.provenance is Provenance.MEASURED:
        observer.note(
            "weights are random (--load-format dummy): what quantization and drafts gain with them is not what they "
            "gain with real weights"
        )
    here = engine.provenance is Provenance.MEASURED and settings.ray_address is None
    if here and (dropped := _not_inherited(settings, kind_of(engine.name))):
        observer.note(
            f"servers do not inherit {', '.join(dropped)} from this shell; give variables in the study's `env`"
        )
    if here and (loaded := load_warning()) is not None:
        observer.note(loaded)
    with SlowdownWatch([device.index for device in gpu_devices()] if here else []) as watch:
        yield
    for line in watch.warnings():
        observer.note(line)


def _completed(result: RunResult, plan: StudyPlan, spec: StudySpec, engine: EngineInfo, store: Store) -> RunResult:
    """Return the result, whose conclusion has the front and, where a search kept the reference, what would help."""
    conclusion, study = result.conclusion, store.study(spec.name)
    if conclusion is None or conclusion.winner is None or study is None:
        return result
    records = store.trials(spec.name)
    with suppress(UserError):  # a study of a single metric has no front
        conclusion = replace(conclusion, front=front_of_study(study, records).to_dict())
    kept = next(record for record in records if record.number == conclusion.winner and not record.round)
    if conclusion.keeps is not None and not all(record.kind in REFERENCES for record in records if not record.round):
        lines = would_help(plan, spec, engine, kept.config)
        conclusion = replace(conclusion, would_help=lines)
    store.update_study(spec.name, conclusion=conclusion.to_dict())
    return replace(result, conclusion=conclusion)


def _follow(spec: StudySpec, store: Store, url: str, uri: str, observer: StudyObserver) -> MlflowFollower:
    """Start MLflow's follower; report a server that does not answer, which does not stop the study."""
    if (reason := unreachable(uri)) is not None:
        shown = mask_url_passwords(uri)
        sync = f"`tuner study sync {shlex.quote(spec.name)}`"
        observer.note(f"MLflow at {shown} does not answer ({reason}); {sync} logs the trials once it does")
    return MlflowFollower(store, url, spec.name, uri, spec.artifacts / "mlflow.log", observer.synced)


def _database_server(storage: str | None, wait: DatabaseWait) -> Store | None:
    """Open a database server, so that an unreachable server is an error before anything starts.

    Return None for a SQLite file: it is created later, when all settings are checked. Its folder must exist.
    """
    if storage is None:
        return None
    url = normalise_url(storage)
    if not url.startswith("sqlite"):
        return open_store(url, wait)
    folder = Path(url.removeprefix("sqlite:///")).resolve().parent
    if not folder.is_dir():
        raise SettingError("storage", storage, f"there is no folder {folder}", "make it first")
    return None


def _executor(settings: EngineSettings, devices: Devices, ray_address: str | None) -> Executor:
    """Return a pool of Ray workers, one for each device; a simulation runs in this process."""
    if settings.card is not None:
        return InlineExecutor(EngineFactory(settings), len(devices.names), devices.names[0])
    ray_environment.set_ray_environment(ray_address)
    from tuner.executors.ray_pool import RayExecutor  # Ray reads its variables at its import

    return RayExecutor(
        EngineFactory(settings),
        list(devices.names),
        gpus=devices.each if devices.gpus else 0,
        nodes=devices.nodes,
        provenance=Provenance.MEASURED,
        records=home() / "ray",
        address=ray_address,
        beside=all(_counts_gpus(each.name) for each in (settings, *settings.others)),
    )


def _counts_gpus(engine: str) -> bool:
    """Return whether the flags of a server say how many GPUs it uses; a user's command does not."""
    kind = kind_of(engine)
    return kind.program is not None and kind.can(Feature.SEVERAL_GPUS)
