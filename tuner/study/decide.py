"""The decision at the end of a study: which configuration wins, or that the reference is to be kept."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from records.measured import REFERENCES, reference_of
from records.trials import TrialRecord
from search_spaces import ResolvedSpace
from tuner.confidence import INTERVAL, t_factor
from tuner.scoring.compare import Noise, Ratio
from tuner.scoring.goals import Goals
from tuner.scoring.rounds import Rounds, StudyRounds
from tuner.study.conclusion import ComparedFinalist, Conclusion, Smaller, failed_references, kept_name, name_of

_LARGEST_LOSS = 0.01
"""A loss of the score's logarithm that is small even where the standard error is smaller."""

PREDICTED_SPREAD = 0.02
"""Standard deviation of the error of a predicted loss."""


@dataclass(frozen=True)
class Preference:
    """What counts beside the finalists' rounds.

    Attributes:
        flags: the number of flags of each finalist, by its number; empty: flags do not count.
        predicted: the predicted logarithm of each finalist's score; empty without predictions.
        incumbent: the winner of earlier rounds. It is worse than another one only beyond the noise.
        provisional: whether the winner goes on to further rounds. It may then be a smaller form of which the rounds do
            not show yet that it is better than the defaults.
    """

    flags: Mapping[int, int] = field(default_factory=dict)
    predicted: Mapping[int, float] = field(default_factory=dict)
    incumbent: int | None = None
    provisional: bool = False


def noise_of(baseline: TrialRecord | None, metric: str) -> float | None:
    """Return the coefficient of variation of a metric over the reference's repeats on one server."""
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
    preference: Preference = Preference(),
) -> Conclusion:
    """Return the conclusion from a study's records: from the rounds with a label, else from the search alone.

    The winner is the finalist with the fewest flags among those that are better than the reference beyond the noise and
    not worse than the one with the best score. Where the defaults and the baseline failed, or missed an SLO, the first
    finalist takes their place.
    """
    baseline = reference_of(records)
    noise = noise_of(baseline, goals.objectives[0].metric)
    rounds = Rounds.of(goals, records, label)
    if label is None or not rounds.numbers:
        return _unconfirmed(goals, finalists, records, noise)
    faults = {finalist.number: rounds.disqualification(finalist.number) for finalist in finalists}
    remaining = [finalist.number for finalist in finalists if faults[finalist.number] is None]
    every = StudyRounds(goals, records, max(1, len(remaining) - 1))
    if not remaining:
        reasons = "; ".join(f"trial {number} {fault}" for number, fault in faults.items())
        others = _compared(every, faults, None if baseline is None else baseline.number)
        reason = f"no finalist passed every round: {reasons}"
        return Conclusion(None, None, True, reason, len(rounds.numbers), others, noise)
    is_alive = baseline is not None and baseline.number in remaining
    reference = (
        baseline if baseline is not None and is_alive else next(r for r in finalists if r.number == remaining[0])
    )
    compared, count = _compared(every, faults, reference.number), len(rounds.numbers)
    if is_alive:
        return _decide(reference, compared, every, count, preference, noise)
    why = _why_not(None if baseline is None else faults.get(baseline.number), baseline, records)
    return _decide_among(reference, compared, every, count, preference, why, noise)


def _compared(
    every: StudyRounds, faults: Mapping[int, str | None], reference: int | None
) -> tuple[ComparedFinalist, ...]:
    """Return every finalist but the reference; those without a fault are compared with it."""
    if reference is None or faults.get(reference, "") is not None:
        return tuple(ComparedFinalist(n, None, {}, fault) for n, fault in faults.items() if n != reference)
    names = [objective.metric for objective in every.goals.objectives]
    found = []
    for number, fault in faults.items():
        ratios = {name: every.metric(name, number, reference) for name in names} if fault is None else {}
        metrics = {name: ratio for name, ratio in ratios.items() if ratio is not None}
        score = every.score(number, reference) if fault is None else None
        if number != reference:
            found.append(ComparedFinalist(number, score, metrics, fault))
    return tuple(found)


def _decide(
    reference: TrialRecord,
    finalists: tuple[ComparedFinalist, ...],
    every: StudyRounds,
    rounds: int,
    preference: Preference,
    noise: float | None,
) -> Conclusion:
    """Return the smallest of the best finalists whose whole interval lies above 1, or else the reference."""
    kept, name = reference.number, name_of(reference)
    also = "".join(f"; {clause}" for clause in failed_references(every.records))
    scores = {each.number: each.score for each in finalists if each.disqualified is None and each.score is not None}
    better = {number: score for number, score in scores.items() if score.beyond_noise}
    if not better:
        highest = max((score.ratio for score in scores.values()), default=None)
        found = "no finalist met the SLOs" if highest is None else f"the best finalist's score is {highest:.3f}"
        reason = f"keep {name}: {_not_better(scores)} ({found}){also}"
        return Conclusion(kept, kept_name(reference), True, reason, rounds, finalists, noise, reference=kept)
    best = max(better, key=lambda number: better[number].ratio)
    candidates = scores if preference.provisional else better
    losses = {number: _loss(every, number, best, preference.predicted) for number in candidates}
    as_good = [number for number, loss in losses.items() if loss.is_small(certain=number == preference.incumbent)]
    winner = min(as_good, key=lambda number: (preference.flags.get(number, 0), -scores[number].ratio))
    reason = f"trial {winner} is better than {name} beyond the noise: score {_text(scores[winner])}{also}"
    smaller = None if winner == best else Smaller(best, _ratio_to(every, winner, best))
    return Conclusion(winner, None, True, reason, rounds, finalists, noise, smaller=smaller, reference=kept)


def _not_better(scores: Mapping[int, Ratio]) -> str:
    """Return why no finalist is better than the reference: a single round cannot show a gain."""
    if any(score.low is None and score.ratio > 1 for score in scores.values()):
        return "one round cannot tell a gain from noise, two or more can"
    return "no finalist is better beyond the noise"


def _decide_among(
    first: TrialRecord,
    finalists: tuple[ComparedFinalist, ...],
    every: StudyRounds,
    rounds: int,
    preference: Preference,
    why: str,
    noise: float | None,
) -> Conclusion:
    """Conclude where neither the defaults nor the baseline can win: the first finalist is the reference.

    It wins unless another finalist is better beyond the noise, or is as good with fewer flags.
    """
    scores = {each.number: each.score for each in finalists if each.disqualified is None and each.score is not None}
    better = {number: score for number, score in scores.items() if score.beyond_noise}
    best = max(better, key=lambda number: better[number].ratio, default=first.number)
    numbers = (first.number, *scores)
    losses = {number: _loss(every, number, best, preference.predicted) for number in numbers}
    as_good = [number for number, loss in losses.items() if loss.is_small(certain=number == preference.incumbent)]
    ratios = {number: score.ratio for number, score in scores.items()}
    winner = min(
        as_good, key=lambda number: (preference.flags.get(number, 0), number != best, -ratios.get(number, 1.0))
    )
    reason = f"trial {winner} met the SLOs in every round; {why}"
    if winner in better:
        reason += f"; it is better than trial {first.number} beyond the noise: score {_text(better[winner])}"
    elif scores:
        reason += "; no other finalist is better beyond the noise"
    smaller = None if winner == best else Smaller(best, _ratio_to(every, winner, best))
    return Conclusion(winner, None, True, reason, rounds, finalists, noise, smaller=smaller, reference=first.number)


def _why_not(fault: str | None, baseline: TrialRecord | None, records: Sequence[TrialRecord]) -> str:
    """Return why neither the defaults nor the user's baseline can win."""
    clauses = failed_references(records)
    if baseline is not None and fault is not None:
        clauses.append(f"{name_of(baseline)} did not: {fault}")
    return "; ".join(clauses) or "the defaults were not measured"


@dataclass(frozen=True)
class _Loss:
    """By how much the logarithm of a score is below that of the best finalist.

    Attributes:
        mean: over all rounds in which both were measured, also those of earlier groups; 0 for the best itself.
        error: its standard error with its degrees of freedom; None with a single round.
        predicted: the predicted loss; None without a prediction.
    """

    mean: float
    error: Noise | None
    predicted: float | None = None

    def is_small(self, *, certain: bool) -> bool:
        """Return whether the loss is within `_LARGEST_LOSS` or a standard error; `certain`: within its interval."""
        mean, error = self._expected()
        factor = t_factor(self.error.degrees) if certain and self.error is not None else 1.0
        return mean <= max(_LARGEST_LOSS, factor * error)

    def _expected(self) -> tuple[float, float]:
        """Return mean and standard deviation of the loss: measurement and prediction, weighted by their precision."""
        error = 0.0 if self.error is None else self.error.deviation
        if self.error is None or self.predicted is None:
            return self.mean, error
        weight = PREDICTED_SPREAD**2 / (PREDICTED_SPREAD**2 + error**2)
        return weight * self.mean + (1.0 - weight) * self.predicted, math.sqrt(weight) * error


def _loss(every: StudyRounds, number: int, best: int, predicted: Mapping[int, float]) -> _Loss:
    """Return the loss of a trial relative to the best finalist."""
    if number == best:
        return _Loss(0.0, None)
    differences, noise = every.score_differences(best, number), every.score_noise
    error = None if noise is None else Noise(noise.deviation * math.sqrt(2 / len(differences)), noise.degrees)
    known_prediction = number in predicted and best in predicted
    expected = predicted[best] - predicted[number] if known_prediction else None
    return _Loss(statistics.mean(differences), error, expected)


def _ratio_to(every: StudyRounds, number: int, best: int) -> Ratio:
    """Return the ratio of a trial's score to that of another one of the same rounds."""
    found = every.score(number, best)
    assert found is not None
    return found


def _text(ratio: Ratio) -> str:
    """Return `1.178 (95 % interval 1.104 to 1.257, 3 rounds)`."""
    if ratio.low is None or ratio.high is None:
        return f"{ratio.ratio:.3f} (one round, no interval)"
    return f"{ratio.ratio:.3f} ({INTERVAL} {ratio.low:.3f} to {ratio.high:.3f}, {ratio.rounds} rounds)"


def _unconfirmed(
    goals: Goals, finalists: Sequence[TrialRecord], records: Sequence[TrialRecord], noise: float | None
) -> Conclusion:
    """Conclude from the search alone."""
    baseline = reference_of(records)
    best = next((f for f in finalists if f.kind not in REFERENCES), None)
    score = best.verdict.score if best is not None and best.verdict is not None else None
    reference_ok = baseline is not None and baseline.state == "ok"
    if best is not None and score is not None and (score > 1.0 or not reference_ok):
        return Conclusion(best.number, None, False, _best_of_search(best.number, score, records), 0, (), noise)
    if reference_ok and baseline is not None:
        reason = f"keep {name_of(baseline)}: no trial of the search has a higher score"
        return Conclusion(baseline.number, kept_name(baseline), False, reason, 0, (), noise)
    if not any(record.outcome is not None and record.outcome.succeeded for record in records):
        return Conclusion(None, None, False, f"no trial worked: {_first_failure(records)}", 0, (), noise)
    slos = ", ".join(str(slo) for slo in goals.slos)
    return Conclusion(None, None, False, f"no trial met the SLOs ({slos})", 0, (), noise)


def _first_failure(records: Sequence[TrialRecord]) -> str:
    """Return the first failure with its message, whose end often has the engine's remedy."""
    found = ((each.number, each.outcome.failure) for each in records if each.outcome and each.outcome.failure)
    return next(
        (f"trial {number} failed, {failure.kind}: {failure.message}" for number, failure in found), "none ended"
    )


def _best_of_search(number: int, score: float, records: Sequence[TrialRecord]) -> str:
    """Return the reason for a winner without rounds, with what is not known about it."""
    if reference_of(records) is not None:
        return f"trial {number} has the highest score ({score:.3f}), but no round confirmed it"
    why = "; ".join(failed_references(records)) or "the defaults were not measured"
    return f"trial {number} is the best that met the SLOs; {why}, so the gain over them is unknown"


@dataclass(frozen=True)
class Compared:
    """Configurations that were measured in the same rounds, the reference first, and what follows from them.

    `label` is the name of these rounds, and `last` is the last round that counts in the conclusion.
    """

    group: tuple[TrialRecord, ...]
    conclusion: Conclusion
    label: str
    last: int

    @property
    def winner(self) -> TrialRecord | None:
        """The winner; None if the defaults are kept or nothing can be recommended."""
        if self.conclusion.keeps is not None:
            return None
        return next((record for record in self.group if record.number == self.conclusion.winner), None)


def with_both_winners(before: Compared, best: TrialRecord, winner: TrialRecord) -> dict[int, TrialRecord]:
    """Return what is measured beside smaller forms: the reference of the study, if it works, and both winners."""
    reference = [record for record in before.group[:1] if record.kind in REFERENCES]
    return {record.number: record for record in (*reference, best, winner)}


def close_form(
    goals: Goals,
    records: Sequence[TrialRecord],
    compared: Compared,
    pair: tuple[TrialRecord, TrialRecord],
    space: ResolvedSpace,
) -> TrialRecord | None:
    """Return the smaller form of which further rounds may change the verdict; None if none was a close one.

    The pair is the best finalist and the winner before this comparison. A form that won is close if it has a loss.
    Where none won, the smallest one that is not worse beyond the noise is.
    """
    numbers = {record.number for record in pair}
    out = {each.number for each in compared.conclusion.finalists if each.disqualified is not None}
    forms = [r for r in compared.group if r.kind not in REFERENCES and r.number not in numbers | out]
    until_now = [record for record in records if record.round <= compared.last]
    scored = [each for each in compared.conclusion.finalists if each.score is not None]
    every = StudyRounds(goals, until_now, max(1, len(scored)))
    scores = {form.number: every.score(form.number, pair[0].number) for form in forms}
    ratios = {number: score for number, score in scores.items() if score is not None}
    winner = compared.winner
    if winner is not None and winner.number in ratios:
        return winner if ratios[winner.number].ratio < 1.0 - _LARGEST_LOSS else None
    close = [form for form in forms if form.number in ratios and (ratios[form.number].high or 1.0) >= 1.0]
    return min(close, key=lambda r: (len(space.changed(r.config)), -ratios[r.number].ratio), default=None)
