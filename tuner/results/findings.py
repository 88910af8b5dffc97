"""What the tables of a result show: the conclusion, and the trials that it rests on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from search_spaces import Price
from storage.records import Config, TrialOutcome, TrialRecord, flag_effects_of
from tuner.scoring.compare import measured_ratios
from tuner.scoring.goals import Goals
from tuner.scoring.objectives import Objective
from tuner.scoring.slo import Slo
from tuner.study.conclusion.pooled import any_ratio
from tuner.study.conclusion.reference import name_of, reference_of

INTERVAL = "95 % interval"
"""Heading of the intervals of ratios."""


@dataclass(frozen=True)
class Findings:
    """What the tables show: a conclusion as plain JSON (`Conclusion.to_dict`), and the trials that it rests on.

    `price` is that of a GPU-hour, from which costs follow; None: unknown. `workload` is the study's, as plain JSON;
    empty: its request classes are not known.
    """

    conclusion: Mapping[str, Any]
    records: Sequence[TrialRecord]
    objectives: Sequence[Objective]
    slos: Sequence[Slo]
    defaults: Config
    price: Price | None = None
    workload: Mapping[str, Any] = field(default_factory=dict)

    @property
    def winner(self) -> int | None:
        """Number of the winning trial; None without a winner."""
        number = self.conclusion.get("winner")
        return None if number is None else int(number)

    @property
    def flag_effects(self) -> Sequence[Mapping[str, Any]]:
        """The effects of the winner's flags, the largest first."""
        return flag_effects_of(self.conclusion)

    @property
    def baseline(self) -> int | None:
        """Number of the trial that the finalists are compared with; None if there is none."""
        if (number := self.conclusion.get("reference")) is not None:
            return int(number)
        found = reference_of(self.records)
        return None if found is None else found.number

    @property
    def baseline_name(self) -> str:
        """What the finalists are compared with, as texts name it."""
        number = self.baseline
        record = None if number is None else self.trial(number)
        return "the defaults" if record is None else name_of(record)

    @property
    def baseline_heading(self) -> str:
        """The reference as a column's heading: `defaults #0`, `#3`."""
        name = self.baseline_name.removeprefix("the ").removeprefix(f"trial {self.baseline}")
        return f"{name} #{self.baseline}".strip()

    @property
    def challenger(self) -> int | None:
        """Number of the trial that is compared with the defaults: the winner, else the finalist with the best score."""
        if self.winner is not None and self.winner != self.baseline:
            return self.winner
        if (nearest := self.conclusion.get("nearest")) is not None:
            return int(nearest["number"])
        scored = [each for each in self.conclusion.get("contenders", ()) if each["score"] and not each["disqualified"]]
        best = max(scored, key=lambda each: float(each["score"]["ratio"]), default=None)
        return None if best is None else int(best["number"])

    def contender(self, number: int) -> Mapping[str, Any] | None:
        """Return what the conclusion has of a finalist; None if the trial is none."""
        return next((each for each in self.conclusion.get("contenders", ()) if each["number"] == number), None)

    def ratio(self, number: int, name: str) -> Mapping[str, Any] | None:
        """Return a trial's value of a metric relative to the reference's, as a `Ratio` in plain JSON; None without one.

        Objectives have the conclusion's ratio. Other metrics have one from the same rounds by the same method, else one
        from pairs of rounds, else that of the values of `together`, without an interval.
        """
        known = (self.contender(number) or {}).get("metrics", {}).get(name)
        reference = self.baseline
        if known or reference is None:
            return known or None
        goals = Goals(tuple(self.objectives), tuple(self.slos), tuple(self.objectives))
        compared = [each for each in self.conclusion.get("contenders", ()) if each["score"]]
        pooled = any_ratio(goals, self.records, number, reference, name, max(len(compared), 1))
        if pooled is not None:
            return asdict(pooled)
        if self.common_rounds(number):
            one, other = ([r for r in self.records if r.number == each] for each in (reference, number))
            paired = measured_ratios(one, other, [name], paired=True)[name]
            if paired.ratio is not None:
                return {"ratio": paired.ratio, "low": paired.low, "high": paired.high}
        before, after = (None if each is None else each.metric(name) for each in self.together(number))
        return {"ratio": after / before} if after is not None and before else None

    def trial(self, number: int) -> TrialRecord | None:
        """Return the trial of the search with that number."""
        return next((record for record in self.records if record.number == number and not record.round), None)

    def common_rounds(self, number: int | None) -> list[int]:
        """Return the rounds in which both the reference and a trial were measured, ascending."""
        return sorted(self._rounds(self.baseline).keys() & self._rounds(number).keys())

    def outcomes(self, number: int | None) -> list[TrialOutcome]:
        """Return the outcomes of a trial in its common rounds with the reference, else that of the search."""
        rounds = self._rounds(number)
        found = [rounds[round_] for round_ in self.common_rounds(self.challenger) if round_ in rounds]
        searched = self._searched(number)
        return found or ([searched] if searched is not None else [])

    def together(self, number: int | None) -> tuple[TrialOutcome | None, TrialOutcome | None]:
        """Return the outcomes of the reference and of a trial: all repeats of their common rounds.

        Rounds differ in their prompts, so a round of only one of them would make the values incomparable. Without a
        common round, each has the search's own figures, which flatter a finalist: they are what it was picked for.
        """
        rounds = self.common_rounds(number)
        if not rounds:
            return self._searched(self.baseline), self._searched(number)
        one, other = ([self._rounds(each)[round_] for round_ in rounds] for each in (self.baseline, number))
        return _merged(one), _merged(other)

    def _rounds(self, number: int | None) -> dict[int, TrialOutcome]:
        """Return the outcome of a trial in each round that measured it."""
        return {
            record.round: record.outcome
            for record in self.records
            if record.round and record.number == number and record.outcome is not None and record.outcome.succeeded
        }

    def _searched(self, number: int | None) -> TrialOutcome | None:
        trial = None if number is None else self.trial(number)
        return None if trial is None else trial.outcome


def _merged(outcomes: Sequence[TrialOutcome]) -> TrialOutcome:
    return replace(outcomes[0], repeats=tuple(repeat for outcome in outcomes for repeat in outcome.repeats))
