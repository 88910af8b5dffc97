"""The results of a study: trials, conclusion, charts, report, deployment files and the driver's log."""

from __future__ import annotations

import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Response

from dashboards.report.document import page_of
from dashboards.report.page import render
from records.measured import metrics_of
from records.trials import TrialRecord
from storage.service.rows import LARGEST
from tuner.client.replies import SubmittedTrial
from tuner.errors import reason_of
from tuner.export.formats.registry import default_file
from tuner.service.asked.contents import NAME
from tuner.service.driver.size import ANSWER, PAGE
from tuner.service.http.access import Known, Readable, readable
from tuner.service.http.context import Context
from tuner.service.http.edge.described import text
from tuner.service.http.problems import Problem, not_found
from tuner.service.scheduler.launcher import LOG, submission_folder
from tuner.use_cases.files import export as export_file
from tuner.use_cases.files import study_lines
from tuner.use_cases.report.page import report as write_report
from tuner.use_cases.report.reported import ReportedStudy

router = APIRouter(prefix="/v1/studies", tags=["results"])
EXPORTED: dict[int | str, dict[str, Any]] = {
    200: {
        "content": {
            "text/plain": {"schema": {"type": "string"}},
            "application/json": {"schema": {"type": "object", "additionalProperties": {"type": "string"}}},
        }
    }
}
"""The description of an exported file, and of several."""

FILE = f"^{NAME.pattern}$"
MOST_NUMBERS = 500
"""Numbers of trials in one answer; each has as many rows as it has rounds."""

MOST_OTHERS = 20
LARGEST_RANGE = 256 * 1024
"""Most bytes of a log in one answer."""

SANDBOX = (
    "sandbox allow-scripts; default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data:"
)
"""The report has its scripts within it, and runs without the page's cookie."""


@router.get("/{id}/trials")
def trials(
    found: Readable,
    context: Context,
    after: Annotated[int, Query(ge=-1, le=LARGEST)] = -1,
    limit: Annotated[int, Query(ge=1, le=MOST_NUMBERS)] = MOST_NUMBERS,
) -> list[SubmittedTrial]:
    """Return trials and measurements in rounds of a study by number and round: the first `limit` numbers above `after`.

    The next page has `after` = the last number of this one; an empty page ends them.
    """
    if context.store.study(found.id) is None:
        return []
    return [trial_of(record) for record in context.store.trials(found.id, after=after, most=limit)]


def trial_of(record: TrialRecord) -> SubmittedTrial:
    """Return a trial as its readers see it."""
    outcome, verdict = record.outcome, record.verdict
    failure = None if outcome is None else outcome.failure
    return SubmittedTrial(
        number=record.number,
        round=record.round,
        kind=record.kind.value,
        label=record.label,
        state=record.state,
        score=record.score,
        feasible=None if verdict is None else verdict.feasible,
        values={} if verdict is None else verdict.values,
        constraints={} if verdict is None else verdict.constraints,
        metrics=metrics_of(outcome),
        config=record.config,
        failure=None
        if failure is None
        else {"kind": failure.kind.value, "culprit": failure.culprit.value, "message": failure.message},
        cut=None if outcome is None or outcome.cut is None else outcome.cut.reason,
        provenance=None if outcome is None else outcome.provenance.value,
        started_at=None if outcome is None else outcome.started_at,
        ended_at=None if outcome is None else outcome.ended_at,
    )


@router.get("/{id}/conclusion")
def conclusion(found: Readable, context: Context) -> dict[str, Any]:
    """Return what the study concluded: winner, reason, finalists with intervals, flag effects, front.

    A study of servers for a load has the document of `tuner size --json`.
    """
    if (answer := context.service.answer(found.id)) is not None:
        return dict(answer[ANSWER])
    study = context.store.study(found.id)
    if study is None or study.conclusion is None:
        raise not_found("conclusion of the study", found.id)
    return dict(study.conclusion)


def reported(id: str, who: Known, context: Context) -> ReportedStudy:
    """Return a study that the caller may read.

    Raises:
        Problem: 404 if there is none, or it has no finished trial.
    """
    readable(id, who, context)
    study = context.store.study(id)
    records = () if study is None else tuple(context.store.trials(id))
    if study is None or all(record.outcome is None for record in records):
        raise not_found("finished trial of the study", id)
    return ReportedStudy(study, records, context.url)


Reported = Annotated[ReportedStudy, Depends(reported)]


@router.get("/{id}/records", response_class=Response, responses=text("application/x-ndjson"))
def records(found: Readable, context: Context) -> Response:
    """Return the study as the database has it: a line of JSON for it, each trial, and each failed attempt.

    Folders of trials keep their paths: `tuner study requests` reads them on the server's own machine.
    """
    if context.store.study(found.id) is None:
        why = "has not begun yet" if context.service.answer(found.id) is None else "found servers for a load"
        raise Problem(404, f"the study {found.id!r} {why}, so there is no trial to read")
    lines = "".join(f"{line}\n" for line in study_lines(context.store, found.id))
    return Response(lines, media_type="application/x-ndjson")


@router.get("/{id}/report", response_class=Response, responses=text("text/html"))
def report(
    id: str, who: Known, context: Context, other: Annotated[list[str] | None, Query(max_length=MOST_OTHERS)] = None
) -> Response:
    """Return the report as one HTML file, which compares the study with `other` ones."""
    names = [id, *(other or [])]
    for name in names:
        readable(name, who, context)
    answer = None if other else context.service.answer(id)
    if answer is not None:
        content = render(page_of(answer[PAGE])).encode()
    else:
        for name in names:
            reported(name, who, context)
        with TemporaryDirectory(prefix="tuner-report-") as folder:
            content = write_report(names, Path(folder) / "report.html", context.url).read_bytes()
    content = context.places.hidden(content)
    return Response(content, media_type="text/html", headers={"Content-Security-Policy": SANDBOX})


@router.get("/{id}/export", response_class=Response, responses=EXPORTED)
def export(
    id: str,
    who: Known,
    context: Context,
    format: Annotated[str, Query(max_length=40)] = "script",
    trial: Annotated[int | None, Query(ge=0)] = None,
    file: Annotated[str | None, Query(pattern=FILE)] = None,
) -> Response:
    """Return a deployment file of the winner, or of a trial; a format with a second file has both as JSON.

    `file` is the name that the file will have: a second file is named after it.
    """
    reported(id, who, context)
    with TemporaryDirectory(prefix="tuner-export-") as folder:
        paths = export_file(
            id, trial, Path(folder) / (file or f"{id}{default_file(format).suffix}"), context.url, format
        )
        contents = {path.name: path.read_text(encoding="utf-8") for path in paths}
    if len(contents) > 1:
        return Response(json.dumps(contents), media_type="application/json")
    name, content = next(iter(contents.items()))
    return Response(
        content,
        media_type="text/plain; charset=utf-8",
        headers={"Content-Disposition": f'attachment; filename="{name}"'},
    )


@router.get("/{id}/log", response_class=Response, responses=text("text/plain"))
def log(
    found: Readable,
    context: Context,
    offset: Annotated[int, Query(ge=0)] = 0,
    limit: Annotated[int, Query(ge=1, le=LARGEST_RANGE)] = LARGEST_RANGE,
) -> Response:
    """Return bytes of the driver's log; the header `Tuner-Log-Size` has the size of the whole.

    Paths of the server are masked.
    """
    path = submission_folder(context.folder, found.id) / LOG
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            begin = min(offset, size)
            first = max(begin - context.places.longest, 0)  # a path may begin before, or end behind
            file.seek(first)
            content = context.places.masked(file.read(begin - first + limit + context.places.longest))
            content = content[begin - first :][:limit]
    except FileNotFoundError:
        raise not_found("log of the study", found.id) from None
    except OSError as error:
        raise Problem(500, f"the log cannot be read: {reason_of(error)}") from None
    return Response(content, media_type="text/plain; charset=utf-8", headers={"Tuner-Log-Size": str(size)})
