"""The ranks of one server as one process, for everything that watches, classifies and ends it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from storage.records import Failure, FailureKind, Phase
from tuner.engines.server.failures.classify import classify
from tuner.engines.vllm.nodes.rank import RankEnd, RankNode, RankStart
from tuner.errors import TrialFailed
from tuner.processes.identity import Identity
from tuner.processes.ports import PortLease
from tuner.processes.supervisor import ServerProcess

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
        """The process id of rank 0, which has the API server."""
        return self._first.pid

    def alive(self) -> bool:
        """Return True while every rank runs."""
        return self._first.alive() and all(node.ended(0.0) is None for _, node in self._nodes)

    def exit_code(self) -> int | None:
        """Return the exit code of rank 0; None while it runs."""
        return self._first.exit_code()

    def descendants(self) -> set[Identity]:
        """Return the living processes that rank 0 started."""
        return self._first.descendants()

    def record_family(self) -> None:
        """Record the processes of rank 0; other nodes record theirs."""
        self._first.record_family()

    def stop(self, timeout_s: float = 30.0) -> list[Identity]:
        """End all ranks at the same time, write the others' logs, and return the survivors of every node."""
        asked, self._asked = self._asked, True
        if asked:
            return self._first.stop(timeout_s)
        for _, node in self._nodes:
            node.request_stop(timeout_s)
        survivors = self._first.stop(timeout_s)
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
