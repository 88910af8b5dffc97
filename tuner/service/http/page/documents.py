"""Reports as JSON, which the page draws, and several studies side by side."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Annotated, Any

from fastapi import APIRouter, Query

from dashboards.report.page import Command, Figure, Page, Table
from tuner.errors import SettingError
from tuner.service.http.access import Known
from tuner.service.http.context import Context
from tuner.service.http.results import Reported, reported
from tuner.use_cases.report.charts import figures
from tuner.use_cases.report.page import CAPTIONS, origin_of, page_of_several, result_page

router = APIRouter(prefix="/v1", tags=["results"])
MOST_COMPARED = 12
"""Studies side by side."""

MOST_SCORED = 200
"""Studies whose scores are read at once."""

MOST_SCORES = 500
"""Trials of a study whose scores a list shows."""

Compared = Annotated[list[str], Query(min_length=1, max_length=MOST_COMPARED)]


@router.get("/scores")
def scores(
    who: Known, context: Context, study: Annotated[list[str], Query(min_length=1, max_length=MOST_SCORED)]
) -> dict[str, list[float | None]]:
    """Return the scores of the trials of studies, in their order; null for a trial without one.

    Studies that the caller may not read are left out, as are those without a trial.
    """
    found = context.service.readable_of(study, who.reads_as)
    return context.store.scores(found, MOST_SCORES)


@router.get("/studies/{id}/summary")
def summary(study: Reported) -> dict[str, Any]:
    """Return the result of a study as the report has it, with its tables: verdict, winner against defaults, flags."""
    return document(result_page(study))


@router.get("/studies/{id}/charts")
def charts(
    study: Reported, name: Annotated[list[str], Query(min_length=1, max_length=len(CAPTIONS))]
) -> dict[str, Any]:
    """Return figures of the report by their names, with title and note; those without numbers are left out."""
    unknown = next((each for each in name if each not in CAPTIONS), None)
    if unknown is not None:
        raise SettingError("name", unknown, f"the charts are {', '.join(CAPTIONS)}", "choose some")
    found = {each: next(figures(study, {each: CAPTIONS[each]}, origin_of(study)), None) for each in name}
    return {each: _part(figure) for each, figure in found.items() if figure is not None}


@router.get("/comparison")
def comparison(study: Compared, who: Known, context: Context) -> dict[str, Any]:
    """Return studies side by side, as the report of several has them."""
    return document(page_of_several([reported(each, who, context) for each in dict.fromkeys(study)]))


def document(page: Page) -> dict[str, Any]:
    """Return a page of a report as JSON."""
    return {
        "title": page.title,
        "subtitle": page.subtitle,
        "verdict": page.verdict,
        "simulated": page.simulated,
        "tiles": [asdict(tile) for tile in page.tiles],
        "sections": [
            {"title": section.title, "source": section.source, "parts": [_part(each) for each in section.parts]}
            for section in page.sections
        ],
    }


def _part(part: Figure | Table | Command | str) -> dict[str, Any]:
    """Return a part of a section."""
    if isinstance(part, str):
        return {"kind": "text", "text": part}
    if isinstance(part, Command):
        return {"kind": "command", "title": part.title, "text": part.text}
    if isinstance(part, Figure):
        note = f"{part.note} {part.source}".strip()
        return {"kind": "figure", "title": part.title, "note": note, "figure": json.loads(part.figure.to_json())}
    return {
        "kind": "table",
        "title": part.title,
        "note": part.note,
        "columns": [{"heading": each.heading, "right": each.right} for each in part.table.columns],
        "rows": [list(row) for row in part.table.rows],
        "faint": sorted(part.table.faint),
    }
