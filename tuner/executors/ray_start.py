"""Start a Ray of this command or join a cluster, and watch its central processes.

The processes of a local Ray are started by a program of their own (`ray_head`), which is ended and started again if a
part of it ends. Only the connection to a started Ray is made in this process. Ray's core does not notice that its
control store has ended: it waits for a minute and then aborts this process without a message. No call ends that wait,
so a thread (`Watch`) ends this process before, with a message. Call
`tuner.executors.ray_environment.set_ray_environment` before this module is imported.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import psutil
import ray
from ray.exceptions import RayError

from storage.errors import first_line
from tuner import scratch
from tuner.errors import EXIT_OURS, InfrastructureError, SettingError
from tuner.executors import ray_head
from tuner.executors.ray_environment import START_S
from tuner.processes.family import MARK, NO_LEADER, Identity, find_family, send_signal, wait_until_gone
from tuner.processes.records import ProcessRecords

GRACE_S = 10.0
"""How long a driver may go on without them while it connects to Ray and requests its workers."""
CALM_GRACE_S = 45.0
"""How long it may go on later, when it looks itself between its calls. Ray aborts it after 60 s."""
WATCH_POLL_S = 0.5
MESSAGE = "tuner: Ray's control store or raylet ended, and Ray does not go on; run the same command again"


class Watch:
    """Gives up, in a thread, once the central processes have ended and nobody has ended the watch."""

    def __init__(
        self,
        runs: Callable[[], bool],
        give_up: Callable[[], None],
        grace_s: float = GRACE_S,
        poll_s: float = WATCH_POLL_S,
    ) -> None:
        """Begin.

        Args:
            runs: returns whether the central processes run.
            give_up: called once, in the thread.
            grace_s: seconds that the driver has left to end the watch; may be changed.
            poll_s: seconds between two looks.
        """
        self.grace_s = grace_s
        self._runs, self._give_up, self._poll_s = runs, give_up, poll_s
        self._over = threading.Event()
        threading.Thread(target=self._look, name="watch-ray", daemon=True).start()

    def _look(self) -> None:
        while self._runs():
            if self._over.wait(self._poll_s):
                return
        ended = time.monotonic()
        while time.monotonic() - ended < self.grace_s:
            if self._over.wait(self._poll_s):
                return
        self._give_up()

    def end(self) -> None:
        """End the watch."""
        self._over.set()


def end_this_process(clean_up: Callable[[], None]) -> None:
    """Clean up and end this process with a message, as Ray would do without either."""
    try:
        clean_up()
    finally:
        print(MESSAGE, file=sys.stderr, flush=True)
        os._exit(EXIT_OURS)


ATTEMPTS = 2
MOST_ATTEMPTS = 6
"""Attempts while `START_S` lasts. A raylet ends itself if its agents have not started within 15 s, a constant of Ray
(https://github.com/ray-project/ray/issues/65983), which a busy machine exceeds."""
HEAD = (sys.executable, "-m", "tuner.executors.ray_head")
CENTRAL_PROCESSES = ("gcs_server", "raylet")
_START_POLL_S = 0.2
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
        self._head: subprocess.Popen[bytes] | None = None
        self._central: set[psutil.Process] = set()
        self._watch: Watch | None = None

    def start(self, cpus: int, gpus: int) -> None:
        """Start Ray's processes, and connect this one; `watch_calmly` follows once Ray has got its first requests.

        Raises:
            InfrastructureError: if a part of Ray ends, or does not start within `START_S` seconds.
        """
        try:
            self._head = self._start_head(cpus, gpus)
            address = self._wait_for_address(self._head)
        finally:
            self._record = self._records.update(self._record, self._family(), set())
        self._watch = Watch(self._runs, lambda: end_this_process(self.end_processes))
        try:
            with _sigterm_kept():
                ray.init(address=address, log_to_driver=False, configure_logging=False)
        except Exception as error:  # noqa: BLE001  Ray raises plain `Exception` if a part of it does not answer
            raise InfrastructureError(first_line(error)) from None

    def _start_head(self, cpus: int, gpus: int) -> subprocess.Popen[bytes]:
        """Start the program that starts Ray's processes. They have the record's mark, and end with this command."""
        command = [*HEAD, os.fspath(self.folder), str(cpus), str(gpus)]
        with (self.folder / ray_head.LOG).open("wb") as log:
            return subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                env={**os.environ, MARK: self._record.mark},
                start_new_session=True,
            )

    def _wait_for_address(self, head: subprocess.Popen[bytes]) -> str:
        """Return the address of the control store once Ray has started.

        Raises:
            InfrastructureError: if a part of Ray ends before, or `START_S` seconds pass.
        """
        begun = noticed = time.monotonic()
        while not (self.folder / ray_head.ADDRESS).exists():
            if head.poll() is not None:
                lines = (self.folder / ray_head.LOG).read_text(errors="replace").splitlines()
                raise InfrastructureError(lines[-1] if lines else f"it ended with {head.returncode}")
            self._central |= _children(head.pid, CENTRAL_PROCESSES)
            ended = sorted(process.name() for process in self._central if not _is_alive(process))
            now = time.monotonic()
            if ended:
                raise InfrastructureError(f"its {ended[0]} ended while it started")
            if now - begun > START_S:
                raise InfrastructureError(f"it did not start within {START_S} s")
            if now - noticed > NOTICE_S:
                noticed = now
                _log.warning("waiting for Ray to start (%.0f s of at most %d s)", now - begun, START_S)
            time.sleep(_START_POLL_S)
        self._central |= _children(head.pid, CENTRAL_PROCESSES)
        return (self.folder / ray_head.ADDRESS).read_text()

    def _family(self) -> set[Identity]:
        """Return Ray's living processes: with the mark, below one that has it, or with logs in the folder."""
        return find_family(NO_LEADER, self._record.mark, (), self.folder)

    def _runs(self) -> bool:
        return all(_is_alive(process) for process in self._central)

    def is_alive(self) -> bool:
        """Return whether the control store and the raylet run; a watchdog that was killed is started again.

        Without its raylet a Ray starts no worker and reports nothing. Without its control store, Ray aborts the driver
        after 60 s.
        """
        self._records.watchdog.ensure_running()
        return self._runs()

    def watch_calmly(self) -> None:
        """Leave the executor time to notice the end of a central process: it looks itself between its calls of Ray."""
        if self._watch is not None:
            self._watch.grace_s = CALM_GRACE_S

    def stop(self) -> None:
        """Disconnect this command, end Ray's processes and remove the folder."""
        self.watch_calmly()
        with _sigterm_kept():
            ray.shutdown()
        self.end_processes()

    def end_processes(self) -> None:
        """Kill Ray's processes and remove the folder, and those of workers that were killed."""
        if self._watch is not None:
            self._watch.end()
        family = find_family(NO_LEADER, self._record.mark, self._record.members, self.folder)
        for member in family:
            send_signal(member, signal.SIGKILL)
        wait_until_gone(family, NOTICE_S)
        if self._head is not None:
            self._head.communicate()  # takes its exit code
        scratch.remove(self.folder)
        scratch.remove_stale()
        self._records.remove(self._record)


def _children(pid: int, names: Sequence[str]) -> set[psutil.Process]:
    """Return the children of a process with these names, also those that have ended and were not waited for."""
    found = set()
    with contextlib.suppress(psutil.NoSuchProcess):
        for child in psutil.Process(pid).children():
            with contextlib.suppress(psutil.NoSuchProcess):
                if child.name() in names:
                    found.add(child)
    return found


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
            local.start(slots + 1, gpus)
        except InfrastructureError as error:
            reason = str(error)
            local.stop()
        else:
            return local
        if attempt >= ATTEMPTS and (attempt == MOST_ATTEMPTS or time.monotonic() - begun > START_S):
            break
        _log.warning("Ray did not start (%s); starting it once more", reason)
    raise InfrastructureError(
        f"Ray did not start in {attempt} attempts: {reason}; the machine may be overloaded or short of memory"
    )


@contextlib.contextmanager
def _sigterm_kept() -> Iterator[None]:
    """Restore the handler of SIGTERM: Ray's core replaces it by one that prints a stack and aborts the process."""
    handler = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        if handler is not None and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, handler)
