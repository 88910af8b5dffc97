"""The interface of engines: identify the installation, check a configuration, start a server and stop it.

An engine is a program that serves one model over the OpenAI HTTP API, or the simulation of one
(`tuner.engines.simulator`). Implementations pass `tuner/testing/engine.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, runtime_checkable

from records.trials import Cut, Failure, Provenance, Repeat, ServerFacts
from search_spaces import HardwareProfile
from tuner.cancellation import CancelToken
from tuner.clock import Clock
from tuner.processes.family import Identity
from tuner.processes.secrets import NO_SECRETS, Secrets
from tuner.specs import Limits, TrialSpec
from tuner.workloads.progress import RunProgress
from tuner.workloads.results import RequestSlo
from tuner.workloads.spec import SingleWorkload


class FlagParser(Protocol):
    """Checks arguments as the engine's own parser does."""

    def problem(self, argv: Sequence[str]) -> str | None:
        """Return why the parser would refuse the arguments, with the flag's name; None if it would accept them."""


@dataclass(frozen=True)
class EngineInfo:
    """The installation: name, version, executable, the engine's flags and the packages beside it (None: unknown).

    `others` are further engines of a study of several, of which this one is the default. `parser` checks values of
    flags; None: nothing is known about them.
    """

    name: str
    version: str
    executable: str | None
    flags: frozenset[str] | None
    provenance: Provenance
    packages: frozenset[str] | None = None
    others: tuple[EngineInfo, ...] = ()
    parser: FlagParser | None = None

    @property
    def every(self) -> tuple[EngineInfo, ...]:
        """Each engine of the study, the default engine first."""
        return (self, *self.others)

    def named(self, name: str) -> EngineInfo:
        """Return the engine of that name; the default engine, a simulated one too, if no other has it."""
        return next((each for each in self.others if each.name == name), self)

    @property
    def simulated(self) -> bool:
        """Whether its metrics are predictions."""
        return self.provenance is Provenance.SIMULATED


class Watch(Protocol):
    """Decides while a benchmark runs whether its trial can still win.

    Attributes:
        slos: the SLO of each request class that has one.
        users: users of a closed loop; None for an open loop.
    """

    slos: Mapping[str, RequestSlo]
    users: int | None

    def look(self, progress: RunProgress, at_s: float) -> Cut | None:
        """Return why the trial is lost, `at_s` seconds after its first request was due; None while it can win."""


@runtime_checkable
class Watchable(Protocol):
    """A `Server` whose benchmarks of traffic can be cut short."""

    def watch(self, watch: Watch) -> None:
        """Have the following benchmarks watched: `benchmark` then raises `TrialCut` once the trial is lost."""


class Server(Protocol):
    """One running server. `stop` must be called in any case and may be called twice."""

    argv: tuple[str, ...]
    environment: dict[str, str]

    def wait_ready(self, cancelled: CancelToken) -> None:
        """Return once the server is healthy and serves the right model.

        Raises:
            TrialFailed: typed, if its process exits, the deadline passes or the trial is cancelled.
        """

    def warm_up(self, workload: SingleWorkload, cancelled: CancelToken) -> None:
        """Send the unscored warm-up `workload.warmup()`; a real server goes on until two windows of the load agree.

        Raises:
            TrialFailed: if none of its requests succeeds, the server dies, or the deadline passes.
        """

    def benchmark(self, workload: SingleWorkload, index: int, cancelled: CancelToken) -> Repeat:
        """Run repeat `index` of the workload and return its metrics, failed requests included.

        Raises:
            TrialFailed: if the client writes no result, the server dies, or the deadline passes.
        """

    def facts(self) -> ServerFacts:
        """Return the server's own facts and metrics, up to now."""

    def stop(self) -> Failure | None:
        """End the server and everything that it started, in haste if the trial is cancelled.

        Returns:
            A failure if a process survived.
        """


class Engine(Protocol):
    """An engine on one worker: one device, one server at a time."""

    @property
    def clock(self) -> Clock:
        """The clock of its trials: the machine's, or that of a simulated engine."""

    def info(self) -> EngineInfo:
        """Return the installation."""

    def check(self, spec: TrialSpec) -> Failure | None:
        """Return why the configuration cannot work, as far as that shows without a launch; None if it passes."""

    def launch(self, spec: TrialSpec, limits: Limits) -> Server:
        """Start a server for the trial; logs and results go to `spec.artifacts`.

        Raises:
            TrialFailed: typed, if it cannot be started.
        """

    def close(self) -> None:
        """Stop the running servers and release the engine's own processes and files."""


@dataclass(frozen=True)
class EngineSettings:
    """How a worker builds its engine; picklable, and the same for every worker except `device_index` and `home`.

    `executable` is the program, such as `vllm`. `home` is the folder for caches and process records. `driver` is the
    command that owns the study if it runs on the worker's host; its servers are orphans when it ends. `warm_start`
    starts servers as forks of a process that has imported the engine; docs/design/measurement.md compares them with
    plain starts. `gpus` are the GPUs of a worker. `card` and `version` are those that a simulated engine simulates.
    `environment` has the variables of every server of the study. `secrets` has the values of the variables that trials
    refer to. `others` are further engines of a study of several, of which this one is the default. The load generator
    then sends every workload, and `tokenizers` are those of all engines: their common tokens make the prompts
    (`tuner.engines.server.token_prompts`).
    """

    name: str
    executable: str | None
    home: Path
    device_index: int | None = None
    warm_start: bool = True
    driver: Identity | None = None
    card: HardwareProfile | None = None
    version: str | None = None
    gpus: int = 1
    environment: Mapping[str, str] = field(default_factory=dict)
    secrets: Secrets = NO_SECRETS
    others: tuple[EngineSettings, ...] = ()
    tokenizers: tuple[str, ...] = ()
