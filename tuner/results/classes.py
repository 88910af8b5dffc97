"""The winner beside the reference by request class: values and ratios with intervals, and who meets each SLO."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tuner.confidence import INTERVAL
from tuner.results import text
from tuner.results.findings import Findings
from tuner.results.grid import Grid, grid
from tuner.scoring.slo import Slo
from tuner.workloads.class_slo import ClassSlo
from tuner.workloads.spec import ClosedLoop, read_workload

BY_CLASS = " by request class"
LEFT = ("class", "metric", "SLO", "met by")
MET = "an SLO is met if it holds in every round"
LATENCIES = ("ttft", "tpot", "itl", "e2el")
ALWAYS = ("ttft", "tpot")
"""Latencies that are shown of every class; others where a class has a bound on them."""


def classes_grid(findings: Findings) -> Grid | None:
    """Return a row for each class and metric; None without request classes, or where their metrics were not measured.

    An SLO is met where it holds in every round that measured both configurations, without rounds in the search.
    """
    number, reference = findings.challenger, findings.baseline
    shown = shown_of_classes(findings)
    if number is None or number == reference or not shown:
        return None
    if findings.baseline is None or findings.measured(findings.baseline) is None or findings.measured(number) is None:
        return None
    table = grid(
        "class", "metric", findings.baseline_heading, f"#{number}", "ratio", INTERVAL, "SLO", "met by", left=LEFT
    )
    last = None
    for name in shown:
        of_class, _, base = name.rpartition(".")
        found = findings.beside(number, name)
        slos = [slo for slo in findings.slos if slo.metric == name]
        table.add(
            of_class if of_class != last else "",
            base,
            *text.compared(name, found),
            ", ".join(f"{slo.op}{slo.threshold:g}" for slo in slos),
            _met_by(findings, slos) if slos else "",
        )
        last = of_class
    return table


def classes_note(findings: Findings) -> str:
    """Return what the columns of the table mean: when an SLO is met, and the bounds that goodput counts by."""
    bounds = {name: slo.request.bounds_ms for name, slo in _classes(findings).items() if slo and slo.request.bounds_ms}
    texts = "; ".join(f"{name} {_bounds(each)}" for name, each in bounds.items())
    counted = [f"goodput counts the requests within the bounds of their class: {texts}"] if texts else []
    names = {slo.metric for slo in findings.slos} & {*shown_of_classes(findings)}
    return "; ".join(([MET] if names else []) + counted)


def shown_of_classes(findings: Findings) -> list[str]:
    """Return the metrics of request classes that the table shows, class by class; none without a value."""
    names = [name for each, slo in _classes(findings).items() for name in _names(findings, each, slo)]
    both = map(findings.measured, (findings.baseline, findings.challenger))
    outcomes = [outcome for outcome in both if outcome is not None]
    return [name for name in names if any(outcome.metric(name) is not None for outcome in outcomes)]


def _classes(findings: Findings) -> Mapping[str, ClassSlo | None]:
    """Return the SLO of each class that is sent; None for a class without one."""
    workload = read_workload(findings.workload) if findings.workload else None
    if workload is None or isinstance(workload, ClosedLoop):
        return {}
    return {name: workload.slos.get(name) for name in workload.sent_classes}


def _names(findings: Findings, of_class: str, slo: ClassSlo | None) -> list[str]:
    """Return the metrics of a class: goodput, what the study has a goal on, and one percentile of other latencies."""
    goals = [*(each.metric for each in findings.objectives), *(each.metric for each in findings.slos)]
    own = [base for prefix, _, base in (name.rpartition(".") for name in goals) if prefix == of_class]
    bounded = () if slo is None else slo.request.bounds_ms
    names = ["request_throughput"] if slo is None else ["goodput", "goodput_share"]
    names += [name for name in own if not name.endswith("_ms")]
    for kind in LATENCIES:
        of_kind = [name for name in own if name.endswith(f"_{kind}_ms")]
        names += of_kind or ([f"p99_{kind}_ms"] if kind in ALWAYS or kind in bounded else [])
    return [f"{of_class}.{name}" for name in dict.fromkeys(names)]


def _met_by(findings: Findings, slos: Sequence[Slo]) -> str:
    """Return which configurations meet all these SLOs: `both`, `#3`, `#3, defaults #0 in 2 of 3 rounds`, `neither`."""
    sides = {findings.baseline_heading: findings.baseline, f"#{findings.challenger}": findings.challenger}
    found = []
    for name, number in sides.items():
        outcomes = findings.outcomes(number)
        met = sum(all(slo.met(outcome.metric(slo.metric)) for slo in slos) for outcome in outcomes)
        if met:
            found.append(name if met == len(outcomes) else f"{name} in {met} of {len(outcomes)} rounds")
    return "both" if found == list(sides) else ", ".join(found) or "neither"


def _bounds(bounds: Mapping[str, float]) -> str:
    return ", ".join(f"{kind} < {bound:g} ms" for kind, bound in bounds.items())
