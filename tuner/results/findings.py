"""The findings of a study: its conclusion, and the trials that the conclusion rests on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from typing import Any

from records.measured import (
    challenger_of,
    common_rounds,
    exported_of,
    measured,
    reference_number,
    rounds_of,
    search_trial,
    shown_rounds,
)
from records.tables import Grid, grid
from records.trials import Config, StudyRecord, TrialOutcome, TrialRecord
from search_spaces import Price
from tuner.results import text
from tuner.scoring.compare import MeasuredRatio, Ratio
from tuner.scoring.goals import Goals, Objective, Slo, parse_slo
from tuner.scoring.rounds import StudyRounds
from tuner.study.conclusion import name_of
from tuner.study.specification.resolve_workload import make_goals


@dataclass(frozen=True)
class Findings:
    """What the tables show: a conclusion as plain JSON (`Conclusion.to_dict`), and the trials that it rests on.

    `price` is that of a GPU-hour, from which costs follow; None: unknown. `workload` is the study's, as plain JSON;
    empty: its request classes are not known.
    """

    conclusion: Mapping[str, Any]
    records: Sequence[TrialRecord]
    goals: Goals
    defaults: Config
    price: Price | None = None
    workload: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, study: StudyRecord, records: Sequence[TrialRecord]) -> Findings:
        """Return the findings of a stored study; with an empty conclusion before its end."""
        premise = study.premise
        return cls(
            study.conclusion or {},
            records,
            make_goals(premise["objectives"], premise["slos"]),
            dict(study.facts.get("engine_defaults", {})),
            Price.from_dict(study.facts.get("price")),
            premise["workload"],
        )

    @property
    def objectives(self) -> Sequence[Objective]:
        """The study's objectives."""
        return self.goals.objectives

    @property
    def slos(self) -> Sequence[Slo]:
        """The study's SLOs."""
        return self.goals.slos

    @property
    def winner(self) -> int | None:
        """Number of the winning trial; None without a winner."""
        number = self.conclusion.get("winner")
        return None if number is None else int(number)

    @property
    def flag_effects(self) -> Sequence[Mapping[str, Any]]:
        """The effects of the winner's flags, the largest first."""
        effects: Sequence[Mapping[str, Any]] = self.conclusion.get("flag_effects", ())
        return effects

    @property
    def baseline(self) -> int | None:
        """Number of the trial that the finalists are compared with; None if there is none."""
        return reference_number(self.conclusion, self.records)

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
        """Number of the trial that is compared with the reference, see `challenger_of`."""
        return challenger_of(self.conclusion, self.records)

    @property
    def exported(self) -> int | None:
        """Number of the trial that the user gets: the winner, which may be the reference, else the nearest."""
        return exported_of(self.conclusion)

    @property
    def noise(self) -> float | None:
        """Deviation of the first objective, relative to it, between repeats on one server, or between rounds."""
        between = self.rounds.noise(self.objectives[0].metric)
        found = [self.conclusion.get("noise"), None if between is None else between.deviation]
        return max((each for each in found if each is not None), default=None)

    def contender(self, number: int) -> Mapping[str, Any] | None:
        """Return what the conclusion has of a finalist; None if the trial is none."""
        return next((each for each in self.conclusion.get("contenders", ()) if each["number"] == number), None)

    def score(self, number: int, reference: int | None = None) -> Mapping[str, Any] | None:
        """Return a trial's score relative to that of the reference, or of another trial; see `ratio`."""
        return self._known(number, reference, None)

    def ratio(self, number: int, name: str, reference: int | None = None) -> Mapping[str, Any] | None:
        """Return a trial's value of a metric relative to that of the reference, or of another trial.

        It is a `Ratio` as plain JSON: the conclusion's, where it has it, else one by the same method; None without one.
        """
        return self._known(number, reference, name)

    def beside(self, number: int, name: str, reference: int | None = None) -> MeasuredRatio:
        """Return a metric of a trial beside that of the reference, or of another trial."""
        one = self.baseline if reference is None else reference
        assert one is not None
        found = self.rounds.beside(name, number, one)
        ratio = self.ratio(number, name, one) or {}
        return replace(found, ratio=ratio.get("ratio"), low=ratio.get("low"), high=ratio.get("high"))

    @cached_property
    def rounds(self) -> StudyRounds:
        """The rounds of the study, by which trials are compared."""
        return StudyRounds.concluded(self.goals, self.records, self.conclusion)

    def _known(self, number: int, reference: int | None, name: str | None) -> Mapping[str, Any] | None:
        one = self.baseline if reference is None else reference
        if one is None:
            return None
        if one == self.baseline and (stored := self._stored(number, name)):
            return stored
        if number == self.baseline and (stored := self._stored(one, name)):
            return asdict(Ratio(**stored).inverse())
        found = self.rounds.score(number, one) if name is None else self.rounds.metric(name, number, one)
        return None if found is None else asdict(found)

    def _stored(self, number: int, name: str | None) -> Mapping[str, Any] | None:
        """Return the conclusion's ratio of a finalist's metric, or of its score, to the reference's."""
        contender = self.contender(number) or {}
        found: Mapping[str, Any] | None = contender.get("metrics", {}).get(name) if name else contender.get("score")
        return found

    def trial(self, number: int) -> TrialRecord | None:
        """Return the trial of the search with that number."""
        return search_trial(self.records, number)

    def common_rounds(self, number: int | None) -> list[int]:
        """Return the rounds in which both the reference and a trial were measured, ascending."""
        return common_rounds(self.records, self.baseline, number)

    def outcomes(self, number: int | None) -> list[TrialOutcome]:
        """Return the outcomes of a trial that its values come from: of its rounds, else that of the search."""
        rounds = rounds_of(self.records, number)
        found = [rounds[n] for n in shown_rounds(self.conclusion, self.records) if n in rounds]
        trial = None if number is None else self.trial(number)
        return found or ([trial.outcome] if trial is not None and trial.outcome is not None else [])

    def measured(self, number: int | None) -> TrialOutcome | None:
        """Return what was measured of a trial, see `records.measured.measured`."""
        return measured(self.conclusion, self.records, number)


HEADINGS = ("SLO", "mean", "95 % interval", "beyond", "met", "best trial's")


def rate_line(nearest: Mapping[str, Any]) -> str | None:
    """Return the rate at which all SLOs hold, in one line; None where no rate was searched."""
    if nearest["rate"] is None:
        return None
    if nearest["capacity"] is None:
        return f"no rate that was tried below {nearest['rate']:g} requests/s meets all SLOs with #{nearest['number']}"
    searched = f"searched by trial {nearest['capacity_trial']}"
    return (
        f"at {nearest['capacity']:.3g} requests/s all SLOs hold with #{nearest['number']} ({searched}); "
        f"the workload has {nearest['rate']:g}"
    )


def nearest_grid(nearest: Mapping[str, Any], price: Price | None) -> Grid:
    """Return each SLO, the farthest first."""
    table = grid(*HEADINGS, left=("SLO",))
    for each in nearest["slos"]:
        name = parse_slo(each["slo"]).metric
        best = text.ABSENT if each["best"] is None else f"{text.number(each['best'])}, #{each['best_trial']}"
        table.add(
            each["slo"],
            text.with_unit(name, each["value"], price),
            "" if each["low"] is None else f"{text.number(each['low'])} to {text.number(each['high'])}",
            f"{each['excess']:+.0%}",
            met_text(each),
            f"{best}, {'met' if each['best_meets'] else 'missed'}",
        )
    return table


def met_text(distance: Mapping[str, Any]) -> str:
    """Return `yes` or `no` where the whole interval is on one side of the bound, else `perhaps`."""
    slo = parse_slo(distance["slo"])
    ends = [distance["low"], distance["high"]]
    if distance["low"] is None or distance["high"] is None:
        ends = [distance["value"]]
    met = {slo.met(end) for end in ends}
    return "perhaps" if len(met) > 1 else "yes" if met == {True} else "no"
