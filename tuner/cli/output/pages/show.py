"""The page of `tuner study show`: a study's winner, its front, or its best trials by other weights."""

from __future__ import annotations

import csv as csv_format
import io
import json
import shlex
import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from rich.console import RenderableType
from rich.text import Text

from records.tables import grid
from records.trials import TrialRecord
from tuner.cli.arguments import command
from tuner.cli.output.pages.optimize import conclusion_parts
from tuner.cli.output.pages.studies import sorted_trials, trials_table
from tuner.cli.output.parts import FittedTable, ShellCommand, show
from tuner.confidence import INTERVAL
from tuner.errors import EXIT_OURS, EXIT_SLOS_MISSED
from tuner.results import text
from tuner.results.conclusion import price_lines
from tuner.results.text import full_configuration, short_configuration
from tuner.scoring.compare import MeasuredRatio, Ratio
from tuner.scoring.front import Point, Weighed
from tuner.study.alternatives import ByWeights, front_of_study, weighed_trials
from tuner.use_cases.stored import StoredStudy, read_study

_LEADERS = 3
"""Trials that are shown of a study without a conclusion."""

_WEIGHED = 5
"""Trials that are shown under other weights."""

CONFIGURATION_WIDTH = 48
"""Most characters of a configuration in a table."""

LEFT_ALIGNED = ("trial", "from", "differs from the defaults")
"""Headings of the columns of text, which are left-aligned; the others hold numbers."""

FROM_SEARCH = "the search alone"
CHOSEN_BY_LUCK = (
    "a trial that only the search measured may be here by luck; its interval comes from the noise of repeats"
)


def print_result(
    study: str | None, storage: str | None, objectives: list[str], *, front: bool, as_json: bool, csv: bool
) -> int:
    """Print the winner beside the defaults, the front, or the best trials by other objectives; return the exit code."""
    stored = read_study(storage, study)
    if front:
        _print_front(stored, objectives, as_json=as_json, csv=csv)
    elif objectives:
        _print_weighed(stored, objectives, as_json=as_json)
    else:
        return _print_winner(stored, as_json=as_json)
    return 0


def _print_front(stored: StoredStudy, metrics: list[str], *, as_json: bool, csv: bool) -> None:
    found = front_of_study(stored.record, stored.trials, metrics)
    if as_json:
        points = [_point(point, stored) for point in found.points]
        print(json.dumps({**stored.document, "reference": found.reference, "front": points}, indent=1))
    elif csv:
        sys.stdout.write(_front_csv(found.points, stored))
    else:
        parts = _front_parts(found.points, stored, found.reference_name)
        title = f"{stored.title}: the front of {', '.join(found.metrics)}"
        show(title, *parts, *price_lines(found.metrics, [stored.price]))


def _print_weighed(stored: StoredStudy, objectives: list[str], *, as_json: bool) -> None:
    found, trials = weighed_trials(stored.record, stored.trials, objectives), stored.searched
    if as_json:
        rows = [
            {"trial": w.number, "score": asdict(w.score), "config": dict(trials[w.number].config)} for w in found.trials
        ]
        weights = {"objectives": list(found.objectives), "reference": found.reference}
        print(json.dumps({**stored.document, **weights, "trials": rows}, indent=1))
    else:
        metrics = [objective.partition(":")[0] for objective in found.objectives]
        show(*_weighed_parts(found, stored), *price_lines(metrics, [stored.price]))


def _rounds(rounds: int) -> str:
    """Return the cell `from` of a trial that `rounds` rounds measured; 0: only the search."""
    return text.count(rounds, "round") if rounds else FROM_SEARCH


def _front_parts(points: Sequence[Point], stored: StoredStudy, reference: str) -> list[RenderableType]:
    """Return the front as a table, the best in the first metric first; ratios relate to `reference`."""
    names = list(points[0].metrics) if points else []
    table = grid("trial", *names, "from", "differs from the defaults", left=LEFT_ALIGNED)
    for point in points:
        cells = [_cell(name, each, stored) for name, each in point.metrics.items()]
        table.add(f"#{point.number}", *cells, _rounds(point.rounds), _short(point.number, stored))
    luck = [] if all(point.rounds for point in points) else [Text(CHOSEN_BY_LUCK)]
    return [
        FittedTable(table),
        Text(f"ratios relate to {reference} in the same rounds, else to its search; {INTERVAL}s"),
        *luck,
    ]


def _short(number: int, stored: StoredStudy) -> str:
    return short_configuration(stored.searched[number].config, stored.defaults, CONFIGURATION_WIDTH)


def _cell(name: str, each: MeasuredRatio, stored: StoredStudy) -> str:
    return f"{text.with_unit(name, each.other, stored.price)}\n×{each.ratio:.3f} {_interval(each)}".rstrip()


def _point(point: Point, stored: StoredStudy) -> dict[str, Any]:
    metrics = {
        name: {"value": each.other, "ratio": each.ratio, "low": each.low, "high": each.high}
        for name, each in point.metrics.items()
    }
    config = dict(stored.searched[point.number].config)
    return {"trial": point.number, "rounds": point.rounds, "metrics": metrics, "config": config}


def _front_csv(points: Sequence[Point], stored: StoredStudy) -> str:
    """Return the front as CSV with a header line; an interval that is not known is empty."""
    file = io.StringIO()
    writer = csv_format.writer(file, lineterminator="\n")
    names = list(points[0].metrics) if points else []
    columns = [f"{name}{end}" for name in names for end in ("", ".ratio", ".low", ".high")]
    writer.writerow(["trial", "rounds", *columns, "configuration"])
    for point in points:
        cells = [value for each in point.metrics.values() for value in (each.other, each.ratio, each.low, each.high)]
        shown = full_configuration(stored.searched[point.number].config, stored.defaults)
        writer.writerow([point.number, point.rounds, *("" if c is None else c for c in cells), shown])
    return file.getvalue()


def _weighed_parts(found: ByWeights, stored: StoredStudy) -> list[RenderableType]:
    """Return the best trials under other weights: what is the best, how sure that is, and a table."""
    best, weights = found.trials[0], ", ".join(found.objectives)
    sure = "no other one is better than the reference" if best.number == found.reference else _confirmation(best)
    table = grid("trial", "score", INTERVAL, "from", "differs from the defaults", left=LEFT_ALIGNED)
    for each in found.trials[:_WEIGHED]:
        score = f"{each.score.ratio:.3f}", _interval(each.score)
        table.add(f"#{each.number}", *score, _rounds(each.score.rounds), _short(each.number, stored))
    lines = [Text(f"trial {best.number} is the best by {weights}: {sure}", style="bold")]
    again = next((each for each in found.trials if each.score.rounds), None)
    if again is not None and again.number != best.number:
        lines.append(Text(f"of the trials that were measured again, trial {again.number} is the best"))
    export = command("study", "export", stored.record.name, "--trial", str(best.number))
    after = [
        Text(f"score 1 is that of {found.reference_name}"),
        Text(f"export it: {export}", no_wrap=True, overflow="ignore"),
    ]
    return [*lines, Text(""), FittedTable(table), *after]


def _confirmation(best: Weighed) -> str:
    """Return whether rounds support a score."""
    if not best.score.rounds:
        return f"score {best.score.ratio:.3f}, measured once by the search and not confirmed"
    interval = f" ({INTERVAL} {_interval(best.score)})" if best.score.low is not None else ""
    verb = "confirmed in" if best.score.beyond_noise else "measured again in"
    more = "" if best.score.beyond_noise else ", where it is not better beyond the noise"
    return f"score {best.score.ratio:.3f}{interval}, {verb} {text.count(best.score.rounds, 'round')}{more}"


def _interval(ratio: Ratio | MeasuredRatio) -> str:
    return "" if ratio.low is None else f"{ratio.low:.3f} to {ratio.high:.3f}"


def _print_winner(stored: StoredStudy, *, as_json: bool) -> int:
    winner = stored.searched.get((stored.record.conclusion or {}).get("winner", -1))
    if as_json:
        command = shlex.join(winner.outcome.argv) if winner and winner.outcome else None
        conclusion = stored.record.conclusion or {}
        print(json.dumps({"study": stored.record.name, **conclusion, "command": command}, indent=1))
    elif stored.record.conclusion:
        _print_conclusion(stored, winner)
    else:
        _print_leaders(stored)
    return _exit_code(stored) if winner is None else 0


def _exit_code(stored: StoredStudy) -> int:
    """Return the exit code of a study without a winner: 0 while the search has a trial that may win."""
    states = {trial.state for trial in stored.searched.values()}
    if "infeasible" in states and (stored.record.conclusion or "ok" not in states):
        return EXIT_SLOS_MISSED
    return 0 if "ok" in states else EXIT_OURS


def _print_conclusion(stored: StoredStudy, winner: TrialRecord | None) -> None:
    conclusion = stored.record.conclusion or {}
    findings = stored.findings
    show(Text(conclusion["reason"], style="bold"), *conclusion_parts(findings))
    if winner is not None and winner.outcome is not None:
        show(f"command of #{winner.number}:", ShellCommand(winner.outcome.argv))


def _print_leaders(stored: StoredStudy) -> None:
    name, ended = stored.record.name, [trial for trial in stored.searched.values() if trial.outcome]
    by_state = {state: [trial for trial in ended if trial.state == state] for state in ("ok", "infeasible", "failed")}
    titles = {
        "ok": f"study {name} has no conclusion yet; the best trials of its search so far:",
        "infeasible": f"no trial of study {name} meets its SLOs yet; those with the best scores:",
        "failed": f"no trial of study {name} works; the first ones failed:",
    }
    state = next((state for state, trials in by_state.items() if trials), None)
    if state is None:
        print(f"study {name} has no trial that ended yet; `tuner optimize` with the same settings continues it")
        return
    leaders = (by_state[state] if state == "failed" else sorted_trials(by_state[state], "score"))[:_LEADERS]
    print(titles[state])
    names = [objective.metric for objective in stored.objectives]
    show(trials_table(stored, leaders, names), *price_lines(names, [stored.price]))
