"""What every engine offers: identify itself, check a configuration, start a server and stop it for good.

An engine is a program that serves one model over the OpenAI HTTP API. The real one is `tuner.engines.vllm`; a simulated
one belongs beside it. Implementations pass `tests/contracts/engine_contract.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from search_spaces import HardwareProfile
from storage.records import Failure, Provenance, Repeat, ServerFacts
from tuner.cancellation import CancelToken
from tuner.clock import Clock
from tuner.processes.identity import Identity
from tuner.specs import Limits, TrialSpec
from tuner.workloads.spec import SingleWorkload


@dataclass(frozen=True)
class EngineInfo:
    """What is installed: name, version, executable, the engine's flags and the packages beside it (None: not read)."""

    name: str
    version: str
    executable: str | None
    flags: frozenset[str] | None
    provenance: Provenance
    packages: frozenset[str] | None = None


class Server(Protocol):
    """One running server. `stop` must be called whatever happens, and may be called twice."""

    argv: tuple[str, ...]
    environment: dict[str, str]

    def wait_ready(self, cancelled: CancelToken) -> None:
        """Return once the server is healthy and serves the right model.

        Raises:
            TrialFailed: typed, when its process exits, the deadline passes or the trial is cancelled.
        """

    def warm_up(self, workload: SingleWorkload, cancelled: CancelToken) -> None:
        """Send the unscored load `workload.warmup()`.

        Raises:
            TrialFailed: when no request of it succeeds, the server dies, or its deadline passes.
        """

    def benchmark(self, workload: SingleWorkload, index: int, cancelled: CancelToken) -> Repeat:
        """Run repeat `index` of the load and return its figures, failed requests included.

        Raises:
            TrialFailed: when the client gives no figures, the server dies, or the deadline passes.
        """

    def facts(self) -> ServerFacts:
        """Return what the server says of itself, up to now."""

    def stop(self) -> Failure | None:
        """End the server and everything that it started; return a failure if something survived."""


class Engine(Protocol):
    """An engine on one worker: one device, one server at a time."""

    @property
    def clock(self) -> Clock:
        """The time that its trials take: the machine's, or a simulated engine's own."""

    def info(self) -> EngineInfo:
        """Return what is installed."""

    def check(self, spec: TrialSpec) -> Failure | None:
        """Return why the configuration cannot work, found without a launch; None if nothing speaks against it."""

    def launch(self, spec: TrialSpec, limits: Limits) -> Server:
        """Start a server for the trial; logs and results go to `spec.artifacts`.

        Raises:
            TrialFailed: typed, when it cannot even be started.
        """

    def close(self) -> None:
        """Release what the engine itself holds (a warm client); stop what still runs."""


@dataclass(frozen=True)
class EngineSettings:
    """How a worker builds its engine; picklable, the same for every worker but `device_index` and `home`.

    `executable` is the program (`vllm`), `home` the folder for caches and the registry of started processes, `driver`
    the command that owns the study, if it runs on the worker's host: when it dies, its servers are orphans.
    `warm_start` starts servers as forks of a process that has the engine imported (docs/design/measurement.md
    compares them with plain starts). `card` and `version` are what a simulated engine simulates.
    """

    name: str
    executable: str | None
    home: Path
    device_index: int | None = None
    warm_start: bool = True
    driver: Identity | None = None
    card: HardwareProfile | None = None
    version: str | None = None
