"""The decision at the end of a study: which configuration wins, or that the defaults are to be kept."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

from storage.records import TrialKind, TrialRecord
from tuner.scoring.compare import Ratio
from tuner.scoring.goals import Goals
from tuner.study.conclusion.conclusion import ComparedFinalist, Conclusion
from tuner.study.conclusion.rounds import Rounds


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
    """Return the conclusion from a study's records.

    Args:
        goals: objectives, SLOs and weights.
        records: every trial of the study.
        finalists: the nominated trials, the defaults among them if they were measured.
        label: the confirmation's name; None without rounds.
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
    scores = rounds.score_ratios(remaining, baseline.number)
    metrics = rounds.metric_ratios(remaining, baseline.number)
    compared = tuple(
        ComparedFinalist(number, scores.get(number), metrics.get(number, {}), fault)
        for number, fault in faults.items()
        if number != baseline.number
    )
    return _decide(baseline.number, compared, len(rounds.numbers), noise)


def _decide(baseline: int, finalists: tuple[ComparedFinalist, ...], rounds: int, noise: float | None) -> Conclusion:
    """Return the finalist with the highest score whose whole interval lies above 1, or else the defaults."""
    scores = {each.number: each.score for each in finalists if each.disqualified is None and each.score is not None}
    better = {number: score for number, score in scores.items() if score.beyond_noise}
    if not better:
        best = max((score.ratio for score in scores.values()), default=None)
        found = "no finalist met the SLOs" if best is None else f"the best finalist's score is {best:.3f}"
        reason = f"keep the defaults: no finalist is better beyond the noise ({found})"
        return Conclusion(baseline, True, True, reason, rounds, finalists, noise)
    winner = max(better, key=lambda number: better[number].ratio)
    reason = f"trial {winner} is better than the defaults beyond the noise: score {_text(better[winner])}"
    return Conclusion(winner, False, True, reason, rounds, finalists, noise)


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
