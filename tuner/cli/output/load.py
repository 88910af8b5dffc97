"""The output of `tuner load`."""

from __future__ import annotations

import json

from tuner.cli.output import text
from tuner.errors import EXIT_OURS
from tuner.use_cases.load import LoadResult
from tuner.workloads.suite import Suite

SHOWN = ("success_rate", "goodput_share", "p50_ttft_ms", "p95_ttft_ms", "p95_tpot_ms", "p95_itl_ms", "p95_e2el_ms")


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
    judged = {"slos": result.slos_met, "invalid": result.invalid, "provenance": "measured"}
    return {**counts, "metrics": repeat.metrics, **judged}


def _print(result: LoadResult) -> None:
    repeat, traffic = result.repeat, result.traffic
    print(
        f"{repeat.completed} of {repeat.offered} requests completed (measured); a record of each is in {result.folder}"
    )
    width = 2 + max(10, *map(len, traffic.sent_classes))
    print(f"{'':<{width}}" + "".join(f"{name:>15}" for name in SHOWN))
    loads = traffic.loads if isinstance(traffic, Suite) else ()
    for name in ("", *(f"{kind}." for kind in (*loads, *traffic.sent_classes))):
        row = "".join(f"{text.number(repeat.metrics.get(f'{name}{metric}')):>15}" for metric in SHOWN)
        print(f"{name.rstrip('.') or 'all':<{width}}{row}")
    for slo in result.slos:
        verdict = "holds" if result.slos_met[str(slo)] else "BROKEN"
        print(f"SLO {slo}: measured {text.number(repeat.metrics.get(slo.metric))}: {verdict}")
    if result.invalid is not None:
        print(f"INVALID: {result.invalid}")
