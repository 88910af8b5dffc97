"""`tuner compare`: trials or studies with a reference, metric by metric."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tuner.cli.commands.results.stored import read_study
from tuner.cli.from_server import reads_server
from tuner.cli.options import AsJson, Storage, StudyName
from tuner.errors import UserError

if TYPE_CHECKING:
    from tuner.cli.output.pages.compare import Pair, Side

FORMS = "a trial (12), a study (NAME), one of its trials (NAME#12), or those of another database (FILE:NAME#12)"


@reads_server(lambda values: _studies([values["one"], *values["others"]], values["study"]))
def compare(
    one: Annotated[str, typer.Argument(metavar="A", help=f"The reference: {FORMS}.", show_default=False)],
    others: Annotated[
        list[str], typer.Argument(metavar="B", help="What is compared with it, one or more.", show_default=False)
    ],
    study: StudyName = None,
    storage: Storage = None,
    as_json: AsJson = False,
) -> None:
    """Compare trials or studies with a reference, metric by metric.

    A study stands for its winner, else for the trial that is nearest to its SLOs. Each ratio is B relative to A, as
    `tuner best` shows it where A is the study's reference. Rounds that measured both are compared in pairs; else the
    repeats are compared, and two runs on different days differ by more than their interval.

    tuner compare 0 3 5 8
    """
    from tuner.cli.output.pages.compare import print_pair, print_several

    reference = _side(one, study, storage)
    pairs = [_pair(reference, _side(text, study, storage)) for text in others]
    if as_json:
        found = [
            {
                "b": name,
                "score": pair.score,
                "metrics": {metric: asdict(ratio) for metric, ratio in pair.ratios.items()},
                "flags": pair.flags,
            }
            for name, pair in zip(others, pairs, strict=True)
        ]
        print(json.dumps({"a": one, **(found[0] if len(found) == 1 else {"others": found})}, indent=1))
    elif len(pairs) == 1:
        print_pair(pairs[0])
    else:
        print_several(pairs)


def _pair(one: Side, other: Side) -> Pair:
    from tuner.cli.output.pages.compare import Pair
    from tuner.results.findings import Findings
    from tuner.scoring.rounds import measured_ratio, unpaired

    names = list(dict.fromkeys(metric for side in (one, other) for metric in _metrics(side)))
    both = [Findings.of(side.stored.record, side.stored.trials) for side in (one, other)]
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


def _parts(text: str) -> tuple[str | None, str, str]:
    """Return the database, the study and the number that a text names; None or empty for a part that it lacks."""
    file, colon, rest = text.rpartition(":")
    storage, text = (file, rest) if colon and Path(file).is_file() else (None, text)
    name, hash_, number = text.rpartition("#")
    if not hash_:
        name, number = ("", text) if text.isdigit() else (text, "")
    return storage, name, number


def _studies(texts: Sequence[str], study: str | None) -> list[str | None]:
    """Return the studies that the texts name, without those of other databases."""
    return [name or study for storage, name, _ in map(_parts, texts) if storage is None]


def _side(text: str, study: str | None, storage: str | None) -> Side:
    """Return the trial that a text names."""
    from tuner.cli.output.pages.compare import Side
    from tuner.use_cases.files.export import exported_of

    file, name, number = _parts(text)
    if file is not None:
        storage, text = file, text.removeprefix(f"{file}:")
    if number and not number.isdigit():
        raise UserError(f"{text!r} names no trial; give {FORMS}")
    stored = read_study(storage, name or study)
    chosen = int(number) if number else exported_of(stored.record.conclusion)
    if chosen is None:
        raise UserError(f"study {stored.record.name!r} has no winner yet; name a trial, such as {text}#0")
    trial = stored.trial(chosen)
    if trial.outcome is None or not trial.outcome.succeeded:
        raise UserError(f"trial {chosen} of study {stored.record.name!r} has no measurements; see `tuner trials`")
    return Side(f"{stored.record.name}#{chosen}", stored, chosen)


def _metrics(side: Side) -> list[str]:
    from tuner.results.conclusion import ITL

    measured = side.stored.trial(side.number).outcome
    always = [ITL] if measured is not None and measured.metric(ITL) is not None else []
    return [*(each.metric for each in side.stored.objectives), *(each.metric for each in side.stored.slos), *always]


def _flags(one: Side, other: Side) -> dict[str, list[Any]]:
    """Return the parameters in which the two differ, with both values; None is the engine's default."""
    from tuner.results.configuration import changes

    before, after = (changes(side.stored.trial(side.number).config, side.stored.defaults) for side in (one, other))
    names = dict.fromkeys([*before, *after])
    return {name: [before.get(name), after.get(name)] for name in names if before.get(name) != after.get(name)}
