"""Start a server as a fork of the resident helper: the command's function, without its 10–20 s of imports.

On a GPU, vLLM also forks its engine's processes (`VLLM_WORKER_MULTIPROC_METHOD`, which it supports and its command sets
to `spawn`). That saves the same imports once more. Several API servers are forked, too, for which vLLM has no setting:
see `resident/api_servers.py`. Without a GPU, vLLM requires `spawn` for its engine.

A forked server differs from the command in one respect: its modules were imported in the helper's environment.
`can_fork` states when that has no effect. If a forked server does not start and the cause is unknown, it is started
once more, as the command (`CommandStart`).
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from storage.records import FailureKind
from tuner.engines.server.program_engine import ServerStart
from tuner.engines.vllm.resident_client import ResidentHelper, ResidentJob
from tuner.processes.family import MARK
from tuner.processes.identity import read_process
from tuner.processes.records import ProcessRecord, ProcessRecords
from tuner.processes.supervisor import ServerProcess

FORK_S = 60.0
_REAP_S = 30.0

MULTIPROC_METHOD = "VLLM_WORKER_MULTIPROC_METHOD"

READ_LATE = frozenset(
    {
        MULTIPROC_METHOD,
        "VLLM_CPU_KVCACHE_SPACE",
        "VLLM_CPU_OMP_THREADS_BIND",
        "VLLM_CPU_NUM_OF_RESERVED_CPU",
        "VLLM_USE_AOT_COMPILE",
        "VLLM_ALLOW_LONG_MAX_MODEL_LEN",
        "VLLM_USE_FLASHINFER_SAMPLER",
    }
)
"""Variables that are read after the fork, by the server or by the engine's processes."""


def can_fork(server: Mapping[str, str], helper: Mapping[str, str]) -> bool:
    """Return whether a fork of a helper with one environment equals a server that starts with the other."""
    changed = {name for name in {*server, *helper} if server.get(name) != helper.get(name)}
    return changed <= READ_LATE


RETRIED_AS_COMMAND = frozenset({FailureKind.ENGINE_CRASH, FailureKind.STARTUP_TIMEOUT})
"""Failures of a start that the fork itself may have caused. The configuration or the machine causes the others."""


@dataclass(frozen=True)
class CommandStart:
    """The start as the command after a failed fork; `on_success` is called once that server is ready."""

    start: Callable[[], ServerProcess]
    on_success: Callable[[], None]


class _Reaper:
    """Reaps the server through the helper, which is its parent."""

    def __init__(self, job: ResidentJob) -> None:
        self._job = job

    def wait(self) -> int | None:
        """Wait until the helper reports its end, and have the helper reap it."""
        self._job.wait(_REAP_S)
        self._job.reap()
        return self._job.exit_code


class ForkedServerProcess(ServerProcess):
    """A `ServerProcess` that is the helper's child. It ends with the helper, which ends with the tuner."""

    def __init__(self, job: ResidentJob, record: ProcessRecord, records: ProcessRecords) -> None:
        super().__init__(_Reaper(job), record, records)
        self._job = job

    def exit_code(self) -> int | None:
        """See `ServerProcess`."""
        if not self.alive():
            self._job.wait(_REAP_S)
        return self._job.exit_code


def start_forked(resident: ResidentHelper, start: ServerStart) -> ServerProcess | None:
    """Start a server as a fork; return None if the helper cannot. The record is on disk before the server runs.

    Raises:
        OSError: if the record cannot be written.
    """
    mark = uuid.uuid4().hex
    variables, cwd = {MULTIPROC_METHOD: "fork", **start.environment, MARK: mark}, os.fspath(start.folder)
    job = resident.run("cli", start.log, argv=list(start.words[1:]), environment=variables, cwd=cwd, hold=True)
    pid = job.wait_started(FORK_S)
    state = read_process(pid) if pid is not None else None
    if state is None:
        job.cancel()
        return None
    try:
        record = start.records.add(mark, state.identity, start.port, start.words, start.label)
    except OSError:
        job.cancel()
        job.reap()
        raise
    job.release()
    return ForkedServerProcess(job, record, start.records)
