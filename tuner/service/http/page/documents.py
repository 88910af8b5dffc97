"""Reports as JSON, which the page draws, and several studies side by side."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query

from dashboards.report.document import document, part_document
from tuner.errors import SettingError
from tuner.service.driver.size import PAGE
from tuner.service.http.access import Known, Readable
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
def summary(found: Readable, who: Known, context: Context) -> dict[str, Any]:
    """Return the result of a study as the report has it, with its tables: verdict, winner against defaults, flags."""
    answer = context.service.answer(found.id)
    return document(result_page(reported(found.id, who, context))) if answer is None else dict(answer[PAGE])


@router.get("/studies/{id}/charts")
def charts(
    study: Reported, name: Annotated[list[str], Query(min_length=1, max_length=len(CAPTIONS))]
) -> dict[str, Any]:
    """Return figures of the report by their names, with title and note; those without numbers are left out."""
    unknown = next((each for each in name if each not in CAPTIONS), None)
    if unknown is not None:
        raise SettingError("name", unknown, f"the charts are {', '.join(CAPTIONS)}", "choose some")
    found = {each: next(figures(study, {each: CAPTIONS[each]}, origin_of(study)), None) for each in name}
    return {each: part_document(figure) for each, figure in found.items() if figure is not None}


@router.get("/comparison")
def comparison(study: Compared, who: Known, context: Context) -> dict[str, Any]:
    """Return studies side by side, as the report of several has them."""
    return document(page_of_several([reported(each, who, context) for each in dict.fromkeys(study)]))
