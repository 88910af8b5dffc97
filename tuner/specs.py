"""The specification of one trial that a worker receives: everything that it needs, frozen and picklable."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from records.trials import Config, TrialKind
from search_spaces.render import gpus_of, instances_of
from tuner.scoring.goals import Objective, Slo
from tuner.workloads.spec import Workload


@dataclass(frozen=True)
class ModelRef:
    """The model that is served and the tokenizer that makes the load; a hub name or a folder.

    `served_name` is the name in requests and in `/v1/models`.
    """

    name: str
    tokenizer: str
    served_name: str


@dataclass(frozen=True)
class LaunchSpec:
    """One server: the model and the rendered configuration.

    `argv` is the search's own flags, `base_argv` what the study fixes for every trial (load format, seed, sampling
    overrides); neither holds model, host, port or log settings. `environment` is set beyond a clean, inherited one.
    `command` is the user's own command of the engine `openai`, with placeholders; it runs in `folder`, where None is
    the trial's artifacts. `engine` is the name of the engine in a study of several; None: the study's only one.
    """

    model: ModelRef
    argv: tuple[str, ...]
    base_argv: tuple[str, ...] = ()
    environment: dict[str, str] = field(default_factory=dict)
    command: tuple[str, ...] = ()
    folder: str | None = None
    engine: str | None = None

    @property
    def instances(self) -> int:
        """The servers behind one address."""
        return instances_of((*self.base_argv, *self.argv))

    def gpus(self, most: int) -> int:
        """Return the GPUs that the server uses of `most`: instances without GPUs of their own share them."""
        return min(gpus_of((*self.base_argv, *self.argv)) * self.instances, max(most, 1))


@dataclass(frozen=True)
class Limits:
    """Deadlines of a trial in seconds; a phase that exceeds its deadline ends with a typed failure."""

    startup_s: float = 900.0
    warmup_s: float = 300.0
    benchmark_s: float = 1800.0
    stop_s: float = 30.0


@dataclass(frozen=True)
class CutRule:
    """What a trial of the search must reach; it is cut short once it cannot (`tuner.trial.cut`).

    Attributes:
        slos: must hold.
        scored: the objectives of the score.
        reference: their values of the reference, which scores 1; None where it lacks one.
        score: below which a trial cannot win; None while no trial meets every SLO.
        distance: to the SLOs, beyond which a trial is not the nearest to them; where there is no score.
    """

    slos: tuple[Slo, ...]
    scored: tuple[Objective, ...]
    reference: Mapping[str, float | None]
    score: float | None
    distance: float = 0.0


@dataclass(frozen=True)
class TrialSpec:
    """One attempt at a trial.

    With `capacity_slos` it searches the highest request rate at which they hold. `price_per_hour` is that of all GPUs
    of its server, in units of a currency; None: unknown. `gpus` are those of its worker, of which the server may use
    fewer. With `cut`, its benchmark is cut short once it cannot win.
    """

    study: str
    number: int
    round: int
    attempt: int
    kind: TrialKind
    config: Config
    launch: LaunchSpec
    workload: Workload
    repeats: int
    artifacts: Path
    limits: Limits = Limits()
    capacity_slos: tuple[Slo, ...] | None = None
    price_per_hour: float | None = None
    gpus: int = 1
    cut: CutRule | None = None

    @property
    def uid(self) -> str:
        """A name for the attempt that is unique in its study: `12`, `12-r1`, `12-a2`."""
        parts = [str(self.number)]
        if self.round:
            parts.append(f"r{self.round}")
        if self.attempt > 1:
            parts.append(f"a{self.attempt}")
        return "-".join(parts)
