"""A group of configurations that were measured in the same rounds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from search_spaces import ResolvedSpace
from storage.measured import REFERENCES
from storage.records import TrialRecord
from tuner.scoring.goals import Goals
from tuner.scoring.rounds import StudyRounds
from tuner.study.conclusion.conclusion import Conclusion
from tuner.study.conclusion.decide import LARGEST_LOSS


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

    A form that won is close if it has a loss. Where none won, the smallest one that is not worse beyond the noise is.

    Args:
        goals: objectives, SLOs and weights.
        records: every trial of the study.
        compared: the forms beside the pair.
        pair: the best finalist, and the winner before this comparison.
        space: the search space.
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
        return winner if ratios[winner.number].ratio < 1.0 - LARGEST_LOSS else None
    close = [form for form in forms if form.number in ratios and (ratios[form.number].high or 1.0) >= 1.0]
    return min(close, key=lambda r: (len(space.changed(r.config)), -ratios[r.number].ratio), default=None)
