"""Compare trials with a reference: the ratio of each metric, and the flags that differ."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from records.measured import exported_of
from records.trials import configuration_changes
from tuner.errors import UserError, see_trials
from tuner.results.conclusion import ITL
from tuner.scoring.compare import MeasuredRatio
from tuner.scoring.rounds import measured_ratio, unpaired
from tuner.use_cases.places import FORMS, named_trial
from tuner.use_cases.stored import StoredStudy, read_study


@dataclass(frozen=True)
class Side:
    """One of the compared trials.

    Attributes:
        name: `STUDY#NUMBER`.
        stored: its study.
        number: number of the trial.
    """

    name: str
    stored: StoredStudy
    number: int


@dataclass(frozen=True)
class Pair:
    """Trial B beside the reference, trial A.

    Attributes:
        reference: trial A.
        other: trial B.
        ratios: metric to both values and B / A.
        flags: parameter to the values of A and B, where they differ.
        score: the ratio of the scores, a `Ratio` as plain JSON; None without a round that measured both.
    """

    reference: Side
    other: Side
    ratios: Mapping[str, MeasuredRatio]
    flags: Mapping[str, Sequence[Any]]
    score: Mapping[str, Any] | None = None


def compare(one: str, others: Sequence[str], storage: str | None) -> list[Pair]:
    """Return trials beside a reference.

    Args:
        one: the reference, a text in one of the `FORMS`.
        others: the trials, in the same forms.
        storage: the database of a text that names none.

    Raises:
        UserError: for a text that names no measured trial.
    """
    reference = _side(one, storage)
    return [_pair(reference, _side(text, storage)) for text in others]


def _pair(one: Side, other: Side) -> Pair:
    names = list(dict.fromkeys(metric for side in (one, other) for metric in _metrics(side)))
    both = [side.stored.findings for side in (one, other)]
    if one.stored.record == other.stored.record:
        score = both[0].score(other.number, one.number)
        ratios = {name: both[0].beside(other.number, name, one.number) for name in names}
        return Pair(one, other, ratios, _flags(one, other), score)
    before, after = (found.measured(side.number) for found, side in zip(both, (one, other), strict=True))
    ratios = {}
    for name in names:
        benchmarks = [each for found in both for each in found.rounds.benchmarks(name)]
        ratios[name] = measured_ratio(name, before, after, unpaired(name, before, after, benchmarks), 0)
    return Pair(one, other, ratios, _flags(one, other))


def _side(text: str, storage: str | None) -> Side:
    """Return the trial that a text names."""
    file, name, number = named_trial(text)
    if file is not None:
        storage, text = file, text.removeprefix(f"{file}:")
    if number and not number.isdigit():
        raise UserError(f"{text!r} names no trial; give {FORMS}")
    stored = read_study(storage, name or None)
    chosen = int(number) if number else exported_of(stored.record.conclusion)
    if chosen is None:
        raise UserError(f"study {stored.record.name!r} has no winner yet; name a trial, such as {text}#0")
    trial = stored.trial(chosen)
    if not trial.succeeded:
        rule = f"trial {chosen} of study {stored.record.name!r} has no measurements"
        raise UserError(f"{rule}; {see_trials(stored.record.name)}")
    return Side(f"{stored.record.name}#{chosen}", stored, chosen)


def _metrics(side: Side) -> list[str]:
    measured = side.stored.trial(side.number).outcome
    always = [ITL] if measured is not None and measured.metric(ITL) is not None else []
    return [*side.stored.findings.goals.names, *always]


def _flags(one: Side, other: Side) -> dict[str, list[Any]]:
    """Return the parameters in which the two differ, with both values; None is the engine's default."""
    before, after = (
        configuration_changes(side.stored.trial(side.number).config, side.stored.defaults) for side in (one, other)
    )
    names = dict.fromkeys([*before, *after])
    return {name: [before.get(name), after.get(name)] for name in names if before.get(name) != after.get(name)}
