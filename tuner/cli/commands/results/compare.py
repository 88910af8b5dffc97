"""`tuner compare`: two trials or studies, metric by metric."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tuner.cli.commands.results.stored import StoredStudy, read_study
from tuner.cli.from_server import reads_server
from tuner.cli.options import AsJson, Storage, StudyName
from tuner.errors import UserError

if TYPE_CHECKING:
    from tuner.scoring.compare import MeasuredRatio

WIDTH = 160
FORMS = "a trial (12), a study (NAME), one of its trials (NAME#12), or those of another database (FILE:NAME#12)"


@dataclass(frozen=True)
class Side:
    """One side: a trial of a study, and its name as the user gave it."""

    name: str
    stored: StoredStudy
    number: int


@reads_server(lambda values: _studies(values["one"], values["other"], values["study"]))
def compare(
    one: Annotated[str, typer.Argument(metavar="A", help=f"The reference: {FORMS}.", show_default=False)],
    other: Annotated[str, typer.Argument(metavar="B", help="What is compared with it.", show_default=False)],
    study: StudyName = None,
    storage: Storage = None,
    as_json: AsJson = False,
) -> None:
    """Compare two trials or studies, metric by metric.

    A study stands for its winner, else for the trial that is nearest to its SLOs. Each ratio is B relative to A. Rounds
    that measured both are compared in pairs; else the repeats are compared, and two runs on different days differ by
    more than their interval.
    """
    from tuner.scoring.compare import measured_ratios

    sides = [_side(text, study, storage) for text in (one, other)]
    outcomes = [[r for r in side.stored.trials if r.number == side.number] for side in sides]
    names = list(dict.fromkeys(metric for side in sides for metric in _metrics(side)))
    paired = sides[0].stored.record == sides[1].stored.record
    ratios = measured_ratios(outcomes[0], outcomes[1], names, paired=paired)
    flags = _flags(*sides)
    if as_json:
        found = {name: asdict(each) for name, each in ratios.items()}
        print(json.dumps({"a": one, "b": other, "metrics": found, "flags": flags}, indent=1))
    else:
        _print(sides, ratios, flags)


def _parts(text: str) -> tuple[str | None, str, str]:
    """Return the database, the study and the number that a text names; None or empty for a part that it lacks."""
    file, colon, rest = text.rpartition(":")
    storage, text = (file, rest) if colon and Path(file).is_file() else (None, text)
    name, hash_, number = text.rpartition("#")
    if not hash_:
        name, number = ("", text) if text.isdigit() else (text, "")
    return storage, name, number


def _studies(one: str, other: str, study: str | None) -> list[str | None]:
    """Return the studies that the texts name, without those of other databases."""
    parts = [_parts(one), _parts(other)]
    return [name or study for storage, name, _ in parts if storage is None]


def _side(text: str, study: str | None, storage: str | None) -> Side:
    """Return the trial that a text names."""
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
    return [*(each.metric for each in side.stored.objectives), *(each.metric for each in side.stored.slos)]


def _flags(one: Side, other: Side) -> dict[str, list[Any]]:
    """Return the parameters in which the two differ, with both values; None is the engine's default."""
    from tuner.results.configuration import changes

    before, after = (changes(side.stored.trial(side.number).config, side.stored.defaults) for side in (one, other))
    names = dict.fromkeys([*before, *after])
    return {name: [before.get(name), after.get(name)] for name in names if before.get(name) != after.get(name)}


def _print(sides: list[Side], ratios: dict[str, MeasuredRatio], flags: dict[str, list[Any]]) -> None:
    from tuner.cli.output.parts.console import new_table, show
    from tuner.results import text
    from tuner.results.cost_lines import price_lines
    from tuner.study.specification.spec import difference

    table = new_table()
    for heading in ("metric", f"A {sides[0].name}", f"B {sides[1].name}", "B / A", "95 % interval", "from"):
        table.add_column(heading, justify="left" if heading in ("metric", "from") else "right", no_wrap=True)
    for name, each in ratios.items():
        interval = "" if each.low is None else f"{each.low:.3f} to {each.high:.3f}"
        ratio = "" if each.ratio is None else f"×{each.ratio:.3f}"
        values = (text.with_unit(name, value) for value in (each.one, each.other))
        table.add_row(name, *values, ratio, interval, each.basis)
    show(table, *price_lines(ratios, [side.stored.price for side in sides]), width=WIDTH)
    premises = [side.stored.record.premise for side in sides]
    for line in difference(premises[0], premises[1]):
        print(f"the studies differ in {line}")
    provenances = [side.stored.record.provenance.value for side in sides]
    if provenances[0] != provenances[1]:
        print(f"A is {provenances[0]}, B is {provenances[1]}")
    print("flags that differ:" if flags else "no flag differs")
    for name, (before, after) in flags.items():
        shown = ("default" if value is None else value for value in (before, after))
        print(f"  {name}: {' -> '.join(map(str, shown))}")
