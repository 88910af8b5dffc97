"""What a study concludes: the winner, and each finalist relative to the defaults."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from storage.records import DEFAULTS
from tuner.sampler.flag_effects import FlagEffect
from tuner.scoring.compare import Ratio


@dataclass(frozen=True)
class ComparedFinalist:
    """A finalist after its rounds.

    Args:
        number: of its trial.
        score: ratio of its score to that of the defaults, above 1 is better; None without such a comparison.
        metrics: ratio of each objective's value to that of the defaults, by metric.
        disqualified: why it cannot win; None if it can.
    """

    number: int
    score: Ratio | None
    metrics: Mapping[str, Ratio]
    disqualified: str | None

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON."""
        return {
            "number": self.number,
            "score": None if self.score is None else asdict(self.score),
            "metrics": {name: asdict(ratio) for name, ratio in self.metrics.items()},
            "disqualified": self.disqualified,
        }


@dataclass(frozen=True)
class Smaller:
    """A winner with fewer flags than the finalist with the best score.

    Args:
        best: number of that finalist.
        score: ratio of the winner's score to that finalist's, from the same rounds.
    """

    best: int
    score: Ratio


@dataclass(frozen=True)
class SloDistance:
    """An SLO, and how far a configuration is from meeting it.

    Args:
        slo: as text, such as `p99_tpot_ms<50`.
        value: mean over the rounds, in the metric's unit.
        low: lower end of its 95 % interval; None with a single round.
        high: its upper end.
        excess: of the mean beyond the bound, relative to the bound; at most 0 if the SLO is met.
        best: the value of the trial of the search that is best at this SLO.
        best_trial: number of that trial.
        best_meets: whether that trial meets the SLO.
    """

    slo: str
    value: float | None
    low: float | None
    high: float | None
    excess: float
    best: float | None
    best_trial: int | None
    best_meets: bool


@dataclass(frozen=True)
class Nearest:
    """The configuration that is nearest to meeting the SLOs, where none meets them.

    Args:
        number: of its trial.
        slos: the distance of each SLO, the farthest first.
        rate: request rate of the study's traffic, in requests/s; None if no rate was searched.
        capacity: highest rate at which all SLOs hold for this configuration; None if there is none or it is not known.
        capacity_trial: number of the trial that searched it.
    """

    number: int
    slos: tuple[SloDistance, ...]
    rate: float | None = None
    capacity: float | None = None
    capacity_trial: int | None = None


@dataclass(frozen=True)
class Conclusion:
    """What a study concludes.

    Args:
        winner: number of the trial to run, 0 for the defaults; None if no configuration can be recommended.
        keeps: `defaults` or `baseline` where that is the winner, because nothing is better; else None.
        confirmed: whether this rests on rounds, else on the search's own measurements.
        reason: one line for people.
        rounds: number of rounds.
        finalists: compared with the reference, in the order of their nomination.
        noise: coefficient of variation of the first objective over the defaults' repeats on one server.
        flag_effects: of the winner's parameters, estimated from all trials.
        smaller: how the winner compares with the best finalist, if it won by its fewer flags; else None.
        reference: number of the trial that the finalists are compared with: the defaults, the user's baseline, or a
            finalist where these failed; None without rounds.
        nearest: where no configuration meets the SLOs, the one that is nearest to it.
        would_help: where the reference is kept, what the study's settings exclude and is predicted to help, best first.
        front: every feasible trial and whether another one beats it in every metric, see `Front.to_dict`; None with a
            single metric.
    """

    winner: int | None
    keeps: str | None
    confirmed: bool
    reason: str
    rounds: int
    finalists: tuple[ComparedFinalist, ...] = ()
    noise: float | None = None
    flag_effects: tuple[FlagEffect, ...] = ()
    smaller: Smaller | None = None
    reference: int | None = None
    nearest: Nearest | None = None
    would_help: tuple[str, ...] = ()
    front: Mapping[str, Any] | None = None

    @property
    def keep_defaults(self) -> bool:
        """Whether the winner is the defaults; False for a kept baseline."""
        return self.keeps == DEFAULTS

    @property
    def exported(self) -> int | None:
        """Number of the trial whose script is written: the winner, else the one that is nearest to the SLOs."""
        nearest = None if self.nearest is None else self.nearest.number
        return nearest if self.winner is None else self.winner

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON, as the database stores it."""
        return {
            "winner": self.winner,
            "keeps": self.keeps,
            "keep_defaults": self.keep_defaults,
            "confirmed": self.confirmed,
            "reason": self.reason,
            "rounds": self.rounds,
            "noise": self.noise,
            "contenders": [finalist.to_dict() for finalist in self.finalists],
            "flag_effects": [asdict(each) for each in self.flag_effects],
            "smaller": None if self.smaller is None else asdict(self.smaller),
            "reference": self.reference,
            "nearest": None if self.nearest is None else asdict(self.nearest),
            "would_help": list(self.would_help),
            "front": self.front,
        }
