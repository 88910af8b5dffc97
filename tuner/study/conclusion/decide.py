"""The end of a study: who won, by how much, how sure that is, and when the answer is "keep the defaults"."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from storage.metrics import Direction
from storage.records import TrialKind, TrialRecord
from tuner.sampler.flag_effects import FlagEffect
from tuner.scoring.compare import Ratio, compare
from tuner.scoring.goals import Goals


@dataclass(frozen=True)
class Contender:
    """A finalist after its rounds. Ratios are to the defaults; `score` above 1 is better, metrics are plain ratios."""

    number: int
    score: Ratio | None
    metrics: Mapping[str, Ratio]
    disqualified: str | None

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON."""
        return {
            "number": self.number,
            "score": _ratio_dict(self.score),
            "metrics": {name: _ratio_dict(ratio) for name, ratio in self.metrics.items()},
            "disqualified": self.disqualified,
        }


@dataclass(frozen=True)
class Conclusion:
    """What the study says. `winner` is None when nothing can be recommended; `confirmed` False when it rests on the
    search's own measurements. `flag_effects` are those of the winner's parameters, estimated from all trials."""

    winner: int | None
    keep_defaults: bool
    confirmed: bool
    reason: str
    rounds: int
    contenders: tuple[Contender, ...] = ()
    noise: float | None = None
    flag_effects: tuple[FlagEffect, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON."""
        return {
            "winner": self.winner,
            "keep_defaults": self.keep_defaults,
            "confirmed": self.confirmed,
            "reason": self.reason,
            "rounds": self.rounds,
            "noise": self.noise,
            "contenders": [contender.to_dict() for contender in self.contenders],
            "earned": [asdict(each) for each in self.flag_effects],
        }


def _ratio_dict(ratio: Ratio | None) -> dict[str, Any] | None:
    if ratio is None:
        return None
    return {"ratio": ratio.ratio, "low": ratio.low, "high": ratio.high, "rounds": ratio.rounds}


def noise_of(baseline: TrialRecord | None, metric: str) -> float | None:
    """Return the coefficient of variation of a metric over the defaults' repeats on one server."""
    if baseline is None or baseline.outcome is None:
        return None
    values = [repeat.metrics.get(metric) for repeat in baseline.outcome.repeats]
    present = [value for value in values if value]
    if len(present) < 2:
        return None
    return statistics.stdev(present) / statistics.mean(present)


def conclude(
    goals: Goals, records: Sequence[TrialRecord], finalists: Sequence[TrialRecord], label: str | None
) -> Conclusion:
    """Judge the study from its records.

    Args:
        goals: objectives, SLOs and weights.
        records: every trial of the study.
        finalists: who was nominated, the defaults among them if they were measured.
        label: the confirmation's name; None if there was none.
    """
    baseline = next((r for r in records if r.kind is TrialKind.BASELINE and r.round == 0), None)
    noise = noise_of(baseline, goals.objectives[0].metric)
    cells = {(r.number, r.round): r for r in records if r.round and r.label == label and r.outcome is not None}
    rounds = sorted({round_ for _, round_ in cells})
    if label is None or baseline is None or not rounds:
        return _unconfirmed(goals, finalists, baseline, noise)
    out = {f.number: _disqualified(goals, f.number, rounds, cells) for f in finalists}
    sound = [f.number for f in finalists if out[f.number] is None]
    if baseline.number not in sound:
        return _without_reference(baseline.number, sound, out, rounds, noise, finalists)
    scores = compare({n: [_merit(goals, cells[n, r]) for r in rounds] for n in sound}, baseline.number)
    metrics = _metric_ratios(goals, sound, rounds, cells, baseline.number)
    contenders = tuple(
        Contender(f.number, scores.get(f.number), metrics.get(f.number, {}), out[f.number])
        for f in finalists
        if f.number != baseline.number
    )
    return _decide(baseline.number, contenders, len(rounds), noise)


def _decide(baseline: int, contenders: tuple[Contender, ...], rounds: int, noise: float | None) -> Conclusion:
    """Name the contender with the highest score whose whole interval lies above 1, or the defaults."""
    better = [c for c in contenders if c.disqualified is None and c.score is not None and c.score.beyond_noise]
    if not better:
        best = max((c.score.ratio for c in contenders if c.score and not c.disqualified), default=None)
        seen = f"the best finalist scored {best:.3f} of them" if best is not None else "no finalist held the SLOs"
        reason = f"keep the defaults: no configuration beat them beyond the noise ({seen})"
        return Conclusion(baseline, True, True, reason, rounds, contenders, noise)
    winner = max(better, key=lambda c: c.score.ratio if c.score else 0.0)
    assert winner.score is not None
    reason = (
        f"trial {winner.number} beats the defaults beyond the noise: score {_text(winner.score)} in {rounds} rounds"
    )
    return Conclusion(winner.number, False, True, reason, rounds, contenders, noise)


def _text(ratio: Ratio) -> str:
    if ratio.low is None or ratio.high is None:
        return f"{ratio.ratio:.3f} (one round, no interval)"
    return f"{ratio.ratio:.3f} (95 % interval {ratio.low:.3f} to {ratio.high:.3f})"


def _unconfirmed(
    goals: Goals, finalists: Sequence[TrialRecord], baseline: TrialRecord | None, noise: float | None
) -> Conclusion:
    """Conclude from the search alone."""
    best = next((f for f in finalists if f.kind is not TrialKind.BASELINE), None)
    score = best.verdict.score if best is not None and best.verdict is not None else None
    reference_ok = baseline is not None and baseline.state == "ok"
    if best is not None and score is not None and (score > 1.0 or not reference_ok):
        return Conclusion(best.number, False, False, _best_alone(best.number, score, baseline), 0, (), noise)
    if reference_ok and baseline is not None:
        return Conclusion(baseline.number, True, False, "keep the defaults: nothing scored better", 0, (), noise)
    slos = ", ".join(str(slo) for slo in goals.slos)
    return Conclusion(None, False, False, f"no trial met the SLOs ({slos})", 0, (), noise)


def _best_alone(number: int, score: float, baseline: TrialRecord | None) -> str:
    """Say that a trial is the best, and what is not known of it."""
    if baseline is not None and baseline.outcome is not None and baseline.outcome.succeeded:
        return f"trial {number} scored best ({score:.3f}), but was not measured again against the defaults"
    failure = baseline.outcome.failure if baseline is not None and baseline.outcome is not None else None
    why = f"failed ({failure.kind})" if failure is not None else "were not measured"
    return f"trial {number} is the best that held the SLOs; the defaults {why}, so no gain over them can be told"


def _without_reference(
    baseline: int,
    sound: list[int],
    out: Mapping[int, str | None],
    rounds: list[int],
    noise: float | None,
    finalists: Sequence[TrialRecord],
) -> Conclusion:
    """Conclude where the defaults themselves fail: the finalist nominated first that does not, wins."""
    contenders = tuple(Contender(f.number, None, {}, out[f.number]) for f in finalists if f.number != baseline)
    if not sound:
        return Conclusion(None, False, True, f"no finalist held: {out}", len(rounds), contenders, noise)
    reason = f"trial {sound[0]} holds where the defaults do not: {out[baseline]}"
    return Conclusion(sound[0], False, True, reason, len(rounds), contenders, noise)


def _disqualified(
    goals: Goals, number: int, rounds: Sequence[int], cells: Mapping[tuple[int, int], TrialRecord]
) -> str | None:
    """Return why a finalist is out: it failed in a round, or missed an SLO in one."""
    measured = [cells.get((number, round_)) for round_ in rounds]
    for record in measured:
        fault = None if record is None else fault_of(goals, record)
        if fault is not None:
            return fault
    lacking = [round_ for round_, record in zip(rounds, measured, strict=True) if record is None]
    return f"not measured in round {lacking[0]}" if lacking else None


def fault_of(goals: Goals, record: TrialRecord) -> str | None:
    """Return how a finalist failed in a round, or which SLO it missed there; None if neither."""
    if record.outcome is None:
        return None
    if record.outcome.failure is not None:
        return f"failed in round {record.round}: {record.outcome.failure.kind}"
    for slo in goals.slos:
        value = record.outcome.metric(slo.metric)
        if not slo.met(value):
            shown = "absent" if value is None else f"{value:.4g}"
            return f"missed {slo} in round {record.round} ({shown})"
    return None


AS_GOOD_AS_NOTHING = 1e-3
"""What a metric that is better when higher counts as where it is 0; left out, it would flatter."""


def _merit(goals: Goals, record: TrialRecord) -> float:
    """Return the weighted mean of the logarithms of what is scored, larger is better; see `tuner.scoring.score`."""
    assert record.outcome is not None
    total = weighted = 0.0
    for objective in goals.scored:
        value = record.outcome.metric(objective.metric)
        higher = objective.direction is Direction.MAXIMIZE
        if value == 0 and higher:
            value = AS_GOOD_AS_NOTHING
        if value is None or value <= 0:
            continue
        sign = 1.0 if higher else -1.0
        total += objective.weight
        weighted += objective.weight * sign * math.log(value)
    return weighted / total if total else 0.0


def _metric_ratios(
    goals: Goals,
    sound: Sequence[int],
    rounds: Sequence[int],
    cells: Mapping[tuple[int, int], TrialRecord],
    reference: int,
) -> dict[int, dict[str, Ratio]]:
    """Return each finalist's ratio to the defaults of every objective, with its interval."""
    result: dict[int, dict[str, Ratio]] = {number: {} for number in sound}
    for objective in goals.objectives:
        logs: dict[int, list[float]] = {}
        for number in sound:
            outcomes = [cells[number, round_].outcome for round_ in rounds]
            values = [outcome.metric(objective.metric) if outcome else None for outcome in outcomes]
            if all(value is not None and value > 0 for value in values):
                logs[number] = [math.log(value) for value in values if value is not None]
        if reference in logs:
            for number, ratio in compare(logs, reference).items():
                result[number][objective.metric] = ratio
    return result
