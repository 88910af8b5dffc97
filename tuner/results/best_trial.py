"""The configuration that a study recommends, with what was measured of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from storage.measured import measured
from storage.records import Config, Provenance, TrialKind, TrialRecord


@dataclass(frozen=True)
class BestTrial:
    """The configuration that a study recommends.

    Attributes:
        number: the trial's number.
        config: the values of its parameters; empty for the engine's defaults.
        score: relative to the defaults or the baseline, which score 1; from the confirmation, else from the search.
        metrics: what was measured of it, see `storage.measured.measured`, by metric name.
        confirmed: whether the confirmation measured it again beside the defaults.
        is_defaults: whether the study recommends to keep the defaults.
        keeps: `defaults` or `baseline` if the study recommends to keep that; else None.
        provenance: whether the metrics are measured or simulated.
    """

    number: int
    config: Config
    score: float | None
    metrics: Mapping[str, float | None]
    confirmed: bool
    is_defaults: bool
    keeps: str | None
    provenance: Provenance


def best_trial(conclusion: Mapping[str, Any], records: Sequence[TrialRecord]) -> BestTrial:
    """Return the configuration that a conclusion with a winner recommends.

    Args:
        conclusion: of the study.
        records: every trial of the study.
    """
    number = int(conclusion["winner"])
    search = next(each for each in records if each.number == number and not each.round)
    found = measured(conclusion, records, number)
    assert found is not None
    names = dict.fromkeys(name for repeat in found.repeats for name in repeat.metrics)
    scores = {each["number"]: each["score"] for each in conclusion["contenders"] if each["score"]}
    searched = search.verdict.score if search.verdict is not None else None
    is_defaults = search.kind is TrialKind.BASELINE
    confirmed = scores[number]["ratio"] if number in scores else None
    return BestTrial(
        number=number,
        config=search.config,
        score=1.0 if is_defaults else (searched if confirmed is None else confirmed),
        metrics={name: found.metric(name) for name in names},
        confirmed=bool(conclusion["confirmed"]),
        is_defaults=is_defaults,
        keeps=conclusion["keeps"],
        provenance=found.provenance,
    )
