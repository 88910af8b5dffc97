"""The decision at the end of a study: which configuration wins, or that the reference is to be kept."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from records.measured import REFERENCES, reference_of
from records.trials import TrialRecord
from tuner.confidence import INTERVAL, ONE_SIDED
from tuner.scoring.compare import Ratio
from tuner.scoring.goals import Goals
from tuner.scoring.rounds import Rounds, StudyRounds
from tuner.study.conclusion import ComparedFinalist, Conclusion, Smaller, failed_references, kept_name, name_of


@dataclass(frozen=True)
class Preference:
    """What counts beside the finalists' rounds, where smaller configurations are preferred.

    Attributes:
        flags: the number of flags of each configuration, by its number; empty: flags do not count.
        losses: the expected loss of the logarithm of each one's score relative to the best; empty: unknown.
        as_good: those whose loss is small enough, see `scoring.sequential`.
        looks: after how many numbers of rounds the rounds may end.
    """

    flags: Mapping[int, int] = field(default_factory=dict)
    losses: Mapping[int, float] = field(default_factory=dict)
    as_good: frozenset[int] = frozenset()
    looks: int = 1

    def winner(self, numbers: Iterable[int], ratios: Mapping[int, float]) -> tuple[int, int]:
        """Return the smallest of some configurations that is as good as the best one, and the best of them.

        Without expected losses, the best has the highest ratio, and it wins.
        """
        if not self.losses:
            best = max(numbers, key=lambda number: ratios.get(number, 1.0))
            return best, best
        every = list(numbers)
        best = min(every, key=lambda number: self.losses[number])
        as_good = {best, *every} & {best, *self.as_good}
        return min(as_good, key=lambda number: (self.flags[number], self.losses[number])), best


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

    The winner is the finalist with the fewest flags among those that are better than the reference beyond the noise
    and as good as the best one. Where the defaults and the baseline failed, or missed an SLO, the first finalist takes
    their place.
    """
    baseline = reference_of(records)
    noise = noise_of(baseline, goals.objectives[0].metric)
    rounds = Rounds.of(goals, records, label)
    if label is None or not rounds.numbers:
        return replace(_unconfirmed(goals, finalists, records), noise=noise)
    found = _confirmed(rounds, records, finalists, baseline, preference)
    return replace(found, rounds=len(rounds.numbers), noise=noise, looks=preference.looks)


def _confirmed(
    rounds: Rounds,
    records: Sequence[TrialRecord],
    finalists: Sequence[TrialRecord],
    baseline: TrialRecord | None,
    preference: Preference,
) -> Conclusion:
    faults = {finalist.number: rounds.disqualification(finalist.number) for finalist in finalists}
    remaining = [finalist.number for finalist in finalists if faults[finalist.number] is None]
    every = StudyRounds(rounds.goals, records, max(1, len(remaining) - 1) * preference.looks)
    if not remaining:
        reasons = "; ".join(f"trial {number} {fault}" for number, fault in faults.items())
        others = _compared(every, faults, None if baseline is None else baseline.number)
        return Conclusion(None, None, True, f"no finalist passed every round: {reasons}", finalists=others)
    if baseline is not None and baseline.number in remaining:
        return _decide(baseline, _compared(every, faults, baseline.number), every, preference)
    why = _why_not(None if baseline is None else faults.get(baseline.number), baseline, records)
    return _decide_among(remaining[0], _compared(every, faults, remaining[0]), every, preference, why)


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
    reference: TrialRecord, finalists: tuple[ComparedFinalist, ...], every: StudyRounds, preference: Preference
) -> Conclusion:
    """Return the smallest of the best finalists whose whole interval lies above 1, or else the reference."""
    kept, name = reference.number, name_of(reference)
    also = "".join(f"; {clause}" for clause in failed_references(every.records))
    scores = {each.number: each.score for each in finalists if each.disqualified is None and each.score is not None}
    better = {number: score for number, score in scores.items() if score.beyond_noise}
    if not better:
        reason = f"keep {name}: {_not_better(scores)} ({_bound(scores)}){also}"
        return Conclusion(kept, kept_name(reference), True, reason, finalists=finalists, reference=kept)
    winner, best = preference.winner(better, {number: score.ratio for number, score in better.items()})
    reason = f"trial {winner} is better than {name} beyond the noise: score {_text(scores[winner])}{also}"
    smaller = _smaller(every, winner, best)
    return Conclusion(winner, None, True, reason, finalists=finalists, smaller=smaller, reference=kept)


def _not_better(scores: Mapping[int, Ratio]) -> str:
    """Return why no finalist is better than the reference: a single round cannot show a gain."""
    if any(score.low is None and score.ratio > 1 for score in scores.values()):
        return "one round cannot tell a gain from noise, two or more can"
    return "no finalist is better beyond the noise"


def _bound(scores: Mapping[int, Ratio]) -> str:
    """Return how much the finalists of the most rounds may gain nevertheless: all their intervals hold at once."""
    if not scores:
        return "no finalist met the SLOs"
    best = f"the best finalist's score is {max(score.ratio for score in scores.values()):.3f}"
    most = max(score.rounds for score in scores.values())
    ends = [score.high for score in scores.values() if score.rounds == most and score.high is not None]
    if not ends:
        return best
    gain = max(0.0, max(ends) - 1.0)
    return f"{best}; gains above {100 * gain:.1f} % are excluded with {ONE_SIDED}"


def _decide_among(
    first: int, finalists: tuple[ComparedFinalist, ...], every: StudyRounds, preference: Preference, why: str
) -> Conclusion:
    """Conclude where neither the defaults nor the baseline can win: the first finalist is the reference.

    It has no advantage: of equally small configurations that are as good, the best one wins.
    """
    scores = {each.number: each.score for each in finalists if each.disqualified is None and each.score is not None}
    better = {number: score for number, score in scores.items() if score.beyond_noise}
    ratios = {number: score.ratio for number, score in scores.items()}
    candidates = (first, *scores) if preference.losses else better or (first,)
    winner, best = preference.winner(candidates, ratios)
    reason = f"trial {winner} met the SLOs in every round; {why}"
    if winner in better:
        reason += f"; it is better than trial {first} beyond the noise: score {_text(better[winner])}"
    elif scores:
        reason += "; no other finalist is better beyond the noise"
    smaller = _smaller(every, winner, best)
    return Conclusion(winner, None, True, reason, finalists=finalists, smaller=smaller, reference=first)


def _smaller(every: StudyRounds, winner: int, best: int) -> Smaller | None:
    """Return how a winner compares with the best configuration; None if it is that, or no round measured both."""
    score = None if winner == best else every.score(winner, best)
    return None if score is None else Smaller(best, score)


def _why_not(fault: str | None, baseline: TrialRecord | None, records: Sequence[TrialRecord]) -> str:
    """Return why neither the defaults nor the user's baseline can win."""
    clauses = failed_references(records)
    if baseline is not None and fault is not None:
        clauses.append(f"{name_of(baseline)} did not: {fault}")
    return "; ".join(clauses) or "the defaults were not measured"


def _text(ratio: Ratio) -> str:
    """Return `1.178 (95 % interval 1.104 to 1.257, 3 rounds)`."""
    if ratio.low is None or ratio.high is None:
        return f"{ratio.ratio:.3f} (one round, no interval)"
    return f"{ratio.ratio:.3f} ({INTERVAL} {ratio.low:.3f} to {ratio.high:.3f}, {ratio.rounds} rounds)"


def _unconfirmed(goals: Goals, finalists: Sequence[TrialRecord], records: Sequence[TrialRecord]) -> Conclusion:
    """Conclude from the search alone."""
    baseline = reference_of(records)
    best = next((f for f in finalists if f.kind not in REFERENCES), None)
    score = None if best is None else best.score
    reference_ok = baseline is not None and baseline.state == "ok"
    if best is not None and score is not None and (score > 1.0 or not reference_ok):
        return Conclusion(best.number, None, False, _best_of_search(best.number, score, records))
    if reference_ok and baseline is not None:
        reason = f"keep {name_of(baseline)}: no trial of the search has a higher score"
        return Conclusion(baseline.number, kept_name(baseline), False, reason)
    if not any(record.succeeded for record in records):
        return Conclusion(None, None, False, f"no trial worked: {_first_failure(records)}")
    slos = ", ".join(str(slo) for slo in goals.slos)
    return Conclusion(None, None, False, f"no trial met the SLOs ({slos})")


def _first_failure(records: Sequence[TrialRecord]) -> str:
    """Return the first failure with its message, whose end often has the engine's remedy."""
    found = ((each.number, each.failure) for each in records if each.failure is not None)
    return next(
        (f"trial {number} failed, {failure.kind}: {failure.message}" for number, failure in found), "none ended"
    )


def _best_of_search(number: int, score: float, records: Sequence[TrialRecord]) -> str:
    """Return the reason for a winner without rounds, with what is not known about it."""
    if reference_of(records) is not None:
        return f"trial {number} has the highest score ({score:.3f}), but no round confirmed it"
    why = "; ".join(failed_references(records)) or "the defaults were not measured"
    return f"trial {number} is the best that met the SLOs; {why}, so the gain over them is unknown"
