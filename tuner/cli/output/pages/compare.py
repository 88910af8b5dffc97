"""The pages of `tuner study compare` and `tuner server compare`: trials beside a reference, and two servers."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from records.tables import grid
from tuner.cli.output.parts import FittedTable, say, show
from tuner.cli.signals import terminated_like_interrupted
from tuner.confidence import INTERVAL
from tuner.results import text
from tuner.results.conclusion import price_lines
from tuner.scoring.change import Change
from tuner.study.specification.spec import difference, summary_of
from tuner.use_cases.canary import CanarySettings as CanarySettings
from tuner.use_cases.canary import compare_servers
from tuner.use_cases.compare import Pair, compare
from tuner.use_cases.mirrored import MEASURES
from tuner.use_cases.recheck.result import EXIT_CODES

LEFT_ALIGNED = ("metric", "B", "from")
"""Headings of the columns of text, which are left-aligned; the others hold numbers."""


def print_comparison(one: str, others: Sequence[str], storage: str | None, *, as_json: bool) -> None:
    """Print trials beside a reference; see `compare`."""
    pairs = compare(one, others, storage)
    if as_json:
        found = [_document(name, pair) for name, pair in zip(others, pairs, strict=True)]
        print(json.dumps({"a": one, **(found[0] if len(found) == 1 else {"others": found})}, indent=1))
    elif len(pairs) == 1:
        _print_pair(pairs[0])
    else:
        _print_several(pairs)


def run_canary(settings: CanarySettings, *, as_json: bool) -> int:
    """Compare two servers, print the result and return the exit code; see `compare_servers`."""
    with terminated_like_interrupted():
        result = compare_servers(settings, say)
    mirrored, verdict = result.mirrored, result.verdict
    speeds = {name: mirrored.speed(name) for name in MEASURES}
    a, b = mirrored.discordant
    if as_json:
        found = {"verdict": verdict.value, "requests": mirrored.requests, "pairs": len(mirrored.pairs)}
        shown = {name: None if each is None else asdict(each) for name, each in speeds.items()}
        failed = {"only_a": a, "only_b": b}
        urls = dict(zip(("a", "b"), settings.urls, strict=True))
        print(json.dumps({**urls, **found, "margin": settings.margin, "speed": shown, "failed": failed}, indent=1))
        return EXIT_CODES.get(verdict, 0)
    table = grid("latency of B / A", "ratio", INTERVAL, "from", left=("latency of B / A", "from"))
    for name, speed in speeds.items():
        if speed is not None:
            times = asdict(speed.inverse())
            table.add(name, text.ratio(times), text.interval(times), text.count(speed.rounds, "pair"))
    show(FittedTable(table))
    if a or b:
        print(f"requests that only A failed: {a}, only B: {b}")
    print(f"B {_CANARY[verdict]} (measured, {mirrored.requests} requests; {settings.margin:.0%} does not matter)")
    return EXIT_CODES.get(verdict, 0)


_CANARY = {
    Change.HOLDS: "is as fast as A: holds",
    Change.BETTER: "is faster than A: better",
    Change.WORSE: "is slower than A, or fails more requests: worse",
    Change.INCONCLUSIVE: "cannot be told from A: inconclusive; give more blocks, or a larger margin",
}


def _document(name: str, pair: Pair) -> dict[str, Any]:
    metrics = {metric: asdict(ratio) for metric, ratio in pair.ratios.items()}
    premises = [each.stored.record.premise for each in (pair.reference, pair.other)]
    differences = difference(premises[0], premises[1])
    return {"b": name, "score": pair.score, "metrics": metrics, "flags": pair.flags, "differences": differences}


def _print_pair(pair: Pair) -> None:
    """Print two trials, with a row for each metric."""
    sides = (pair.reference, pair.other)
    headings = ("metric", f"A {sides[0].name}", f"B {sides[1].name}", "B / A", INTERVAL, "from")
    table = grid(*headings, left=LEFT_ALIGNED)
    if pair.score is not None:
        table.add("score", "", "", *_score(pair.score))
    for name, each in pair.ratios.items():
        table.add(name, *_values(name, pair), each.basis)
    show(FittedTable(table), *price_lines(pair.ratios, [side.stored.price for side in sides]))
    _print_premises([pair])
    print("flags that differ:" if pair.flags else "no flag differs")
    for line in _flag_lines(pair):
        print(f"  {line}")


def _print_several(pairs: Sequence[Pair]) -> None:
    """Print several trials beside a reference, with a row for each metric and trial.

    The reference's value may differ between the rows of a metric: beside a trial that no round measured, it is the
    value from the search.
    """
    reference = pairs[0].reference
    headings = ("metric", "B", f"A {reference.name}", "value of B", "B / A", INTERVAL, "from")
    table = grid(*headings, left=LEFT_ALIGNED)
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
                table.add(heading, pair.other.name, *_values(name, pair), each.basis)
                heading = ""
    prices = [side.stored.price for side in (reference, *(pair.other for pair in pairs))]
    show(FittedTable(table), *price_lines(names, prices))
    _print_premises(pairs)
    print("flags that differ from A:")
    for pair in pairs:
        print(f"  {pair.other.name}: {', '.join(_flag_lines(pair)) or 'none'}")


def _values(name: str, pair: Pair) -> list[str]:
    return text.compared(name, pair.ratios[name], pair.reference.stored.price, pair.other.stored.price)


def _score(score: Mapping[str, Any]) -> tuple[str, str, str]:
    return text.ratio(score), text.interval(score), text.count(score["rounds"], "round")


def _print_premises(pairs: Sequence[Pair]) -> None:
    """Print how the premise and the provenance of each study differ from those of the reference's study."""
    before, lines = pairs[0].reference.stored.record, []
    for pair in pairs:
        after, alone = pair.other.stored.record, len(pairs) == 1
        which = "the studies differ in" if alone else f"{after.name} differs from {before.name} in"
        if differs := summary_of(difference(before.premise, after.premise)):
            lines.append(f"{which} {differs}; --json has all")
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
