"""What another node of a trial does: it runs one rank, on record, and returns its log."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

from storage.records import Failure
from tuner import gpu, scratch
from tuner.engines.base import EngineSettings
from tuner.engines.server.devices import wait_for_gpus, worker_devices
from tuner.engines.server.environment import base_environment
from tuner.engines.server.failures.classify import read_log
from tuner.engines.vllm.environment import HOST_IP, own_environment, preserve_compiler_headers
from tuner.engines.vllm.installation import find_executable
from tuner.engines.vllm.nodes.rank import RankEnd, RankStart, RankStopped
from tuner.errors import TrialFailed
from tuner.processes.log_files import shorten_log
from tuner.processes.records import ProcessRecords, reap_orphans
from tuner.processes.supervisor import ServerProcess, start_server

_POLL_S = 0.2


class RankHost:
    """Runs ranks on this node, one at a time. Its process owns them: a watchdog ends them when it was killed."""

    def __init__(self, settings: EngineSettings, address: str) -> None:
        """Find vLLM, and end what a killed host left on this node.

        Args:
            settings: of the worker's engine; `gpus` are those of one node.
            address: of this node, as other nodes reach it.

        Raises:
            UserError: if there is no vLLM.
        """
        reap_orphans(settings.home / "processes")
        self._executable = os.fspath(find_executable(settings.executable))
        self._secrets = settings.secrets
        self._devices = worker_devices(settings.device_index, settings.gpus)
        self._scratch, self._logs = scratch.new_folder("vllm"), scratch.new_folder("rank")
        own = own_environment(settings.home, [each.index for each in self._devices], self._scratch)
        self._environment = {**base_environment(os.environ), **own, HOST_IP: address}
        self._home = settings.home
        self._records = ProcessRecords(settings.home / "processes", None, settings.secrets.redact)
        self._process: ServerProcess | None = None
        self._stopping = threading.Event()

    def start(self, rank: RankStart) -> Failure | None:
        """Wait until the node's GPUs are free, and start a rank; return why it cannot be started."""
        try:
            wait_for_gpus(self._devices)
            self._process, self._stopping = self._started(rank), threading.Event()
        except TrialFailed as failed:
            return failed.failure
        return None

    def _started(self, rank: RankStart) -> ServerProcess:
        scratch.empty(self._scratch)
        scratch.empty(self._logs)
        preserve_compiler_headers(self._scratch, self._home)
        own = {name: self._secrets.expand(value) for name, value in rank.environment.items()}
        argv = self._secrets.expand_all((self._executable, *rank.arguments))
        label = f"{rank.label} rank {rank.rank}"
        return start_server(argv, {**self._environment, **own}, self._log, self._logs, self._records, None, label)

    def wait_end(self) -> RankEnd | None:
        """Wait until the rank ends, and return its end; None once it is to be stopped.

        Its descendants are recorded after 1, 2, 4, … seconds: it starts most of them early.
        """
        process, stopping = self._process, self._stopping
        begun, period = time.monotonic(), 1.0
        while process is not None and not stopping.wait(_POLL_S):
            if time.monotonic() - begun > period:
                process.record_family()
                period *= 2
            if not process.alive():
                return RankEnd(self._secrets.redact(read_log(self._log)), process.exit_code())
        return None

    def stop(self, grace_s: float) -> RankStopped:
        """End the rank and everything that it started, and wait until the node's GPUs are free."""
        self._stopping.set()
        if self._process is None:
            return RankStopped(b"")
        survivors = self._process.stop(grace_s)
        if not survivors:
            self._process = None
            for device in self._devices:
                if device.baseline_gib is not None:
                    gpu.wait_until_free(device.index, device.free_below_gib, grace_s, threading.Event())
        shorten_log(self._log, self._secrets.redact_bytes)
        return RankStopped(self._log.read_bytes() if self._log.is_file() else b"", tuple(survivors))

    def close(self) -> None:
        """Kill the rank, and remove the temporary folders."""
        self.stop(0.0)
        scratch.remove(self._scratch)
        scratch.remove(self._logs)

    @property
    def _log(self) -> Path:
        return self._logs / "server.log"
