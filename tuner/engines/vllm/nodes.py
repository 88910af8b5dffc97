"""The ranks of one server on several nodes, as one process for everything that watches, classifies and ends it."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from records.trials import Failure, FailureKind, Phase
from search_spaces.render import data_parallel_size
from tuner import scratch
from tuner.cancellation import STOP_S, CancelToken
from tuner.engines.base import EngineSettings
from tuner.engines.server.devices import base_environment, wait_for_gpus, worker_devices
from tuner.engines.server.failures import read_log
from tuner.engines.vllm.texts import classify
from tuner.engines.vllm.toolbox import HOST_IP, find_executable, own_environment, preserve_compiler_headers
from tuner.errors import TrialFailed
from tuner.processes.family import Identity
from tuner.processes.ports import PortLease
from tuner.processes.records import ProcessRecords, reap_orphans
from tuner.processes.supervisor import ServerProcess, shorten_log, start_server

API_SERVERS = ("--api-server-count", "-asc")
"""Flags of rank 0 alone: vLLM refuses them with `--headless`."""


@dataclass(frozen=True)
class Meeting:
    """Where the ranks of one server find each other.

    Args:
        nodes: of the server.
        address: of the first node.
        port: on it, of the process group.
        data_port: on it, of the handshake of data parallelism.
    """

    nodes: int
    address: str
    port: int
    data_port: int

    def flags(self, rank: int, argv: Sequence[str]) -> tuple[str, ...]:
        """Return the flags of one rank that `vllm serve` with the arguments `argv` needs beside them."""
        flags = (
            *("--nnodes", str(self.nodes), "--node-rank", str(rank)),
            *("--master-addr", self.address, "--master-port", str(self.port)),
        )
        handshake = ("--data-parallel-rpc-port", str(self.data_port)) if data_parallel_size(argv) > 1 else ()
        return (*flags, *handshake, *(("--headless",) if rank else ()))


def headless(argv: Sequence[str]) -> tuple[str, ...]:
    """Return the arguments of `vllm serve` without those that only a rank with an API server takes."""
    kept: list[str] = []
    words = iter(argv)
    for word in words:
        name, equals, _ = word.partition("=")
        if name.replace("_", "-") not in API_SERVERS:
            kept.append(word)
        elif not equals:
            next(words, None)
    return tuple(kept)


@dataclass(frozen=True)
class RankStart:
    """What a node needs to start a rank.

    Args:
        rank: from 1.
        arguments: of `vllm`, with references to secrets.
        environment: variables of the study and the configuration, with references to secrets.
        label: study and trial, for the record.
    """

    rank: int
    arguments: tuple[str, ...]
    environment: dict[str, str]
    label: str


@dataclass(frozen=True)
class RankEnd:
    """The end of a rank before its server was stopped.

    Args:
        log: its output; empty if the node is lost.
        exit_code: -N for signal N; None: unknown.
        lost: why its node counts as lost; None if it answers.
    """

    log: str
    exit_code: int | None
    lost: str | None = None


@dataclass(frozen=True)
class RankStopped:
    """A rank that was stopped: its whole log, and processes that survived SIGKILL."""

    log: bytes
    survivors: tuple[Identity, ...] = ()


class RankNode(Protocol):
    """Another node of a worker, which runs one rank at a time."""

    @property
    def name(self) -> str:
        """The node's name, for messages."""

    def start(self, rank: RankStart) -> Failure | None:
        """Wait until the node's GPUs are free, and start a rank; return why it cannot be started."""

    def ended(self, timeout_s: float) -> RankEnd | None:
        """Return the end of the running rank; None if it has not ended within `timeout_s` seconds."""

    def request_stop(self, grace_s: float) -> None:
        """Begin to end the rank and everything that it started: SIGTERM, and SIGKILL after `grace_s` seconds."""

    def stopped(self) -> RankStopped:
        """Wait until the rank has ended as `request_stop` asked; a lost node has nothing left."""


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
                device.wait_until_free(grace_s, threading.Event())
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


FOLLOW_S = 10.0
"""How long other ranks have to end after rank 0, or their nodes to be reported as lost."""

_LOST_PEER = "closed by peer"
"""What a rank logs whose connection another one has ended."""


class RankedProcess:
    """A server's ranks: rank 0 on this node, and each other one on its own node. See `ServerProcess`.

    It lives while all ranks do.
    """

    def __init__(
        self, first: ServerProcess, nodes: Sequence[RankNode], folder: Path, leases: Sequence[PortLease]
    ) -> None:
        """Join ranks that have been started.

        Args:
            first: rank 0.
            nodes: those of ranks 1, 2, …
            folder: where the logs of their ranks are written at the end.
            leases: ports at which the ranks meet, returned at the end.
        """
        self.identity = first.identity
        self._first = first
        self._nodes = tuple(enumerate(nodes, start=1))
        self._folder = folder
        self._leases = leases
        self._asked = False

    @property
    def pid(self) -> int:
        return self._first.pid

    def alive(self) -> bool:
        return self._first.alive() and all(node.ended(0.0) is None for _, node in self._nodes)

    def exit_code(self) -> int | None:
        return self._first.exit_code()

    def descendants(self) -> set[Identity]:
        return self._first.descendants()

    def record_family(self) -> None:
        self._first.record_family()

    def stop(self, timeout_s: float = 30.0, cancelled: CancelToken | None = None) -> list[Identity]:
        """End all ranks at the same time, write the others' logs, and return the survivors of every node."""
        asked, self._asked = self._asked, True
        if asked:
            return self._first.stop(timeout_s, cancelled)
        hurries = cancelled is not None and cancelled.is_set()
        for _, node in self._nodes:
            node.request_stop(min(timeout_s, STOP_S) if hurries else timeout_s)
        survivors = self._first.stop(timeout_s, cancelled)
        for rank, node in self._nodes:
            stopped = node.stopped()
            survivors += stopped.survivors
            if stopped.log:
                (self._folder / f"server-rank{rank}.log").write_bytes(stopped.log)
        for lease in self._leases:
            lease.release()
        return survivors

    def cause(self, phase: Phase, own: Failure) -> Failure:
        """Return the failure that ended the server: a lost node's, else that of the rank whose log says most.

        Args:
            phase: the trial's phase.
            own: the failure that the log of rank 0 shows.
        """
        alive = self._first.alive()
        deadline = time.monotonic() + (0.0 if alive else FOLLOW_S)
        failures = [] if alive else [own]
        for rank, node in self._nodes:
            end = node.ended(max(deadline - time.monotonic(), 0.0))
            if end is not None:
                failures.append(_failure_of(rank, node.name, end, phase))
        return min(failures, key=_vagueness, default=own)


def _failure_of(rank: int, name: str, end: RankEnd, phase: Phase) -> Failure:
    if end.lost is not None:
        message = f"node {name} with rank {rank} was lost: {end.lost}"
        return Failure(FailureKind.WORKER_LOST, phase, message)
    failure = classify(end.log, end.exit_code, phase)
    return replace(failure, message=f"rank {rank} on node {name}: {failure.message}")


def _vagueness(failure: Failure) -> int:
    """Return 0 for a lost node, 1 for a cause, and more for what may follow from another rank's end."""
    if failure.kind is FailureKind.WORKER_LOST:
        return 0
    if failure.kind is FailureKind.SERVER_KILLED:
        return 2
    return 3 if failure.kind is FailureKind.ENGINE_CRASH or _LOST_PEER in failure.message else 1


def start_ranks(
    nodes: Sequence[RankNode], rank: Callable[[int], RankStart], start_first: Callable[[], ServerProcess]
) -> ServerProcess:
    """Start the ranks of other nodes, then rank 0, and return that; if one cannot start, none runs afterwards.

    Args:
        nodes: those of ranks 1, 2, …
        rank: returns what starts a rank.
        start_first: starts rank 0.

    Raises:
        TrialFailed: as the node or `start_first` says.
    """
    try:
        for number, node in enumerate(nodes, start=1):
            failure = node.start(rank(number))
            if failure is not None:
                raise TrialFailed(replace(failure, message=f"node {node.name}: {failure.message}"))
        return start_first()
    except BaseException:
        for node in nodes:
            node.request_stop(0.0)
        for node in nodes:
            node.stopped()
        raise
