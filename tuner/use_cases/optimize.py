"""The use case of `tuner optimize`: a study from its settings to its result and its script."""

from __future__ import annotations

import os
import shutil
import threading
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from storage import Store, normalise_url, open_store
from storage.records import Provenance, TrialRecord
from tuner.clock import RealClock
from tuner.engines.base import EngineInfo, EngineSettings
from tuner.engines.factory import ENGINES, EngineFactory
from tuner.errors import UserError
from tuner.executors import ray_environment
from tuner.executors.base import Executor
from tuner.executors.inline import InlineExecutor
from tuner.observers.fan_out import FanOut
from tuner.observers.mlflow_follower import MlflowFollower, unreachable
from tuner.processes.identity import Identity, own_identity
from tuner.study.builder import Request, draft, finish, resolve
from tuner.study.protocols import StudyObserver, StudyStart
from tuner.study.run import RunResult, as_begun, open_study, refuse_running, run_study, study_lock
from tuner.study.source_studies import source_studies
from tuner.study.spec import Budget, StudySpec
from tuner.use_cases.devices import Devices, find_devices
from tuner.use_cases.export import write_script
from tuner.use_cases.places import FOLDER, home, storage_url, tracking_uri
from tuner.use_cases.simulated_engine import refuse_simulation_options, simulated_engine, wants_simulation

MINIMUM_FREE_BYTES = 500 * 1024 * 1024


@dataclass(frozen=True)
class RunOptions:
    """Settings of one run, which may differ when the study goes on."""

    engine: str
    vllm: str | None
    gpu: str | None
    vllm_version: str | None
    workers: int | None
    warm_start: bool
    ray_address: str | None
    storage: str | None
    output: Path


@dataclass(frozen=True)
class OptimizeResult:
    """A run that ended.

    `records` are all trials of the study, `script` is the winner's script, None without a winner. `tracking_uri` is
    MLflow's, and `mlflow_complete` is False when MLflow lacks trials.
    """

    spec: StudySpec
    engine: EngineInfo
    run: RunResult
    records: tuple[TrialRecord, ...]
    script: Path | None
    tracking_uri: str
    mlflow_complete: bool


def optimize(
    request: Request, budget: Budget, options: RunOptions, observer: StudyObserver, stop: threading.Event
) -> OptimizeResult:
    """Run a study and write the script of its winner; go on where an earlier run stopped.

    Every setting is checked before anything is written.

    Args:
        request: settings of the study.
        budget: what this run may spend.
        options: settings of this run.
        observer: receives the study's events.
        stop: when set, the run ends: running servers are stopped and the study is saved.

    Raises:
        UserError: for a setting that cannot work.
    """
    if options.engine not in ENGINES:
        raise UserError(f"--engine {options.engine!r}: there is none of that name; engines: {', '.join(ENGINES)}")
    if budget.trials < 1:
        raise UserError(f"--trials {budget.trials}: at least 1 is needed (the defaults)")
    settings, devices = _engine(request, options)
    simulated = settings.card is not None
    plan = draft(request, on_cpu=not devices.gpus and not simulated, simulated=simulated)
    resolve(plan, None, devices.profile)  # finds names that are in no space before anything is started
    folder = _folder(options.storage)
    if request.learn_from:
        storage_url(options.storage, create=False)  # a source study needs a database that exists
    refuse_running(folder / "artifacts" / plan.name, plan.name)
    _check_disk(folder)
    _check_output(options.output)
    with ExitStack() as stack:
        reached = _reach_database(options.storage)
        executor = _executor(settings, devices, options)
        stack.callback(executor.close)
        info = executor.engine_info()
        spec = finish(plan, info, devices.profile, folder / "artifacts")
        url = storage_url(options.storage, create=True)
        store = reached or open_store(url)
        stack.callback(store.close)
        source_studies(store, as_begun(spec, store), info)  # refuses a source study before this study is created
        stack.enter_context(study_lock(spec.artifacts, spec.name))
        spec = as_begun(spec, store)
        open_study(store, spec, info, list(devices.names), RealClock())
        return _run(spec, budget, store, url, executor, options.output, observer, stop)


def _run(
    spec: StudySpec,
    budget: Budget,
    store: Store,
    url: str,
    executor: Executor,
    output: Path,
    observer: StudyObserver,
    stop: threading.Event,
) -> OptimizeResult:
    """Run the study with MLflow beside it, and write the script of its winner."""
    engine = executor.engine_info()
    observer.opened(StudyStart(spec, budget, engine, executor.slots, tuple(store.trials(spec.name))))
    uri = tracking_uri(url)
    follower = _follow(spec, store, url, uri, observer)
    try:
        result = run_study(spec, budget, store, url, executor, FanOut(observer, follower), stop)
        script = _script(result, spec, store, output)
        # An interrupted study has set `stop`; only a second Ctrl-C skips the wait then.
        logged = follower.wait(threading.Event() if stop.is_set() else stop)
    finally:
        follower.close()
    return OptimizeResult(spec, engine, result, tuple(store.trials(spec.name)), script, uri, logged)


def _follow(spec: StudySpec, store: Store, url: str, uri: str, observer: StudyObserver) -> MlflowFollower:
    """Start MLflow's follower; report a server that does not answer, without which the study runs all the same."""
    if (reason := unreachable(uri)) is not None:
        observer.note(f"MLflow at {uri} does not answer ({reason}); `tuner sync` logs the trials once it does")
    return MlflowFollower(store, url, spec.name, uri, spec.artifacts / "mlflow.log", observer.synced)


def _script(result: RunResult, spec: StudySpec, store: Store, output: Path) -> Path | None:
    """Write the winner's script, if there is a winner, and store its path."""
    if result.conclusion is None or result.conclusion.winner is None:
        return None
    study = store.study(spec.name)
    assert study is not None
    path = write_script(store, study, result.conclusion.winner, output)
    store.update_study(spec.name, facts={"script": os.fspath(path.resolve())})
    return path


def _driver(ray_address: str | None) -> Identity | None:
    """Return this process as the owner of servers, where its workers share its host."""
    return own_identity() if ray_address is None else None


def _engine(request: Request, options: RunOptions) -> tuple[EngineSettings, Devices]:
    """Return the engine and what it runs on: vLLM where there is a GPU or one was named, else a simulated one."""
    if wants_simulation(options.engine, options.vllm, options.gpu):
        simulated, devices = simulated_engine(options.gpu, options.vllm_version, request.preset, options.workers)
        return replace(simulated, warm_start=options.warm_start), devices
    refuse_simulation_options(options.gpu, options.vllm_version)
    devices = find_devices(options.workers, options.ray_address)
    driver = _driver(options.ray_address)
    return EngineSettings(
        "vllm", _find_vllm(options.vllm), home(), warm_start=options.warm_start, driver=driver
    ), devices


def _find_vllm(given: str | None) -> str:
    from tuner.engines.vllm.executable import find_executable

    return os.fspath(find_executable(given))


def _folder(storage: str | None) -> Path:
    """Return the folder of artifacts: beside a SQLite file, else the default one."""
    if storage is not None:
        url = normalise_url(storage)
        if url.startswith("sqlite:///"):
            return Path(url.removeprefix("sqlite:///")).resolve().parent
    return FOLDER.resolve()


def _check_disk(folder: Path) -> None:
    """Refuse to start where logs and results would fill the disk."""
    existing = next(parent for parent in (folder, *folder.parents) if parent.is_dir())
    free = shutil.disk_usage(existing).free
    if free < MINIMUM_FREE_BYTES:
        raise UserError(
            f"{existing} has {free / 2**20:.0f} MiB free and a study needs {MINIMUM_FREE_BYTES / 2**20:.0f}; "
            "free some, or work in another folder"
        )
    if not os.access(existing, os.W_OK):
        raise UserError(f"{existing} is not writable; work in another folder, or give --storage")


def _check_output(output: Path) -> None:
    """Refuse a script's path that could not be written when the study is over."""
    folder = output.absolute().parent
    if output.is_dir() or not folder.is_dir():
        what = "that is a folder" if output.is_dir() else f"there is no folder {folder}"
        raise UserError(f"-o {str(output)!r}: {what}; give a file in a folder that exists")
    if not os.access(folder, os.W_OK):
        raise UserError(f"-o {str(output)!r}: {folder} is not writable; choose another file")


def _reach_database(storage: str | None) -> Store | None:
    """Open a database server at once, so that one that is down is found before anything starts.

    A SQLite file is opened later, when the rest of the request has proved right; here its folder must exist.
    """
    if storage is None:
        return None
    url = normalise_url(storage)
    if not url.startswith("sqlite"):
        return open_store(url)
    folder = Path(url.removeprefix("sqlite:///")).resolve().parent
    if not folder.is_dir():
        raise UserError(f"--storage {storage!r}: there is no folder {folder}; make it first")
    return None


def _executor(settings: EngineSettings, devices: Devices, options: RunOptions) -> Executor:
    """Return Ray's pool of workers, one a device; what is simulated runs in this process."""
    if settings.card is not None:
        return InlineExecutor(EngineFactory(settings), len(devices.names), devices.names[0])
    ray_environment.prepare(options.ray_address)
    from tuner.executors.ray_pool import RayExecutor

    return RayExecutor(
        EngineFactory(settings),
        list(devices.names),
        gpus=devices.gpus,
        provenance=Provenance.MEASURED,
        address=options.ray_address,
    )
