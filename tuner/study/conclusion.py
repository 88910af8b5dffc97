"""The conclusion of a study: the winner, each finalist relative to the reference, the effects of the winner's flags."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from records.measured import REFERENCES
from records.trials import BASELINE, DEFAULTS, JsonScalar, TrialKind, TrialRecord
from search_spaces import ENGINE, ParameterValue, ResolvedSpace
from tuner.sampler.flag_effects import FlagEffect
from tuner.scoring.compare import Ratio
from tuner.scoring.rounds import StudyRounds


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


@dataclass(frozen=True)
class Smaller:
    """A winner with fewer flags than the finalist `best`; `score` is its ratio to that one, from the same rounds."""

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
        looks: after how many numbers of rounds the rounds might have ended; the intervals allow for that.
        front: every feasible trial and whether another one beats it in every metric, see `Front.to_dict`; None with a
            single metric.
    """

    winner: int | None
    keeps: str | None
    confirmed: bool
    reason: str
    rounds: int = 0
    finalists: tuple[ComparedFinalist, ...] = ()
    noise: float | None = None
    flag_effects: tuple[FlagEffect, ...] = ()
    smaller: Smaller | None = None
    reference: int | None = None
    nearest: Nearest | None = None
    would_help: tuple[str, ...] = ()
    front: Mapping[str, Any] | None = None
    looks: int = 1

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
        """Return what the database stores as JSON."""
        found = asdict(self)
        contenders = found.pop("finalists")
        return {**found, "contenders": contenders, "keep_defaults": self.keep_defaults}


def defaults_of(records: Sequence[TrialRecord], reference: TrialRecord, winner: TrialRecord | None) -> int:
    """Return the number of the defaults from which a winner differs.

    In a study of several engines they are those of the winner's engine. Otherwise they are the reference; where a
    finalist is in its place, the defaults, if known.
    """
    searched = [record for record in records if not record.round]
    engine = None if winner is None else winner.config.get(ENGINE)
    if engine is not None:
        own = next((record for record in searched if record.config == {ENGINE: engine}), None)
        if own is not None:
            return own.number
    known = (record.number for record in searched if record.kind is TrialKind.BASELINE)
    return reference.number if reference.kind in REFERENCES else next(known, reference.number)


def chosen_by_engine(records: Sequence[TrialRecord]) -> dict[str, JsonScalar]:
    """Return the values of parameters that the engine chose by itself, as its log says, in the trial of the defaults.

    A flag with the same value cannot pay, although the search space does not know that default.
    """
    defaults = (r.outcome for r in records if r.kind is TrialKind.BASELINE and not r.round and r.outcome is not None)
    server = next((outcome.server for outcome in defaults if outcome.succeeded), None)
    backend = None if server is None else server.attention_backend
    return {} if backend is None else {"attention_backend": backend}


def name_of(record: TrialRecord) -> str:
    """Return how texts name a reference."""
    if record.kind is TrialKind.CURRENT:
        return "the baseline"
    return "the defaults" if record.kind is TrialKind.BASELINE else f"trial {record.number}"


def kept_name(record: TrialRecord) -> str:
    """Return what a conclusion keeps if it keeps this reference."""
    return BASELINE if record.kind is TrialKind.CURRENT else DEFAULTS


def failed_references(records: Sequence[TrialRecord]) -> list[str]:
    """Return a clause for each possible reference that failed: `the defaults failed (engine_crash)`."""
    clauses = []
    for kind in REFERENCES:
        for record in records:
            if record.kind is kind and not record.round and record.failure is not None:
                clauses.append(f"{name_of(record)} failed ({record.failure.kind})")
    return clauses


def measured_effects(
    rounds: StudyRounds,
    winner: TrialRecord,
    without: Mapping[str, TrialRecord],
    defaults: Mapping[str, ParameterValue],
) -> list[FlagEffect]:
    """Return the effect of each flag that was left out, the largest first; none with a single round.

    The configurations `without` a flag failed and missed an SLO in no round.
    """
    effects = []
    for name, record in without.items():
        score = rounds.score(winner.number, record.number)
        if score is not None and score.low is not None and score.high is not None:
            objectives = [objective.metric for objective in rounds.goals.objectives]
            ratios = {metric: rounds.metric(metric, winner.number, record.number) for metric in objectives}
            effects.append(
                FlagEffect(
                    name=name,
                    value=winner.config[name],
                    default=record.config.get(name, defaults.get(name)),
                    ratio=score.ratio,
                    low=score.low,
                    high=score.high,
                    metrics={metric: ratio.ratio for metric, ratio in ratios.items() if ratio is not None},
                    needed=0.0,
                    trials=0,
                    rounds=score.rounds,
                )
            )
    return sorted(effects, key=lambda effect: (-effect.ratio, effect.name))


def without_one_flag(space: ResolvedSpace, group: Sequence[TrialRecord], winner: TrialRecord) -> dict[str, TrialRecord]:
    """Return the configurations of a group that are the winner without one flag, by the flag's name.

    For a winner with a single flag these are the defaults of its engine.
    """
    found = {}
    for name in space.changed(winner.config):
        rest = space.without(winner.config, name)
        record = next((each for each in group if space.same_server(each.config, rest)), None)
        if record is not None:
            found[name] = record
    return found
