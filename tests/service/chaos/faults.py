"""The faults: each finds its victim and strikes.

A fault returns the study that it struck, an empty text if it struck all, and None if it found no victim; then it does
not count.
"""

import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from tests.service.chaos.figures import Figures
from tests.service.chaos.surroundings import CPU, Surroundings
from tests.service.chaos.watch import Watch
from tests.service.running import Service, wait_for
from tuner.processes.family import Identity, is_alive, send_signal
from tuner.service.scheduler.scheduler import LEASE_S, SILENT_S

SHORT_S = (1.0, 10.0)
"""Bounds of how long a driver is frozen, and a server is down."""
LONGER_S = (LEASE_S + 1, LEASE_S + 8)
"""Bounds of how long a process is frozen beyond the lease."""
TAKEOVER_S = LEASE_S + 60.0
"""How long another process may take to schedule, unless the frozen one was stopped within a transaction."""
CLEANUP_S = 60.0
"""How long what a killed driver has started may take to end."""
ALL = ""


@dataclass(frozen=True)
class Scene:
    """What a fault can strike."""

    around: Surroundings
    watch: Watch
    figures: Figures

    def wait_s(self, bounds: tuple[float, float]) -> float:
        """Return a random time."""
        return self.around.random.uniform(*bounds)

    def driver(self, kind: str = "") -> tuple[str, Identity] | None:
        """Return a random study with its driver; None if no driver of that kind of device runs."""
        found = sorted((id, each) for id, drivers in self.watch.look().items() for each in drivers if kind in id)
        return self.around.random.choice(found) if found else None


def signal_driver(number: signal.Signals) -> Callable[[Scene], str | None]:
    """Return a fault that sends a signal to a driver."""

    def strike(scene: Scene) -> str | None:
        found = scene.driver()
        if found is None:
            return None
        id, driver = found
        began = time.monotonic()
        if not send_signal(driver, number):
            return None
        if number is signal.SIGKILL:
            wait_for(lambda: _is_gone(scene, driver, began), f"the end of what the driver of {id} has started")
            scene.figures.cleanup_s.append(round(time.monotonic() - began, 2))
        return id

    return strike


def _is_gone(scene: Scene, driver: Identity, began: float) -> bool | None:
    left = [each for each in (driver, *scene.watch.below.get(driver, ())) if is_alive(each)]
    if left and time.monotonic() - began > CLEANUP_S:
        names = [Path(f"/proc/{each.pid}/cmdline").read_bytes().replace(b"\0", b" ")[:120] for each in left]
        scene.figures.problems.append(f"{names} runs {CLEANUP_S:.0f} s after its driver")
        return True
    return not left or None


def freeze_driver(bounds: tuple[float, float]) -> Callable[[Scene], str | None]:
    """Return a fault that stops a driver for some seconds."""

    def strike(scene: Scene) -> str | None:
        found = scene.driver()
        if found is None or not send_signal(found[1], signal.SIGSTOP):
            return None
        try:
            time.sleep(scene.wait_s(bounds))
        finally:
            send_signal(found[1], signal.SIGCONT)
        return found[0]

    return strike


def freeze_driver_for_good(scene: Scene) -> str | None:
    """Stop a driver until the scheduler kills it, which it does after `SILENT_S` without a heartbeat."""
    found = scene.driver()
    if found is None or not send_signal(found[1], signal.SIGSTOP):
        return None
    wait_for(lambda: None if is_alive(found[1]) else True, f"the end of the frozen driver of {found[0]}")
    return found[0]


def kill_below(*parts: str) -> Callable[[Scene], str | None]:
    """Return a fault that kills a process below a driver of a real engine, by the words of its command line."""

    def strike(scene: Scene) -> str | None:
        found = scene.driver(CPU)
        if found is None:
            return None
        victims = [each for each in sorted(scene.watch.below[found[1]]) if _has_words(each, parts)]
        if not victims or not send_signal(scene.around.random.choice(victims), signal.SIGKILL):
            return None
        return found[0]

    return strike


def _has_words(identity: Identity, parts: tuple[str, ...]) -> bool:
    with suppress(OSError):
        words = Path(f"/proc/{identity.pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        return is_alive(identity) and all(part in words for part in parts)
    return False


def kill_service(scene: Scene) -> str | None:
    """Kill one of the processes of the service, and start another one."""
    service = scene.around.any_service()
    service.kill()
    scene.around.replace(service)
    return ALL


def kill_scheduler(scene: Scene) -> str | None:
    """Kill the process that schedules; start another one after a while, in which the other process takes over."""
    leader, term = scene.around.leader()
    if leader is None:
        return None
    leader.kill()
    if scene.around.random.random() < 0.5:
        wait_for(lambda: scene.around.leader()[1] > term or None, "another scheduler")
    scene.around.replace(leader)
    return ALL


def freeze_scheduler(scene: Scene) -> str | None:
    """Stop the process that schedules for longer than its lease: it wakes up beside another scheduler.

    If it is stopped within a transaction, it keeps the database's lock, and nobody schedules until it wakes up.
    """
    leader, term = scene.around.leader()
    if leader is None:
        return None
    began = time.monotonic()
    os.kill(leader.process.pid, signal.SIGSTOP)
    try:
        while not (taken := scene.around.leader()[1] > term) and time.monotonic() - began < TAKEOVER_S:
            time.sleep(0.1)
        scene.figures.locked += not taken
        time.sleep(max(scene.wait_s(LONGER_S) - (time.monotonic() - began), 0.0))
    finally:
        os.kill(leader.process.pid, signal.SIGCONT)
    return ALL


def freeze_service(scene: Scene) -> str | None:
    """Stop the process that only answers."""
    leader, _ = scene.around.leader()
    others: list[Service] = [each for each in scene.around.services if each is not leader]
    service = scene.around.random.choice(others)
    os.kill(service.process.pid, signal.SIGSTOP)
    time.sleep(scene.wait_s(SHORT_S))
    os.kill(service.process.pid, signal.SIGCONT)
    return ALL


def restart_postgres(scene: Scene) -> str | None:
    """Stop PostgreSQL, wait, and start it again."""
    if scene.around.postgres is None:
        return None
    scene.around.postgres.stop()
    time.sleep(scene.wait_s((0.0, 5.0)))
    scene.around.postgres.start()
    return ALL


def end_connections(scene: Scene) -> str | None:
    """End every connection to PostgreSQL."""
    if scene.around.postgres is None:
        return None
    scene.around.postgres.end_connections()
    return ALL


def restart_mlflow(scene: Scene) -> str | None:
    """Kill MLflow's server, wait, and start it again."""
    if scene.around.mlflow is None:
        return None
    scene.around.mlflow.kill()
    time.sleep(scene.wait_s(SHORT_S))
    scene.around.mlflow.start()
    return ALL


Strike = Callable[[Scene], str | None]

FAULTS: dict[str, tuple[int, Strike]] = {
    "API process killed": (4, kill_service),
    "API process frozen": (2, freeze_service),
    "scheduler killed": (5, kill_scheduler),
    "scheduler frozen beyond its lease": (4, freeze_scheduler),
    "driver killed": (8, signal_driver(signal.SIGKILL)),
    "driver asked to end": (2, signal_driver(signal.SIGTERM)),
    "driver frozen": (3, freeze_driver(SHORT_S)),
    "driver frozen beyond the lease": (3, freeze_driver(LONGER_S)),
    f"driver frozen until it is killed ({SILENT_S:.0f} s)": (1, freeze_driver_for_good),
    "Ray worker killed": (8, kill_below("ray::RayWorker")),
    "raylet killed": (5, kill_below("/raylet/raylet")),
    "Ray's control store killed": (2, kill_below("/gcs/gcs_server")),
    "server killed": (3, kill_below("fake_vllm.py", "serve")),
    "PostgreSQL restarted": (6, restart_postgres),
    "PostgreSQL's connections ended": (3, end_connections),
    "MLflow's server killed": (5, restart_mlflow),
}
"""Weight and action of each kind."""
