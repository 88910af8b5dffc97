"""Write the report of one or more studies."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from dashboards.report.page import Page, render
from storage import open_store
from storage.store import Store
from tuner.errors import SettingError, UserError
from tuner.files import write_output
from tuner.owner import free_path, refuse_other_file
from tuner.use_cases.places import find_study, storage_url
from tuner.use_cases.report.page import page_of
from tuner.use_cases.report.reported import ReportedStudy
from tuner.use_cases.report.several import page_of_several

REPORT = Path("report.html")
"""The file of a report, unless the user chooses another."""


def report(studies: Sequence[str], output: Path | None, storage: str | None = None) -> Path:
    """Write the report of a study, or one that compares several.

    Args:
        studies: names; empty: the latest of the database. Each counts once.
        output: the HTML file; None: `REPORT`, or a file beside it if that is another study's.
        storage: file or SQLAlchemy URL of the database; None: the default one.

    Returns:
        The path of the file.

    Raises:
        UserError: when there is no such study, it has no trial, the path has another file, or the file cannot be
            written.
    """
    url = storage_url(storage, create=False)
    names: list[str | None] = [*dict.fromkeys(studies)]
    with closing(open_store(url)) as store:
        found = [named_study(store, url, name) for name in names or [None]]
    path = own_path(output, [each.record.name for each in found])
    return write_page(page_of(found[0]) if len(found) == 1 else page_of_several(found), path)


def own_path(output: Path | None, studies: Sequence[str]) -> Path:
    """Return the path of a report of studies, which replaces no other file.

    Raises:
        SettingError: if the user chose a path that has another file.
    """
    if output is None:
        return free_path(REPORT, ", ".join(studies))
    refuse_other_file(output, ", ".join(studies))
    return output


def named_study(store: Store, url: str, name: str | None) -> ReportedStudy:
    """Return a study that an argument of the command names, see `reported_study`."""
    try:
        return reported_study(store, url, name)
    except SettingError as error:  # a study is an argument here, not an option
        if error.field != "study":
            raise
        remedy = f"; {error.remedy}" * bool(error.remedy)
        raise UserError(f"study {error.value!r}: {error.rule}{remedy}") from None


def reported_study(store: Store, url: str, name: str | None) -> ReportedStudy:
    """Return a study as a report needs it; None: the latest.

    Raises:
        UserError: when there is no such study, or it has no finished trial.
    """
    record = find_study(store, name)
    trials = tuple(store.trials(record.name))
    if all(trial.outcome is None for trial in trials):
        raise SettingError("study", record.name, "it has no finished trial", "run `tuner optimize` first")
    return ReportedStudy(record, trials, url)


def write_page(page: Page, output: Path, mode: int | None = None) -> Path:
    """Write a page to a file and return its path.

    Args:
        page: the page.
        output: the file.
        mode: its permission bits; None: as for any output.

    Raises:
        UserError: if the file cannot be written.
    """
    try:
        write_output(output, render(page), mode=mode)
    except OSError as error:
        rule = f"the file cannot be written: {error.strerror}"
        raise SettingError("output", str(output), rule, "choose another file") from None
    return output
