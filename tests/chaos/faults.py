"""The faults: each finds its victim among the processes of a running command and strikes.

A victim is found by ids: the descendants of the command, and the records of its servers. A fault that finds none
returns False and does not count.
"""

import contextlib
import random
import resource
import signal
import sqlite3
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil

from tests.faults.command import Command, Study
from tests.mlflow_server import MlflowServer
from tests.postgres import PostgresServer
from tuner.processes.watchdog import PROGRAM

FROZEN_S = (0.5, 5.0)
"""Bounds of how long a process is frozen or short of memory, a database locked, and a server down."""
SPARE_MEMORY = 2**22
"""What a process that is short of memory can still allocate, in bytes."""
MEMORY_FAULT = "memory cap"
CLOCK_STEPS_S = (-86400, -3600, -30, 0, 30, 3600, 86400)
"""Differences between the date of a study's processes and the machine's."""
CLOCK_VARIABLE = "CHAOS_CLOCK"
"""Names the file with the difference; read by `clock/sitecustomize.py`."""


@dataclass(frozen=True)
class Scene:
    """What a fault can strike."""

    study: Study
    command: Command
    rng: random.Random
    postgres: PostgresServer | None = None
    mlflow: MlflowServer | None = None


@dataclass(frozen=True)
class Fault:
    """One kind of fault.

    Args:
        name: for the report.
        strike: does it; returns whether there was a victim.
        ends_command: whether the command ends by it and must be started again.
        weight: how often it is drawn, relative to the others.
    """

    name: str
    strike: Callable[[Scene], bool]
    ends_command: bool = False
    weight: int = 1


def descendants(command: Command) -> Iterator[psutil.Process]:
    """Yield the living processes below the command."""
    command.note_descendants()
    with contextlib.suppress(psutil.Error):
        for process in psutil.Process(command.popen.pid).children(recursive=True):
            with contextlib.suppress(psutil.Error):
                if process.status() != psutil.STATUS_ZOMBIE:
                    yield process


def words_of(process: psutil.Process) -> str:
    """Return a process's command line; empty if it has ended."""
    with contextlib.suppress(psutil.Error):
        return " ".join(process.cmdline())
    return ""


def kill(process: psutil.Process | None) -> bool:
    """Kill a process; return whether there was one."""
    with contextlib.suppress(psutil.Error):
        if process is not None:
            process.kill()
            return True
    return False


def named(*parts: str) -> Callable[[Scene], bool]:
    """Return a fault that kills one descendant whose command line has all the parts."""

    def strike(scene: Scene) -> bool:
        found = [each for each in descendants(scene.command) if all(part in words_of(each) for part in parts)]
        return kill(scene.rng.choice(found)) if found else False

    return strike


def kill_driver(scene: Scene) -> bool:
    """Kill the command itself."""
    scene.command.kill()
    return True


def kill_everything(scene: Scene) -> bool:
    """Kill the command and all its descendants, in random order."""
    victims = [*descendants(scene.command), psutil.Process(scene.command.popen.pid)]
    scene.rng.shuffle(victims)
    for victim in victims:
        kill(victim)
    scene.command.wait()
    return True


def server_of(scene: Scene) -> psutil.Process | None:
    """Return a server that runs."""
    servers = scene.study.servers()
    with contextlib.suppress(psutil.Error):
        return psutil.Process(scene.rng.choice(servers).process.pid) if servers else None
    return None


def kill_server(scene: Scene) -> bool:
    """Kill a server."""
    return kill(server_of(scene))


def kill_child(scene: Scene) -> bool:
    """Kill a server's child, which in vLLM is the EngineCore."""
    server = server_of(scene)
    with contextlib.suppress(psutil.Error):
        children = server.children() if server is not None else []
        return kill(scene.rng.choice(children)) if children else False
    return False


def freeze(scene: Scene) -> bool:
    """Stop the command, or one of its descendants, for some seconds and let it run again."""
    with contextlib.suppress(psutil.Error):
        process = scene.rng.choice([psutil.Process(scene.command.popen.pid), *descendants(scene.command)])
        process.suspend()
        time.sleep(scene.rng.uniform(*FROZEN_S))
        process.resume()
        return True
    return False


def cap_memory(scene: Scene) -> bool:
    """Let the command, or one of its descendants, allocate hardly any more memory for some seconds."""
    with contextlib.suppress(psutil.Error):
        process = scene.rng.choice([psutil.Process(scene.command.popen.pid), *descendants(scene.command)])
        before = process.rlimit(resource.RLIMIT_AS)
        process.rlimit(resource.RLIMIT_AS, (process.memory_info().vms + SPARE_MEMORY, before[1]))
        time.sleep(scene.rng.uniform(*FROZEN_S))
        process.rlimit(resource.RLIMIT_AS, before)
        return True
    return False


def step_clock(scene: Scene) -> bool:
    """Set the date of all Python processes of the study, also of those that start later."""
    clock_of(scene.study.folder).write_text(str(scene.rng.choice(CLOCK_STEPS_S)))
    return True


def clock_of(folder: Path) -> Path:
    """Return the file with the difference between a study's date and the machine's."""
    return folder / "clock"


def freeze_server(scene: Scene) -> bool:
    """Stop a server for some seconds and let it run again."""
    server = server_of(scene)
    with contextlib.suppress(psutil.Error):
        if server is not None:
            server.suspend()
            time.sleep(scene.rng.uniform(*FROZEN_S))
            server.resume()
            return True
    return False


def kill_watchdog(scene: Scene) -> bool:
    """Kill the watchdog of the driver or of a worker."""
    found = []
    for process in psutil.process_iter():
        words = words_of(process)
        if str(PROGRAM) in words and str(scene.study.home) in words:
            found.append(process)
    return kill(scene.rng.choice(found)) if found else False


def signalled(number: signal.Signals) -> Callable[[Scene], bool]:
    """Return a fault that asks the command to stop."""

    def strike(scene: Scene) -> bool:
        scene.command.send(number)
        return True

    return strike


def lock_sqlite(scene: Scene) -> bool:
    """Lock the SQLite file for some seconds."""
    database = scene.study.folder / "tuner_study" / "tuner.db"
    if not database.is_file():
        return False
    with contextlib.closing(sqlite3.connect(database, timeout=30, isolation_level=None)) as connection:
        connection.execute("BEGIN EXCLUSIVE")
        time.sleep(scene.rng.uniform(*FROZEN_S))
        connection.execute("ROLLBACK")
    return True


def restart_postgres(scene: Scene) -> bool:
    """Stop PostgreSQL, wait, and start it again."""
    if scene.postgres is None:
        return False
    scene.postgres.stop()
    time.sleep(scene.rng.uniform(*FROZEN_S))
    scene.postgres.start()
    return True


def drop_connections(scene: Scene) -> bool:
    """End every connection to PostgreSQL."""
    if scene.postgres is None:
        return False
    scene.postgres.end_connections()
    return True


def restart_mlflow(scene: Scene) -> bool:
    """Kill MLflow's server, wait, and start it again."""
    if scene.mlflow is None:
        return False
    scene.mlflow.kill()
    time.sleep(scene.rng.uniform(*FROZEN_S))
    scene.mlflow.start()
    return True


FAULTS = (
    Fault("driver", kill_driver, ends_command=True, weight=3),
    Fault("everything", kill_everything, ends_command=True),
    Fault("SIGINT", signalled(signal.SIGINT), ends_command=True),
    Fault("SIGTERM", signalled(signal.SIGTERM), ends_command=True),
    Fault("worker", named("ray::RayWorker"), weight=4),
    Fault("raylet", named("/raylet/raylet"), weight=2),
    Fault("control store", named("/gcs/gcs_server"), weight=2),
    Fault("server", kill_server, weight=6),
    Fault("engine core", kill_child, weight=6),
    Fault("frozen server", freeze_server, weight=2),
    Fault("frozen process", freeze, weight=4),
    Fault("client", named("bench", "serve"), weight=6),
    Fault("MLflow follower", named("dashboards.mlflow.follower"), weight=2),
    Fault("watchdog", kill_watchdog, weight=3),
    Fault(MEMORY_FAULT, cap_memory, weight=4),
    Fault("clock step", step_clock, weight=4),
)
SQLITE_FAULTS = (Fault("locked database", lock_sqlite, weight=4),)
POSTGRES_FAULTS = (
    Fault("PostgreSQL restart", restart_postgres, weight=4),
    Fault("PostgreSQL connections", drop_connections, weight=4),
)
MLFLOW_FAULTS = (Fault("MLflow server", restart_mlflow, weight=4),)


def draw(scene: Scene) -> Fault:
    """Return a fault of a random kind, among those that the scene can have."""
    kinds = [*FAULTS, *(SQLITE_FAULTS if scene.postgres is None else POSTGRES_FAULTS)]
    kinds += MLFLOW_FAULTS if scene.mlflow is not None else ()
    drawn: Fault = scene.rng.choices(kinds, [kind.weight for kind in kinds])[0]
    return drawn
