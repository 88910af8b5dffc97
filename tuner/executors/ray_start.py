"""Start a Ray of this command, or join a cluster.

A local Ray has a small object store (trials send kilobytes; Ray would size it from the machine's memory), no
dashboard, no usage report, and a temporary folder that is removed with it. Call
`tuner.executors.ray_environment.set_ray_environment` before this module is imported.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import threading
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import ray
from ray._private import services
from ray.exceptions import RayError

from storage.errors import first_line
from tuner import scratch
from tuner.errors import InfrastructureError, SettingError
from tuner.executors.ray_environment import START_S
from tuner.executors.ray_watch import end_this_process, watched
from tuner.processes.family import MARK, find_family
from tuner.processes.identity import Identity, read_process, send_signal
from tuner.processes.records import ProcessRecords

OBJECT_STORE_BYTES = 80 * 1024 * 1024
ATTEMPTS = 2
MOST_ATTEMPTS = 6
"""Attempts while `START_S` lasts. A raylet ends itself if its agents have not started within 15 s, a constant of Ray
(https://github.com/ray-project/ray/issues/65983), which a busy machine exceeds."""
SESSIONS = "r"
"""Ray opens its temporary folder to all users, so it gets one inside a folder that only this user can enter."""
NO_LEADER = Identity(2**31 - 1, 0)
"""No process has this id: Ray's processes are found by their mark, or as members of the record."""
CENTRAL_PROCESSES = ("gcs_server", "raylet")
_POLL_S = 0.2
NOTICE_S = 30.0
"""Seconds between two messages about a wait."""

_log = logging.getLogger(__name__)


def join_cluster(address: str) -> None:
    """Join a Ray cluster; nothing happens if this process has joined it before.

    Raises:
        SettingError: if the cluster cannot be joined.
    """
    if ray.is_initialized():
        return
    try:
        with _sigterm_kept():
            ray.init(address=address, log_to_driver=False, configure_logging=False)
    except (ConnectionError, RayError, ValueError) as error:
        rule = f"the Ray cluster cannot be joined: {first_line(error)}"
        raise SettingError("ray_address", address, rule, "check that it is up") from None


def require_gpus(slots: int, each: int = 1) -> None:
    """Check that the joined cluster has `each` GPUs for each worker.

    Raises:
        SettingError: if it has too few.
    """
    resources: dict[str, float] = ray.cluster_resources()  # type: ignore[no-untyped-call]
    available = resources.get("GPU", 0)
    if available < slots * each:
        ray.shutdown()
        needs = "a GPU" if each == 1 else f"{each} GPUs"
        rule = f"each worker needs {needs}, and the cluster has {available:.0f}"
        raise SettingError("workers", slots, rule, "lower it")


class LocalRay:
    """The Ray of this command: its temporary folder and its processes.

    A watchdog ends them when this command is killed: Ray's agents try for minutes to report the end of their raylet.
    """

    def __init__(self, records: Path) -> None:
        """Make the temporary folder, and a record for the processes before they start.

        Args:
            records: folder of the records of Ray's processes.
        """
        self.folder = scratch.new_folder("ray")
        self._records = ProcessRecords(records)
        self._record = self._records.add(uuid.uuid4().hex, NO_LEADER, None, (), "the Ray of this command", self.folder)
        self._central: list[psutil.Process] = []

    @contextlib.contextmanager
    def marked_start(self) -> Iterator[None]:
        """Give the processes that start in this block the record's mark, and record those that have started.

        Ray's agents lose the mark when they rename themselves. They are found by their logs in Ray's folder.
        """
        before = os.environ.get(MARK)
        os.environ[MARK] = self._record.mark
        try:
            yield
        finally:
            os.environ.pop(MARK)
            if before is not None:
                os.environ[MARK] = before
            self._record = self._records.update(self._record, self._family(), set())
        self._central = [process for name in CENTRAL_PROCESSES for process in _processes(self.folder, name)]

    def _family(self) -> set[Identity]:
        """Return Ray's living processes: with the mark, with the folder in the command, or with logs in the folder."""
        states = (read_process(process.pid) for process in _processes(self.folder))
        named = {state.identity for state in states if state is not None and state.alive}
        return find_family(NO_LEADER, self._record.mark, named, self.folder)

    def is_alive(self) -> bool:
        """Return whether the control store and the raylet run; a watchdog that was killed is started again.

        Without its raylet a Ray starts no worker and reports nothing. Without its control store, Ray aborts the driver
        after 60 s.
        """
        self._records.watchdog.ensure_running()
        return all(_is_alive(process) for process in self._central)

    def stop(self) -> None:
        """Disconnect this command, end Ray's processes and remove the folder."""
        with _sigterm_kept():
            ray.shutdown()
        self.end_processes()

    def end_processes(self) -> None:
        """Kill Ray's processes and remove the folder, and those of workers that were killed.

        Ray's agents overwrite their command lines, and they outlive a raylet that got Ctrl-C.
        """
        left = []
        for member in find_family(NO_LEADER, self._record.mark, self._record.members, self.folder):
            with contextlib.suppress(psutil.NoSuchProcess):
                left.append(psutil.Process(member.pid))
            send_signal(member, signal.SIGKILL)
        psutil.wait_procs(left, timeout=NOTICE_S)  # also takes the exit codes of those that this process started
        scratch.remove(self.folder)
        scratch.remove_stale()
        self._records.remove(self._record)


def _is_alive(process: psutil.Process) -> bool:
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def start_local(slots: int, gpus: int, records: Path) -> LocalRay:
    """Start a Ray of this command: in `ATTEMPTS` attempts, or up to `MOST_ATTEMPTS` within `START_S` seconds.

    Args:
        slots: how many workers will run.
        gpus: that they need in all.
        records: folder of the records of its processes.

    Raises:
        InfrastructureError: if all attempts fail.
    """
    begun = time.monotonic()
    for attempt in range(1, MOST_ATTEMPTS + 1):
        local = LocalRay(records)
        try:
            with _sigterm_kept(), local.marked_start(), _patient_registration(local.folder), _watched(local):
                ray.init(
                    num_cpus=slots + 1,
                    num_gpus=gpus,
                    object_store_memory=OBJECT_STORE_BYTES,
                    _temp_dir=os.fspath(local.folder / SESSIONS),
                    include_dashboard=False,
                    log_to_driver=False,
                    configure_logging=False,
                )
        except Exception as error:  # noqa: BLE001  Ray raises plain `Exception` if a part of it does not start
            reason = first_line(error)
            local.end_processes()
        else:
            return local
        if attempt >= ATTEMPTS and (attempt == MOST_ATTEMPTS or time.monotonic() - begun > START_S):
            break
        _log.warning("Ray did not start (%s); starting it once more", reason)
    raise InfrastructureError(
        f"Ray did not start in {attempt} attempts: {reason}; the machine may be overloaded or short of memory"
    )


def _watched(local: LocalRay) -> contextlib.AbstractContextManager[None]:
    """Return a context that ends this process if the control store ends within it, see `ray_watch`.

    Ray itself notices a control store that ends before it has written its port, and `start_local` tries again.
    """

    def give_up() -> None:
        if any(local.folder.glob(f"{SESSIONS}/session_*/gcs_server_port_*")):
            end_this_process(local.end_processes)

    return watched(lambda: bool(_processes(local.folder, "gcs_server")), give_up)


@contextlib.contextmanager
def _patient_registration(folder: Path) -> Iterator[None]:
    """Make `ray.init` wait for the raylet's registration as long as the raylet runs, at most `START_S` seconds.

    Ray waits 30 s, a constant in `Node.__init__` of `ray/_private/node.py`, and raises "The current node timed out
    during startup". No setting changes that, so the function that it calls in this wait is replaced. Ray also waits
    the 30 s for a raylet that has ended; the replacement raises another error then, which ends Ray's wait.
    """
    query: Any = services.get_node

    def wait_for_node(gcs_address: str, node_id: str) -> Any:
        begun = noticed = time.monotonic()
        while True:
            try:
                return query(gcs_address, node_id)
            except RuntimeError:
                now = time.monotonic()
                if not _processes(folder, "raylet"):
                    raise InfrastructureError("its raylet ended while it started") from None
                if now - begun > START_S:
                    raise
                if now - noticed > NOTICE_S:
                    noticed = now
                    _log.warning("waiting for Ray to start (%.0f s of at most %d s)", now - begun, START_S)
                time.sleep(_POLL_S)

    services.get_node = wait_for_node
    try:
        yield
    finally:
        services.get_node = query


def _processes(folder: Path, name: str = "") -> list[psutil.Process]:
    """Return the running children of this process that have the folder of one Ray in their command line.

    Args:
        folder: the temporary folder of that Ray.
        name: a part of the program's name.
    """
    found = []
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            words = process.cmdline()
            if words and name in os.path.basename(words[0]) and any(os.fspath(folder) in word for word in words):
                found.append(process)
    return found


@contextlib.contextmanager
def _sigterm_kept() -> Iterator[None]:
    """Restore the handler of SIGTERM: Ray's core replaces it by one that prints a stack and aborts the process."""
    handler = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        if handler is not None and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, handler)
