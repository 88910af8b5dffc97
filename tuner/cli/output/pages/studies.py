"""The pages of `tuner study list`, `tuner study trials` and `tuner study trial`: what a database has."""

from __future__ import annotations

import difflib
import json
import math
import shlex
import sys
from collections.abc import Iterable, Sequence
from contextlib import closing
from dataclasses import asdict
from typing import Any

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from records.metrics import LATENCIES, Direction, metric
from records.tables import grid
from records.trials import Cut, Failure, ServerFacts, StudyRecord, TrialOutcome, TrialRecord
from search_spaces import Price
from storage import open_store
from tuner.cli.output.parts import FittedTable, Rows, fill_trials, labelled, new_table, show, width_of
from tuner.errors import UserError
from tuner.results import text
from tuner.results.conclusion import ITL, price_lines
from tuner.results.text import full_configuration
from tuner.scoring.goals import Objective
from tuner.use_cases.places import find_study, storage_url
from tuner.use_cases.stored import StoredStudy, read_study

_SCORE, _NUMBER = "score", "number"
_HOLES = 8
"""Dropped numbers that the note below the table names."""


def print_studies(storage: str | None, *, as_json: bool) -> None:
    with closing(open_store(storage_url(storage, create=False))) as store:
        find_study(store, None)  # an empty database is refused as by every other command
        rows = [_row(study, store.trials(study.name)) for study in store.studies()]
    if as_json:
        print(json.dumps(rows, indent=1))
    else:
        _print_table(rows)


def _row(study: StudyRecord, trials: Sequence[TrialRecord]) -> dict[str, Any]:
    conclusion = study.conclusion or {}
    finished = [trial for trial in trials if trial.outcome is not None]
    return {
        "study": study.name,
        "provenance": study.provenance.value,
        "created_at": study.created_at.isoformat(timespec="seconds"),
        "model": study.premise["model"]["name"],
        "hardware": study.facts.get("hardware"),
        "engine": study.premise["engine"],
        "trials": sum(not trial.round for trial in finished),
        "remeasurements": sum(bool(trial.round) for trial in finished),
        "winner": conclusion.get("winner"),
        "keeps": conclusion.get("keeps"),
        "keep_defaults": conclusion.get("keep_defaults"),
        "reason": conclusion.get("reason"),
    }


def _print_table(rows: Sequence[dict[str, Any]]) -> None:
    names = ("study", "provenance", "created (UTC)", "model, hardware", "trials", "conclusion")
    table = grid(*names, left=tuple(name for name in names if name != "trials"))
    for row in rows:
        again = f" + {row['remeasurements']}" if row["remeasurements"] else ""
        table.add(
            row["study"],
            row["provenance"],
            row["created_at"][:16].replace("T", " "),
            f"{row['model']} on {row['hardware'] or 'unknown hardware'}",
            f"{row['trials']}{again}",
            row["reason"] or "none yet",
        )
    show(FittedTable(table))
    if any(row["remeasurements"] for row in rows):
        print("trials: those of the search + measurements of finalists in the rounds")


def print_trials(
    study: str | None,
    storage: str | None,
    *,
    sort: str | None,
    top: int | None,
    failed: bool,
    as_json: bool,
    csv: bool,
) -> None:
    stored = read_study(storage, study)
    found: Sequence[TrialRecord] = stored.trials
    if failed:
        found = [trial for trial in found if trial.state == "failed"]
    if sort is not None:
        found = sorted_trials(found, sort)
    found = found[:top]
    if as_json or csv:
        _print_frame(found, as_json=as_json)
    else:
        _print(stored, found, sort)


def print_trial(study: str | None, number: int, round_: int, storage: str | None, *, as_json: bool) -> None:
    stored = read_study(storage, study)
    trial = stored.trial(number, round_)
    if as_json:
        _print_frame([trial], as_json=True)
    else:
        show(*_trial_parts(trial, stored))


def _print_frame(trials: Sequence[TrialRecord], *, as_json: bool) -> None:
    from dashboards import frames  # a table for people needs no pandas

    frame = frames.trials_frame(trials)
    sys.stdout.write(frames.to_json(frame) if as_json else frames.to_csv(frame))


def sorted_trials(found: Sequence[TrialRecord], column: str) -> list[TrialRecord]:
    """Return the trials of the search, best first by a column; those without a value are last.

    Raises:
        UserError: for a column that is neither `score`, `number` nor a metric of these trials.
    """
    searched = [trial for trial in found if not trial.round]
    measured = {name for t in searched if t.outcome for repeat in t.outcome.repeats for name in repeat.metrics}
    if column == _NUMBER:
        return sorted(searched, key=lambda trial: trial.number)
    if column != _SCORE and column not in measured:
        near = difflib.get_close_matches(column, [_SCORE, _NUMBER, *measured], n=3)
        hint = f"did you mean {', '.join(near)}?" if near else "give score, number or a metric, such as p99_ttft_ms"
        raise UserError(f"--sort {column!r}: no trial has such a column; {hint}")
    return sorted(searched, key=lambda trial: (_worst_last(trial, column), trial.number))


def _worst_last(trial: TrialRecord, column: str) -> float:
    """Return a value that is lower for a better trial."""
    if column == _SCORE:
        return math.inf if trial.score is None else -trial.score
    value = trial.outcome.metric(column) if trial.outcome else None
    if value is None:
        return math.inf
    return -value if metric(column).direction is Direction.MAXIMIZE else value


def _print(stored: StoredStudy, found: Sequence[TrialRecord], sort: str | None) -> None:
    names = [objective.metric for objective in stored.objectives]
    if sort not in (None, _SCORE, _NUMBER) and sort not in names:
        names.insert(0, sort)
    if ITL not in names and any(trial.outcome and trial.outcome.metric(ITL) is not None for trial in found):
        names.append(ITL)
    table = trials_table(stored, found, names)
    show(stored.title, table, *price_lines(names, [stored.price]), *_notes(stored))


def trials_table(stored: StoredStudy, trials: Sequence[TrialRecord], metrics: Sequence[str]) -> Table:
    table = new_table()
    fill_trials(table, trials, metrics, stored.defaults, width_of(), stored.price, whole=True)
    return table


def _notes(stored: StoredStudy) -> list[str]:
    """Return why numbers are missing, if some are."""
    holes = stored.dropped_numbers
    if not holes:
        return []
    named = ", ".join(map(str, holes[:_HOLES])) + (", …" if len(holes) > _HOLES else "")
    return [f"numbers without a trial are suggestions that were dropped before a launch: {named}"]


STATISTICS = ("mean", "median", "p90", "p95", "p99", "std")
"""Columns of the table of latencies; p50 is the median."""


def _trial_parts(trial: TrialRecord, stored: StoredStudy) -> list[RenderableType]:
    label = f", {trial.label}" if trial.label else ""
    heading = Text(f"{text.title(trial.number, trial.round)}  {trial.state}", style="bold")
    heading.append(f"  {trial.kind.value}{label}", style="not bold")
    rows: Rows = [("configuration", full_configuration(trial.config, stored.defaults))]
    outcome = trial.outcome
    if outcome is None:
        return [heading, labelled(rows)]
    rows += [*_origin(outcome), *_failure(outcome.failure), *_cut(outcome.cut), *_verdict(trial)]
    measured = [name for repeat in outcome.repeats for name in repeat.metrics]
    rows += [("price", str(stored.price)) for _ in price_lines(measured, [stored.price])]
    rows.append(("time", text.timings(outcome.timings) or "under a second"))
    return [heading, labelled(rows), *_figures(outcome, stored.objectives, stored.price), *_server(outcome.server)]


def _origin(outcome: TrialOutcome) -> Rows:
    environment = " ".join(f"{name}={shlex.quote(value)}" for name, value in sorted(outcome.environment.items()))
    return [
        ("command", shlex.join(outcome.argv)),
        ("environment", environment or "nothing set"),
        ("ran on", f"{outcome.worker} ({outcome.device}), {outcome.provenance.value}"),
        ("files", outcome.artifacts),
    ]


def _failure(failure: Failure | None) -> Rows:
    if failure is None:
        return []
    what = f"{failure.kind.value} in {failure.phase.value}, culprit {failure.culprit.value}: {failure.message}"
    return [("failure", what), *([("log", failure.evidence)] if failure.evidence else [])]


def _cut(cut: Cut | None) -> Rows:
    return [] if cut is None else [("cut short", f"after {cut.after_s:.0f} s of the benchmark: {cut.reason}")]


def _verdict(trial: TrialRecord) -> Rows:
    if trial.verdict is None or trial.state == "cut":
        return []
    slos = [f"{name} {'met' if value <= 0 else 'MISSED'}" for name, value in trial.verdict.constraints.items()]
    return [("score", text.number(trial.score)), *([("SLOs", ", ".join(slos))] if slos else [])]


def _figures(outcome: TrialOutcome, objectives: Sequence[Objective], price: Price | None) -> list[RenderableType]:
    """Return the metrics: rates and shares a line each, latencies as a table of statistics."""
    names = {name for repeat in outcome.repeats for name in repeat.metrics}
    if not names:
        return []
    latencies = _latency_names(names)
    rest = sorted(names - {f"{prefix}{s}_{kind}_ms" for prefix, kind in latencies for s in (*STATISTICS, "p50")})
    rows = [(name, text.with_unit(name, outcome.metric(name), price)) for name in rest]
    basis = "one benchmark"
    if len(outcome.repeats) > 1:
        basis = f"medians of {text.count(len(outcome.repeats), 'repeat')}"
        for objective in objectives:
            values = " / ".join(text.number(repeat.metrics.get(objective.metric)) for repeat in outcome.repeats)
            rows.append((f"{objective.metric}, each repeat", values))
    parts: list[RenderableType] = [Text(""), Text(f"metrics, {basis}", style="bold"), labelled(rows)]
    return [*parts, Text(""), _latency_table(outcome, latencies)] if latencies else parts


def _latency_names(names: Iterable[str]) -> list[tuple[str, str]]:
    """Return the prefix (`chat.`, or none) and the kind of each latency that was measured, all classes' first."""
    prefixes = sorted({name[: name.rfind(".") + 1] for name in names})
    found = [(prefix, kind) for prefix in prefixes for kind in LATENCIES]
    present = {*names}
    return [(prefix, kind) for prefix, kind in found if {f"{prefix}{s}_{kind}_ms" for s in STATISTICS} & present]


def _latency_table(outcome: TrialOutcome, latencies: Sequence[tuple[str, str]]) -> Table:
    table = new_table()
    table.add_column("latency, ms")
    shown = [s for s in STATISTICS if any(outcome.metric(f"{p}{s}_{kind}_ms") is not None for p, kind in latencies)]
    for statistic in shown:
        table.add_column(statistic, justify="right", no_wrap=True)
    for prefix, kind in latencies:
        values = (outcome.metric(f"{prefix}{statistic}_{kind}_ms") for statistic in shown)
        table.add_row(f"{prefix.rstrip('.')} {kind.upper()}".strip(), *(text.number(value) for value in values))
    return table


def _server(facts: ServerFacts | None) -> list[RenderableType]:
    """Return what the server reports, one fact a line."""
    known = {} if facts is None else {name: value for name, value in asdict(facts).items() if value is not None}
    if not known:
        return []
    rows = [(name, _fact(value)) for name, value in known.items()]
    return [Text(""), Text("the server's own figures", style="bold"), labelled(rows)]


def _fact(value: str | bool | float) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return value if isinstance(value, str) else text.number(value)
