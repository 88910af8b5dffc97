"""One value for each metric of a trial, from its benchmarks. Tables, reports, dashboards and scripts all show these."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from records.trials import Config, Provenance, TrialKind, TrialOutcome, TrialRecord

REFERENCES = (TrialKind.CURRENT, TrialKind.BASELINE)
"""Kinds of trials that can be the reference: the user's baseline goes before the defaults."""


def measured(
    conclusion: Mapping[str, Any] | None, records: Sequence[TrialRecord], number: int | None, *, searched: bool = False
) -> TrialOutcome | None:
    """Return what a study measured of a trial, as one outcome; None without a measurement that succeeded.

    It has every benchmark of the rounds that measured both the reference and the trial that the conclusion compares
    with it, because rounds differ in their prompts. A trial that was in none of these has the benchmarks of its own
    rounds, else those of the search: search and rounds may have workloads of different sizes, whose values are never
    pooled.

    Args:
        conclusion: of the study, as plain JSON; None before its end.
        records: of the study, rounds included.
        number: of the trial.
        searched: whether only the search counts.
    """
    rounds = {} if searched else rounds_of(records, number)
    shown = {*shown_rounds(conclusion, records)} & {*rounds} or {*rounds} if rounds else set()
    outcomes = [outcome for round_, outcome in rounds.items() if round_ in shown]
    outcomes = outcomes or outcomes_of([record for record in records if not record.round], number)
    worked = [outcome for outcome in outcomes if outcome.succeeded]
    if not worked:
        return None
    return replace(worked[0], repeats=tuple(repeat for outcome in worked for repeat in outcome.repeats))


def rounds_of(records: Sequence[TrialRecord], number: int | None) -> dict[int, TrialOutcome]:
    """Return the outcome of a trial in each round that measured it, ascending."""
    own = sorted((record for record in records if record.round and record.number == number), key=lambda r: r.round)
    return {r.round: r.outcome for r in own if r.outcome is not None and r.outcome.succeeded}


def shown_rounds(conclusion: Mapping[str, Any] | None, records: Sequence[TrialRecord]) -> list[int]:
    """Return the rounds that measured both the reference and the trial compared with it, ascending."""
    return common_rounds(records, reference_number(conclusion, records), challenger_of(conclusion, records))


def common_rounds(records: Sequence[TrialRecord], one: int | None, other: int | None) -> list[int]:
    """Return the rounds that measured both trials, ascending."""
    return sorted(rounds_of(records, one).keys() & rounds_of(records, other).keys())


def reference_of(records: Sequence[TrialRecord]) -> TrialRecord | None:
    """Return the user's baseline, or the defaults where it was not given or failed; None if neither was measured."""
    every = [record for kind in REFERENCES for record in records if record.kind is kind and not record.round]
    return next((record for record in every if record.succeeded), None)


def search_trial(records: Sequence[TrialRecord], number: int | None) -> TrialRecord | None:
    """Return the trial of the search with that number, not its rounds; None if there is none."""
    return next((record for record in records if record.number == number and not record.round), None)


def outcomes_of(records: Sequence[TrialRecord], number: int | None) -> list[TrialOutcome]:
    """Return the outcomes of a trial and of its rounds, failures included."""
    return [record.outcome for record in records if record.number == number and record.outcome is not None]


def reference_number(conclusion: Mapping[str, Any] | None, records: Sequence[TrialRecord]) -> int | None:
    """Return the number of the trial that the finalists are compared with; None if there is none."""
    if (number := (conclusion or {}).get("reference")) is not None:
        return int(number)
    found = reference_of(records)
    return None if found is None else found.number


def exported_of(conclusion: Mapping[str, Any] | None) -> int | None:
    """Return the number of the winner, else of the trial that is nearest to the SLOs; None without either."""
    found = conclusion or {}
    number = found.get("winner")
    return (found.get("nearest") or {}).get("number") if number is None else number


def challenger_of(conclusion: Mapping[str, Any] | None, records: Sequence[TrialRecord]) -> int | None:
    """Return the number of the trial that a conclusion compares with the reference.

    It is the winner; where the reference is kept, the nearest one to the SLOs or the finalist with the best score.
    """
    present = conclusion or {}
    winner = present.get("winner")
    if winner is not None and winner != reference_number(conclusion, records):
        return int(winner)
    if (nearest := present.get("nearest")) is not None:
        return int(nearest["number"])
    scored = [each for each in present.get("contenders", ()) if each["score"] and not each["disqualified"]]
    best = max(scored, key=lambda each: float(each["score"]["ratio"]), default=None)
    return None if best is None else int(best["number"])


@dataclass(frozen=True)
class BestTrial:
    """The configuration that a study recommends.

    Attributes:
        number: the trial's number.
        name: of the trial, see `TrialRecord.name`.
        config: the values of its parameters; empty for the engine's defaults.
        score: relative to the defaults or the baseline, which score 1; from the confirmation, else from the search.
        metrics: what was measured of it, see `measured`, by metric name.
        confirmed: whether the confirmation measured it again beside the defaults.
        is_defaults: whether the study recommends to keep the defaults.
        keeps: `defaults` or `baseline` if the study recommends to keep that; else None.
        provenance: whether the metrics are measured or simulated.
    """

    number: int
    name: str
    config: Config
    score: float | None
    metrics: Mapping[str, float | None]
    confirmed: bool
    is_defaults: bool
    keeps: str | None
    provenance: Provenance


def best_trial(conclusion: Mapping[str, Any], records: Sequence[TrialRecord]) -> BestTrial | None:
    """Return the configuration that a conclusion recommends; None without a winner.

    Args:
        conclusion: of the study.
        records: every trial of the study.
    """
    number = conclusion.get("winner")
    search = search_trial(records, number)
    found = measured(conclusion, records, number)
    if search is None or found is None:
        return None
    scores = {each["number"]: each["score"] for each in conclusion.get("contenders", ()) if each["score"]}
    keeps = conclusion.get("keeps")
    return BestTrial(
        number=search.number,
        name=search.name,
        config=search.config,
        score=1.0 if keeps is not None else scores.get(number, {"ratio": search.score})["ratio"],
        metrics=metrics_of(found),
        confirmed=bool(conclusion.get("confirmed")),
        is_defaults=search.kind is TrialKind.BASELINE,
        keeps=keeps,
        provenance=found.provenance,
    )


def metrics_of(outcome: TrialOutcome | None) -> dict[str, float | None]:
    """Return the value of each metric of an outcome over its benchmarks, see `TrialOutcome.metric`."""
    repeats = () if outcome is None else outcome.repeats
    names = dict.fromkeys(name for repeat in repeats for name in repeat.metrics)
    return {} if outcome is None else {name: outcome.metric(name) for name in names}


def capacity_of(rates: Iterable[tuple[float, bool]]) -> float | None:
    """Return the highest rate that met every SLO and is below every rate that missed one; None if there is none.

    Args:
        rates: each measured rate, in requests/s, and whether every SLO was met at it.
    """
    measured = list(rates)
    lowest_miss = min((rate for rate, held in measured if not held), default=float("inf"))
    return max((rate for rate, held in measured if held and rate < lowest_miss), default=None)
