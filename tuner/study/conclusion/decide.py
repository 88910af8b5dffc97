"""The decision at the end of a study: which configuration wins, or that the defaults are to be kept."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from storage.records import TrialKind, TrialRecord
from tuner.scoring.compare import Ratio, pooled_ratio
from tuner.scoring.goals import Goals
from tuner.scoring.score import finite_exp
from tuner.study.conclusion.conclusion import ComparedFinalist, Conclusion, Smaller
from tuner.study.conclusion.rounds import Rounds, score_deviation, score_differences

LARGEST_LOSS = 0.01
"""A loss of the score's logarithm that is small even where the standard error is smaller."""

NORMAL_95 = 1.96


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
    goals: Goals,
    records: Sequence[TrialRecord],
    finalists: Sequence[TrialRecord],
    label: str | None,
    flags: Mapping[int, int] | None = None,
    incumbent: int | None = None,
) -> Conclusion:
    """Return the conclusion from a study's records.

    The winner is the finalist with the fewest flags among those that are better than the defaults beyond the noise and
    not worse than the one with the best score.

    Args:
        goals: objectives, SLOs and weights.
        records: every trial of the study.
        finalists: the nominated trials, the defaults among them if they were measured.
        label: the confirmation's name; None without rounds.
        flags: the number of flags of each finalist, by its number; None: flags do not count.
        incumbent: the winner of earlier rounds. It is worse than another one only beyond the noise.
    """
    baseline = next((r for r in records if r.kind is TrialKind.BASELINE and r.round == 0), None)
    noise = noise_of(baseline, goals.objectives[0].metric)
    rounds = Rounds.of(goals, records, label)
    if label is None or baseline is None or not rounds.numbers:
        return _unconfirmed(goals, finalists, baseline, noise)
    faults = {finalist.number: rounds.disqualification(finalist.number) for finalist in finalists}
    remaining = [finalist.number for finalist in finalists if faults[finalist.number] is None]
    if baseline.number not in remaining:
        return _without_reference(baseline.number, remaining, faults, len(rounds.numbers), noise)
    scores = _pooled(rounds, records, remaining, baseline.number)
    metrics = rounds.metric_ratios(remaining, baseline.number)
    compared = tuple(
        ComparedFinalist(number, scores.get(number), metrics.get(number, {}), fault)
        for number, fault in faults.items()
        if number != baseline.number
    )
    return _decide(baseline.number, compared, rounds, records, flags or {}, incumbent, noise)


def _pooled(
    rounds: Rounds, records: Sequence[TrialRecord], remaining: Sequence[int], baseline: int
) -> dict[int, Ratio]:
    """Return the ratio of each finalist's score to that of the defaults, from all rounds in which both were measured.

    Also earlier groups count: the winner of their rounds was picked for them, so that they alone would flatter it.
    """
    known = score_deviation(rounds.goals, records)
    if known is None or len({record.label for record in records if record.round}) == 1:
        return rounds.score_ratios(remaining, baseline)
    others = [number for number in remaining if number != baseline]
    differences = {number: score_differences(rounds.goals, records, number, baseline) for number in others}
    return {number: pooled_ratio(each, *known, len(others)) for number, each in differences.items()}


def _decide(
    baseline: int,
    finalists: tuple[ComparedFinalist, ...],
    measured: Rounds,
    records: Sequence[TrialRecord],
    flags: Mapping[int, int],
    incumbent: int | None,
    noise: float | None,
) -> Conclusion:
    """Return the smallest of the best finalists whose whole interval lies above 1, or else the defaults."""
    rounds = len(measured.numbers)
    scores = {each.number: each.score for each in finalists if each.disqualified is None and each.score is not None}
    better = {number: score for number, score in scores.items() if score.beyond_noise}
    if not better:
        highest = max((score.ratio for score in scores.values()), default=None)
        found = "no finalist met the SLOs" if highest is None else f"the best finalist's score is {highest:.3f}"
        reason = f"keep the defaults: no finalist is better beyond the noise ({found})"
        return Conclusion(baseline, True, True, reason, rounds, finalists, noise)
    best = max(better, key=lambda number: better[number].ratio)
    losses = {number: _loss(measured.goals, records, number, best) for number in better}
    as_good = [number for number, loss in losses.items() if loss.is_small(certain=number == incumbent)]
    winner = min(as_good, key=lambda number: (flags.get(number, 0), -better[number].ratio))
    reason = f"trial {winner} is better than the defaults beyond the noise: score {_text(better[winner])}"
    smaller = None if winner == best else Smaller(best, losses[winner].ratio())
    return Conclusion(winner, False, True, reason, rounds, finalists, noise, smaller=smaller)


@dataclass(frozen=True)
class _Loss:
    """By how much the logarithm of a score is below that of the best finalist.

    Attributes:
        mean: over all rounds in which both were measured, also those of earlier groups; 0 for the best itself.
        error: its standard error; None with a single round.
        rounds: their number.
    """

    mean: float
    error: float | None
    rounds: int

    def is_small(self, *, certain: bool) -> bool:
        """Return whether the loss is within `LARGEST_LOSS` or a standard error; `certain`: within its 95 % interval."""
        return self.mean <= max(LARGEST_LOSS, (NORMAL_95 if certain else 1.0) * (self.error or 0.0))

    def ratio(self) -> Ratio:
        """Return the ratio of the scores."""
        if self.error is None:
            return Ratio(finite_exp(-self.mean), None, None, self.rounds)
        half = NORMAL_95 * self.error
        return Ratio(finite_exp(-self.mean), finite_exp(-self.mean - half), finite_exp(-self.mean + half), self.rounds)


def _loss(goals: Goals, records: Sequence[TrialRecord], number: int, best: int) -> _Loss:
    """Return the loss of a trial relative to the best finalist."""
    if number == best:
        return _Loss(0.0, 0.0, 0)
    differences = score_differences(goals, records, best, number)
    known = score_deviation(goals, records)
    error = None if known is None else known[0] * math.sqrt(2 / len(differences))
    return _Loss(statistics.mean(differences), error, len(differences))


def _text(ratio: Ratio) -> str:
    """Return `1.178 (95 % interval 1.104 to 1.257, 3 rounds)`."""
    if ratio.low is None or ratio.high is None:
        return f"{ratio.ratio:.3f} (one round, no interval)"
    return f"{ratio.ratio:.3f} (95 % interval {ratio.low:.3f} to {ratio.high:.3f}, {ratio.rounds} rounds)"


def _unconfirmed(
    goals: Goals, finalists: Sequence[TrialRecord], baseline: TrialRecord | None, noise: float | None
) -> Conclusion:
    """Conclude from the search alone."""
    best = next((f for f in finalists if f.kind is not TrialKind.BASELINE), None)
    score = best.verdict.score if best is not None and best.verdict is not None else None
    reference_ok = baseline is not None and baseline.state == "ok"
    if best is not None and score is not None and (score > 1.0 or not reference_ok):
        return Conclusion(best.number, False, False, _best_of_search(best.number, score, baseline), 0, (), noise)
    if reference_ok and baseline is not None:
        reason = "keep the defaults: no trial of the search has a higher score"
        return Conclusion(baseline.number, True, False, reason, 0, (), noise)
    slos = ", ".join(str(slo) for slo in goals.slos)
    return Conclusion(None, False, False, f"no trial met the SLOs ({slos})", 0, (), noise)


def _best_of_search(number: int, score: float, baseline: TrialRecord | None) -> str:
    """Return the reason for a winner without rounds, with what is not known about it."""
    if baseline is not None and baseline.outcome is not None and baseline.outcome.succeeded:
        return f"trial {number} has the highest score ({score:.3f}), but no round confirmed it"
    failure = baseline.outcome.failure if baseline is not None and baseline.outcome is not None else None
    why = f"failed ({failure.kind})" if failure is not None else "were not measured"
    return f"trial {number} is the best that met the SLOs; the defaults {why}, so the gain over them is unknown"


def _without_reference(
    baseline: int, remaining: Sequence[int], faults: Mapping[int, str | None], rounds: int, noise: float | None
) -> Conclusion:
    """Conclude where the defaults are disqualified: the first remaining finalist wins, by its score in the search."""
    finalists = tuple(ComparedFinalist(number, None, {}, fault) for number, fault in faults.items())
    others = tuple(finalist for finalist in finalists if finalist.number != baseline)
    if not remaining:
        reasons = "; ".join(f"trial {number} {fault}" for number, fault in faults.items())
        return Conclusion(None, False, True, f"no finalist passed every round: {reasons}", rounds, others, noise)
    reason = f"trial {remaining[0]} met the SLOs in every round; the defaults did not: {faults[baseline]}"
    return Conclusion(remaining[0], False, True, reason, rounds, others, noise)
