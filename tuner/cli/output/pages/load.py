"""The output of `tuner load`."""

from __future__ import annotations

import json

from tuner.cli.output.parts.console import new_table, show
from tuner.errors import EXIT_OURS
from tuner.results import text
from tuner.use_cases.load import LoadResult
from tuner.workloads.file_notes import file_notes
from tuner.workloads.suite import Suite

SHOWN = (
    "success_rate",
    "goodput_share",
    "p50_ttft_ms",
    "p95_ttft_ms",
    "p95_tpot_ms",
    "p95_itl_ms",
    "p99_itl_ms",
    "p95_e2el_ms",
)


def report(result: LoadResult, *, as_json: bool) -> int:
    """Print the measurements by class and whether each SLO holds; return the exit code."""
    if as_json:
        print(json.dumps(_document(result)))
    else:
        _print(result)
    return 0 if result.invalid is None and all(result.slos_met.values()) else EXIT_OURS


def _document(result: LoadResult) -> dict[str, object]:
    repeat = result.repeat
    counts = {"offered": repeat.offered, "completed": repeat.completed, "duration_s": repeat.duration_s}
    judged = {"slos": result.slos_met, "failures": result.failures, "invalid": result.invalid, "provenance": "measured"}
    return {**counts, "metrics": repeat.metrics, **judged}


def _print(result: LoadResult) -> None:
    repeat, traffic = result.repeat, result.traffic
    print(f"{repeat.completed} of {repeat.offered} requests completed (measured); records are in {result.folder}")
    for line in (*file_notes(traffic), *result.failures):
        print(line)
    loads = traffic.loads if isinstance(traffic, Suite) else ()
    table = new_table()
    table.add_column("metric", no_wrap=True)
    classes = ("", *(f"{name}." for name in (*loads, *traffic.sent_classes)))
    for prefix in classes:
        table.add_column(prefix.rstrip(".") or "all", justify="right", no_wrap=True)
    for metric in SHOWN:
        table.add_row(metric, *(text.number(repeat.metrics.get(f"{prefix}{metric}")) for prefix in classes))
    show(table)
    for slo in result.slos:
        verdict = "met" if result.slos_met[str(slo)] else "MISSED"
        print(f"SLO {slo} {verdict}: measured {text.number(repeat.metrics.get(slo.metric))}")
    if result.invalid is not None:
        print(f"INVALID: {result.invalid}")
