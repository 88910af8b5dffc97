"""What `tuner optimize` does once its arguments are read."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from storage import Store, normalise_url, open_store
from storage.records import Provenance
from tuner.cli.commands.export import write_script
from tuner.cli.output.progress import Progress, console
from tuner.cli.output.result import Shown, report
from tuner.clock import RealClock
from tuner.engines.base import EngineSettings
from tuner.engines.factory import ENGINES, EngineFactory
from tuner.errors import UserError
from tuner.executors import ray_environment
from tuner.executors.base import Executor
from tuner.executors.inline import InlineExecutor
from tuner.observers.fan_out import FanOut
from tuner.observers.mlflow_follower import MlflowFollower
from tuner.processes.family import Identity, myself
from tuner.study.builder import Request, draft, finish, resolve
from tuner.study.run import RunResult, as_begun, open_study, refuse_running, run_study, study_lock
from tuner.study.source_studies import source_studies
from tuner.study.spec import Budget, StudySpec
from tuner.use_cases.devices import Devices, find_devices
from tuner.use_cases.places import FOLDER, home, storage_url, tracking_uri
from tuner.use_cases.simulated_engine import refuse_simulation_options, simulated_engine, wants_simulation

MINIMUM_FREE_BYTES = 500 * 1024 * 1024


@dataclass(frozen=True)
class Options:
    """What the user said of this run, not of the study."""

    engine: str
    vllm: str | None
    gpu: str | None
    vllm_version: str | None
    workers: int | None
    warm_start: bool
    ray_address: str | None
    storage: str | None
    output: Path
    plain: bool
    as_json: bool


def run(request: Request, budget: Budget, options: Options) -> int:
    """Run a study from its request to its script; return the exit code.

    Everything that can be the user's mistake is looked at before anything is written.
    """
    if options.engine not in ENGINES:
        raise UserError(f"--engine {options.engine!r}: there is none of that name; engines: {', '.join(ENGINES)}")
    if budget.trials < 1:
        raise UserError(f"--trials {budget.trials}: at least 1 is needed (the defaults)")
    settings, devices = _engine(request, options)
    simulated = settings.card is not None
    plan = draft(request, on_cpu=not devices.gpus and not simulated, simulated=simulated)
    resolve(plan, None, devices.profile)  # names that are in no space are found before anything is started
    folder = _folder(options.storage)
    if request.learn_from:
        storage_url(options.storage, create=False)  # where there is no database, there is nobody to learn from
    refuse_running(folder / "artifacts" / plan.name, plan.name)
    _check_disk(folder)
    _check_output(options.output)
    with ExitStack() as stack:
        stop = stack.enter_context(stop_on_signals())
        reached = _reach_database(options.storage)
        executor = _executor(settings, devices, options)
        stack.callback(executor.close)
        info = executor.engine_info()
        spec = finish(plan, info, devices.profile, folder / "artifacts")
        url = storage_url(options.storage, create=True)
        store = reached or open_store(url)
        stack.callback(store.close)
        source_studies(store, as_begun(spec, store), info)  # a study that cannot teach is found before this one is made
        stack.enter_context(study_lock(spec.artifacts, spec.name))
        spec = as_begun(spec, store)
        open_study(store, spec, info, list(devices.names), RealClock())
        shown = _watched(spec, budget, store, url, executor, options, stop)
        return report(shown, spec, info, store.trials(spec.name), as_json=options.as_json)


def _watched(
    spec: StudySpec, budget: Budget, store: Store, url: str, executor: Executor, options: Options, stop: threading.Event
) -> Shown:
    """Run the study with a progress view and MLflow beside it, and write the script of its winner."""
    progress = Progress(spec.judge.objectives, budget.trials, store.trials(spec.name))
    view = console(progress, options.plain)
    follower = MlflowFollower(url, spec.name, tracking_uri(url), spec.artifacts / "mlflow.log")
    try:
        for line in _opening(spec, budget, executor, progress.done):
            view.note(line)
        result = run_study(spec, budget, store, url, executor, FanOut(view, follower), stop)
        script = _script(result, spec, store, options.output)
    finally:
        view.close()
        logged = follower.close()
    return Shown(result, script, logged)


def _script(result: RunResult, spec: StudySpec, store: Store, output: Path) -> Path | None:
    """Write the winner's script, if there is a winner, and note where it is."""
    if result.conclusion is None or result.conclusion.winner is None:
        return None
    path = write_script(store, store.study(spec.name), result.conclusion.winner, output)
    store.update_study(spec.name, facts={"script": os.fspath(path.resolve())})
    return path


def _opening(spec: StudySpec, budget: Budget, executor: Executor, done: int) -> list[str]:
    info = executor.engine_info()
    banner = []
    if info.provenance is Provenance.SIMULATED:
        card = spec.facts["hardware"]
        banner = [f"SIMULATED: predicted, not measured, for vLLM {info.version} on one {card}; --engine vllm measures"]
    goes_on = f", {done} of them done" if done else ""
    short = spec.search_prompts
    rounds = ", the rounds that decide all of them" if spec.confirm_rounds else ""
    loads = [f"the search sends {short} requests a load{rounds}"] if short else []
    dropped = f"; {len(spec.space.dropped)} choices ruled out (`tuner space`)" if spec.space.dropped else ""
    return [
        *banner,
        f"study {spec.name}: {budget.trials} trials{goes_on}, {executor.slots} worker(s), {info.name} {info.version}, "
        f"{len(spec.space.parameters)} parameters{dropped}",
        *loads,
    ]


@contextmanager
def stop_on_signals() -> Iterator[threading.Event]:
    """Turn the first Ctrl-C, SIGTERM or hang-up into a request to stop; a second Ctrl-C ends the command at once.

    A hang-up that the caller ignores, as `nohup` does, stays ignored.
    """
    stop = threading.Event()

    def ask(number: int, _: object) -> None:
        if stop.is_set() and number == signal.SIGINT:
            raise KeyboardInterrupt
        stop.set()
        with suppress(OSError):  # after a hang-up there is no terminal to say it on
            print("stopping: running servers are ended, the study is saved …", file=sys.stderr, flush=True)

    numbers = [signal.SIGINT, signal.SIGTERM]
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        numbers.append(signal.SIGHUP)
    before = {number: signal.signal(number, ask) for number in numbers}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _driver(ray_address: str | None) -> Identity | None:
    """Return this process as the owner of servers, where its workers share its host."""
    return myself() if ray_address is None else None


def _engine(request: Request, options: Options) -> tuple[EngineSettings, Devices]:
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


def _executor(settings: EngineSettings, devices: Devices, options: Options) -> Executor:
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
