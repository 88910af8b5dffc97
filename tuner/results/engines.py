"""The ranking of a study's engines: each by the best of its configurations that the rounds measured."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from search_spaces import ENGINE
from tuner.confidence import INTERVAL
from tuner.results import text
from tuner.results.findings import Findings
from tuner.results.grid import Grid, grid

ENGINES_TITLE = "engines, each by its best measured configuration"


def engines_grid(findings: Findings) -> Grid | None:
    """Return the engines of a study of several, the best first; None in a study of one, or without rounds.

    Ratios are those to the reference, whose own score is 1. An engine of which no configuration was measured in rounds,
    or of which each missed an SLO, is not ranked and comes last.
    """
    engines = _engines(findings)
    contenders = findings.conclusion.get("contenders", ())
    if ENGINE not in findings.defaults or len(engines) < 2 or not any(each["score"] for each in contenders):
        return None
    best: dict[str, tuple[int, Mapping[str, Any]]] = {}
    for number, score in _scores(findings):
        engine = _engine_of(findings, number)
        if engine is not None and (engine not in best or score["ratio"] > best[engine][1]["ratio"]):
            best[engine] = number, score
    names = [objective.metric for objective in findings.objectives]
    table = grid("engine", "trial", "score", INTERVAL, *names, left=("engine", "trial"))
    for engine in sorted(engines, key=lambda each: -best[each][1]["ratio"] if each in best else 0.0):
        if engine not in best:
            table.add(engine, "none", text.ABSENT, "", *("" for _ in names), faint=True)
            continue
        number, score = best[engine]
        own = number == findings.baseline
        ratios = [text.ratio({"ratio": 1.0} if own else findings.ratio(number, name)) for name in names]
        table.add(engine, f"#{number}", f"{score['ratio']:.3f}", "" if own else text.interval(score), *ratios)
    return table


def _engines(findings: Findings) -> list[str]:
    """Return the engines that trials name, in the order of their first trial."""
    found = [_engine_of(findings, record.number) for record in findings.records if not record.round]
    return list(dict.fromkeys(engine for engine in found if engine is not None))


def _engine_of(findings: Findings, number: int) -> str | None:
    trial = findings.trial(number)
    engine = None if trial is None else trial.config.get(ENGINE) or findings.defaults.get(ENGINE)
    return None if engine is None else str(engine)


def _scores(findings: Findings) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """Yield the trials that count, with their scores relative to the reference."""
    if findings.baseline is not None:
        yield findings.baseline, {"ratio": 1.0}
    for each in findings.conclusion.get("contenders", ()):
        if each["score"] and not each["disqualified"]:
            yield int(each["number"]), each["score"]
