"""The page of several studies side by side: cards, models, engines or dates."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from dashboards.plots.results import side_by_side
from dashboards.report.page import Figure, Page, Section, Table
from tuner.results import text
from tuner.results.cost_lines import COST
from tuner.results.grid import Grid, grid
from tuner.use_cases.report.page import result_parts, source_of, verdict_of, workload_line
from tuner.use_cases.report.reported import ReportedStudy

LEFT = ("study", "numbers are", "model", "card", "engine", "configuration")


def page_of_several(studies: Sequence[ReportedStudy]) -> Page:
    """Return a page that compares studies; each row says whether it was measured."""
    names = ", ".join(study.record.name for study in studies)
    first = Section("Side by side", [Table("Configurations", values_grid(studies), _note(studies)), *_figure(studies)])
    each = [
        Section(study.record.name, [verdict_of(study.findings.conclusion), *result_parts(study)], source_of(study))
        for study in studies
    ]
    return Page(
        title=f"{len(studies)} studies",
        subtitle=names,
        verdict=_verdict(studies),
        simulated=all(study.simulated for study in studies),
        sections=[first, *each],
        study=names,
    )


def _verdict(studies: Sequence[ReportedStudy]) -> str:
    """Return how many studies found something better than their reference."""
    better = [study for study in studies if study.findings.winner not in (None, study.findings.baseline)]
    if not better:
        return "No study found a configuration that is better than its reference beyond the noise."
    names = ", ".join(study.record.name for study in better)
    return f"{len(better)} of {len(studies)} studies recommend another configuration than their reference: {names}."


def shared_metrics(studies: Sequence[ReportedStudy]) -> list[str]:
    """Return the objectives of all studies, each once."""
    return list(dict.fromkeys(each.metric for study in studies for each in study.findings.objectives))


def values_grid(studies: Sequence[ReportedStudy]) -> Grid:
    """Return a row for each study's reference and for its winner: where it ran, and its values."""
    metrics = shared_metrics(studies)
    priced = any(outcome.metric(COST) is not None for study in studies for outcome in study.outcomes.values())
    costs = [COST] if priced and COST not in metrics else []
    table = grid(*LEFT, *metrics, *costs, left=LEFT)
    for study in studies:
        for name, outcome in study.outcomes.items():
            values = (outcome.metric(metric) for metric in (*metrics, *costs))
            table.add(
                study.record.name,
                study.record.provenance.value,
                str(study.record.premise["model"]["name"]),
                study.device,
                study.engine,
                name,
                *map(text.number, values),
            )
    return table


def _note(studies: Sequence[ReportedStudy]) -> str:
    """Return what keeps the rows from being compared: different loads, and measured beside simulated numbers."""
    loads = {study.record.name: workload_line(study.record.premise["workload"]) for study in studies}
    notes = []
    if len(set(loads.values())) > 1:
        notes.append("The loads differ: " + "; ".join(f"{name}: {load}" for name, load in loads.items()) + ".")
    if len({study.simulated for study in studies}) > 1:
        notes.append("Some rows are measured, others predicted.")
    prices = dict.fromkeys(str(price) for study in studies if (price := study.findings.price) is not None)
    if prices:
        notes.append(f"Prices: {'; '.join(prices)}.")
    return " ".join(notes)


def _figure(studies: Sequence[ReportedStudy]) -> Iterator[Figure]:
    """Yield the first two objectives that all studies have, against each other."""
    shared = [
        metric
        for metric in shared_metrics(studies)
        if all(outcome.metric(metric) is not None for study in studies for outcome in study.outcomes.values())
    ]
    if len(shared) > 1:
        up, across = shared[:2]
        points = {
            study.record.name: {
                name: (outcome.metric(across) or 0.0, outcome.metric(up) or 0.0)
                for name, outcome in study.outcomes.items()
            }
            for study in studies
        }
        title = f"{up} by {across}"
        yield Figure(
            title, side_by_side(points, across, up), "A line leads from the reference of a study to its winner."
        )
