"""One rank of a server: its flags, its end, and the interface of the node that runs it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from search_spaces.rendering.shape import data_parallel_size
from storage.records import Failure
from tuner.processes.identity import Identity

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
