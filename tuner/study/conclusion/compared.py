"""A group of configurations that were measured in the same rounds."""

from __future__ import annotations

from dataclasses import dataclass

from storage.records import TrialRecord
from tuner.study.conclusion.conclusion import Conclusion
from tuner.study.conclusion.reference import REFERENCES


@dataclass(frozen=True)
class Compared:
    """Configurations that were measured in the same rounds, the reference first, and what follows from them."""

    group: tuple[TrialRecord, ...]
    conclusion: Conclusion

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
