"""Start a server as a fork of the resident helper: the same function as the command's, without its 10–20 s of imports.

On a GPU vLLM is told to fork its engine's processes as well (`VLLM_WORKER_MULTIPROC_METHOD`, which it supports and its
command sets to `spawn`), which saves the same imports once more. Where there are several API servers they are forked
too, which vLLM has no setting for: see `resident/api_servers.py`. Without a GPU vLLM insists on `spawn` for its engine.

What differs from the command: the processes have the helper's modules, and so whatever they read from the environment
when they were imported. `fits` says when that cannot matter. A forked server that does not start for no known reason is
started once more as the command: see `PlainStart`.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from storage.records import FailureKind
from tuner.engines.vllm.resident_client import ResidentHelper, ResidentJob
from tuner.processes.family import MARK
from tuner.processes.identity import read_process
from tuner.processes.records import ProcessRecord, ProcessRecords
from tuner.processes.supervisor import ServerProcess

START_S = 30.0
_REAP_S = 10.0

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
"""Variables that are read after the server began, by itself or by the engine's own processes."""


def fits(wanted: Mapping[str, str], imported_under: Mapping[str, str]) -> bool:
    """Return whether a server with these variables would be the same from a helper that was started under others."""
    changed = {name for name in {*wanted, *imported_under} if wanted.get(name) != imported_under.get(name)}
    return changed <= READ_LATE


DOUBTFUL = frozenset({FailureKind.ENGINE_CRASH, FailureKind.STARTUP_TIMEOUT})
"""Failures of a start that may be the fork's own: no rule of vLLM's, no lack of memory, nothing of the machine's."""


@dataclass(frozen=True)
class PlainStart:
    """The second chance of a forked server: `start` starts it as the command, `worked` is told if that ran."""

    start: Callable[[], ServerProcess]
    worked: Callable[[], None]


class _Reaper:
    """Reaps the server through the helper, whose child it is."""

    def __init__(self, job: ResidentJob) -> None:
        self._job = job

    def wait(self) -> int | None:
        """Wait until the helper says that it ended, and let go of its id."""
        self._job.wait(_REAP_S)
        self._job.reap()
        return self._job.exit_code


class ForkedServerProcess(ServerProcess):
    """A `ServerProcess` that is the helper's child; it dies with the helper, and so with the tuner."""

    def __init__(self, job: ResidentJob, record: ProcessRecord, records: ProcessRecords) -> None:
        super().__init__(_Reaper(job), record, records)
        self._job = job

    def exit_code(self) -> int | None:
        """See `ServerProcess`."""
        if not self.alive():
            self._job.wait(_REAP_S)
        return self._job.exit_code


def start_forked(
    resident: ResidentHelper,
    argv: Sequence[str],
    environment: Mapping[str, str],
    log: Path,
    cwd: Path,
    records: ProcessRecords,
    port: int,
    label: str,
) -> ServerProcess | None:
    """Start `argv` (the executable and the words after it) as a fork; None if the helper cannot.

    As with `tuner.processes.supervisor.start`, it is on record before it runs.

    Raises:
        OSError: when the record cannot be written.
    """
    mark = uuid.uuid4().hex
    variables = {MULTIPROC_METHOD: "fork", **environment, MARK: mark}
    job = resident.run("cli", log, argv=list(argv[1:]), environment=variables, cwd=os.fspath(cwd), hold=True)
    pid = job.wait_started(START_S)
    seen = read_process(pid) if pid is not None else None
    if seen is None:
        job.cancel()
        return None
    try:
        record = records.add(mark, seen.identity, port, tuple(argv), label)
    except OSError:
        job.cancel()
        job.reap()
        raise
    job.release()
    return ForkedServerProcess(job, record, records)
