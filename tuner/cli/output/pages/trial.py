"""All that is known of one trial, as a page."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence
from dataclasses import asdict

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from records.trials import Failure, ServerFacts, TrialOutcome, TrialRecord
from tuner.cli.output.parts import Rows, labelled, new_table
from tuner.results import text
from tuner.results.conclusion import LATENCIES, price_lines
from tuner.results.text import full_configuration
from tuner.scoring.goals import Objective
from tuner.use_cases.stored import StoredStudy

STATISTICS = ("mean", "median", "p90", "p95", "p99", "std")
"""Columns of the table of latencies; p50 is the median."""


def trial_parts(trial: TrialRecord, stored: StoredStudy) -> list[RenderableType]:
    """Return what is known of a trial."""
    label = f", {trial.label}" if trial.label else ""
    heading = Text(f"{text.title(trial.number, trial.round)}  {trial.state}", style="bold")
    heading.append(f"  {trial.kind.value}{label}", style="not bold")
    rows: Rows = [("configuration", full_configuration(trial.config, stored.defaults))]
    outcome = trial.outcome
    if outcome is None:
        return [heading, labelled(rows)]
    rows += [*_origin(outcome), *_failure(outcome.failure), *_verdict(trial)]
    measured = [name for repeat in outcome.repeats for name in repeat.metrics]
    rows += [("price", str(stored.price)) for _ in price_lines(measured, [stored.price])]
    rows.append(("time", text.timings(outcome.timings) or "under a second"))
    return [heading, labelled(rows), *_figures(outcome, stored.objectives), *_server(outcome.server)]


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


def _verdict(trial: TrialRecord) -> Rows:
    if trial.verdict is None:
        return []
    slos = [f"{name} {'met' if value <= 0 else 'MISSED'}" for name, value in trial.verdict.constraints.items()]
    return [("score", text.number(trial.verdict.score)), *([("SLOs", ", ".join(slos))] if slos else [])]


def _figures(outcome: TrialOutcome, objectives: Sequence[Objective]) -> list[RenderableType]:
    """Return the metrics: rates and shares a line each, latencies as a table of statistics."""
    names = {name for repeat in outcome.repeats for name in repeat.metrics}
    if not names:
        return []
    latencies = _latency_names(names)
    rest = sorted(names - {f"{prefix}{s}_{kind}_ms" for prefix, kind in latencies for s in (*STATISTICS, "p50")})
    rows = [(name, text.with_unit(name, outcome.metric(name))) for name in rest]
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
