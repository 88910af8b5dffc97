"""Trials beside a reference or each other: `tuner compare`, `tuner best --pareto` and `tuner best --objective`."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import RenderableType
from rich.text import Text

from records.trials import Config, TrialRecord
from tuner.cli.commands.studies import StoredStudy
from tuner.cli.output.parts import as_table, show
from tuner.confidence import INTERVAL
from tuner.results import text
from tuner.results.conclusion import price_lines
from tuner.results.text import full_configuration, grid, short_configuration
from tuner.scoring.compare import MeasuredRatio, Ratio
from tuner.scoring.front import Point, Weighed
from tuner.study.alternatives import ByWeights
from tuner.study.specification.spec import difference

WIDTH = 160
COMPARED_LEFT = ("metric", "B", "from")
"""Columns of text."""


@dataclass(frozen=True)
class Side:
    """A trial of a study, and the name of both."""

    name: str
    stored: StoredStudy
    number: int


@dataclass(frozen=True)
class Pair:
    """A trial beside the reference: ratios by metric, and both values of each parameter that differs.

    `score` is the ratio of the scores, as plain JSON; None without a round that measured both.
    """

    one: Side
    other: Side
    ratios: Mapping[str, MeasuredRatio]
    flags: Mapping[str, Sequence[Any]]
    score: Mapping[str, Any] | None = None


def print_pair(pair: Pair) -> None:
    """Print two trials, with a row for each metric."""
    sides = (pair.one, pair.other)
    headings = ("metric", f"A {sides[0].name}", f"B {sides[1].name}", "B / A", INTERVAL, "from")
    table = grid(*headings, left=COMPARED_LEFT)
    if pair.score is not None:
        table.add("score", "", "", *_score(pair.score))
    for name, each in pair.ratios.items():
        table.add(name, *text.compared(name, each), each.basis)
    show(as_table(table), *price_lines(pair.ratios, [side.stored.price for side in sides]), width=WIDTH)
    _print_premises([pair])
    print("flags that differ:" if pair.flags else "no flag differs")
    for line in _flag_lines(pair):
        print(f"  {line}")


def print_several(pairs: Sequence[Pair]) -> None:
    """Print several trials beside a reference, with a row for each metric and trial.

    The reference's value may differ between rows: beside a trial without rounds, it is that of the search.
    """
    reference = pairs[0].one
    headings = ("metric", "B", f"A {reference.name}", "value of B", "B / A", INTERVAL, "from")
    table = grid(*headings, left=COMPARED_LEFT)
    names = list(dict.fromkeys(name for pair in pairs for name in pair.ratios))
    heading = "score"
    for pair in pairs:
        if pair.score is not None:
            table.add(heading, pair.other.name, "", "", *_score(pair.score))
            heading = ""
    for name in names:
        heading = name
        for pair in pairs:
            each = pair.ratios.get(name)
            if each is not None:
                table.add(heading, pair.other.name, *text.compared(name, each), each.basis)
                heading = ""
    prices = [side.stored.price for side in (reference, *(pair.other for pair in pairs))]
    show(as_table(table), *price_lines(names, prices), width=WIDTH)
    _print_premises(pairs)
    print("flags that differ from A:")
    for pair in pairs:
        print(f"  {pair.other.name}: {', '.join(_flag_lines(pair)) or 'none'}")


def _score(score: Mapping[str, Any]) -> tuple[str, str, str]:
    return text.ratio(score), text.interval(score), text.count(score["rounds"], "round")


def _print_premises(pairs: Sequence[Pair]) -> None:
    """Print the settings in which studies differ from the reference's, and provenances that differ."""
    before, lines = pairs[0].one.stored.record, []
    for pair in pairs:
        after, alone = pair.other.stored.record, len(pairs) == 1
        which = "the studies differ in" if alone else f"{after.name} differs from {before.name} in"
        lines += [f"{which} {line}" for line in difference(before.premise, after.premise)]
        if before.provenance != after.provenance:
            other = "B" if alone else after.name
            lines.append(f"A is {before.provenance.value}, {other} is {after.provenance.value}")
    for line in dict.fromkeys(lines):  # several trials may be of one study
        print(line)


def _flag_lines(pair: Pair) -> list[str]:
    shown = {
        name: ["default" if value is None else str(value) for value in values] for name, values in pair.flags.items()
    }
    return [f"{name}: {before} -> {after}" for name, (before, after) in shown.items()]


CONFIGURATION = 48
"""Columns of a configuration."""

FRONT_LEFT = ("trial", "from", "differs from the defaults")
"""Columns of text."""

ONCE = "the search alone"
BY_LUCK = "a trial that only the search measured may be here by luck; its interval comes from the noise of repeats"


def rounds_text(rounds: int) -> str:
    """Return what a trial's figures rest on."""
    return text.count(rounds, "round") if rounds else ONCE


def front_parts(
    points: Sequence[Point], configs: Mapping[int, Config], defaults: Config, reference: str
) -> list[RenderableType]:
    """Return the front as a table, the best in the first metric first.

    Args:
        points: of the front.
        configs: configuration by number of trial.
        defaults: the engine's, as far as they are known.
        reference: what ratios relate to, for people.
    """
    names = list(points[0].metrics) if points else []
    table = grid("trial", *names, "from", "differs from the defaults", left=FRONT_LEFT)
    for point in points:
        short = short_configuration(configs[point.number], defaults, CONFIGURATION)
        cells = [_cell(name, each) for name, each in point.metrics.items()]
        table.add(f"#{point.number}", *cells, rounds_text(point.rounds), short)
    luck = [] if all(point.rounds for point in points) else [Text(BY_LUCK)]
    return [
        as_table(table),
        Text(f"ratios relate to {reference} in the same rounds, else to its search; {INTERVAL}s"),
        *luck,
    ]


def _cell(name: str, each: MeasuredRatio) -> str:
    interval = "" if each.low is None else f"{each.low:.3f} to {each.high:.3f}"
    return f"{text.with_unit(name, each.other)}\n×{each.ratio:.3f} {interval}".rstrip()


def front_document(points: Sequence[Point], configs: Mapping[int, Config]) -> list[dict[str, Any]]:
    """Return the front as plain JSON."""
    return [
        {
            "trial": point.number,
            "rounds": point.rounds,
            "metrics": {
                name: {"value": each.other, "ratio": each.ratio, "low": each.low, "high": each.high}
                for name, each in point.metrics.items()
            },
            "config": dict(configs[point.number]),
        }
        for point in points
    ]


def front_csv(points: Sequence[Point], configs: Mapping[int, Config], defaults: Config) -> str:
    """Return the front as CSV with a header line; an interval that is not known is empty."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    names = list(points[0].metrics) if points else []
    columns = [f"{name}{end}" for name in names for end in ("", ".ratio", ".low", ".high")]
    writer.writerow(["trial", "rounds", *columns, "configuration"])
    for point in points:
        cells = [value for each in point.metrics.values() for value in (each.other, each.ratio, each.low, each.high)]
        shown = full_configuration(configs[point.number], defaults)
        writer.writerow([point.number, point.rounds, *("" if c is None else c for c in cells), shown])
    return file.getvalue()


def weighed_parts(
    found: ByWeights, count: int, trials: Mapping[int, TrialRecord], defaults: Config
) -> list[RenderableType]:
    """Return the best trials under other weights: what is the best, how sure that is, and a table.

    Args:
        found: at least one trial.
        count: the number of trials in the table.
        trials: of the search, by number.
        defaults: the engine's, as far as they are known.
    """
    best, weights = found.trials[0], ", ".join(found.objectives)
    sure = "no other one is better than the reference" if best.number == found.reference else confirmation_text(best)
    table = grid("trial", "score", INTERVAL, "from", "differs from the defaults", left=FRONT_LEFT)
    for each in found.trials[:count]:
        short = short_configuration(trials[each.number].config, defaults, CONFIGURATION)
        interval = _interval(each.score)
        table.add(f"#{each.number}", f"{each.score.ratio:.3f}", interval, rounds_text(each.score.rounds), short)
    lines = [Text(f"trial {best.number} is the best by {weights}: {sure}", style="bold")]
    again = next((each for each in found.trials if each.score.rounds), None)
    if again is not None and again.number != best.number:
        lines.append(Text(f"of the trials that were measured again, trial {again.number} is the best"))
    after = [Text(f"score 1 is that of {found.reference_name}"), Text(f"export it: tuner export --trial {best.number}")]
    return [*lines, Text(""), as_table(table), *after]


def confirmation_text(best: Weighed) -> str:
    """Return whether rounds support a score."""
    if not best.score.rounds:
        return f"score {best.score.ratio:.3f}, measured once by the search and not confirmed"
    interval = f" ({INTERVAL} {_interval(best.score)})" if best.score.low is not None else ""
    verb = "confirmed in" if best.score.beyond_noise else "measured again in"
    more = "" if best.score.beyond_noise else ", where it is not better beyond the noise"
    return f"score {best.score.ratio:.3f}{interval}, {verb} {text.count(best.score.rounds, 'round')}{more}"


def _interval(ratio: Ratio) -> str:
    return "" if ratio.low is None else f"{ratio.low:.3f} to {ratio.high:.3f}"
