"""The files that a study leaves at its end: the script of the winner, and the report."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from storage.errors import StorageError
from storage.store import Store
from tuner.errors import UserError
from tuner.owner import free_path, other_file
from tuner.study.run import RunResult
from tuner.use_cases.files.export import write_script

REPORT = "report.html"


def write_files(
    result: RunResult,
    name: str,
    store: Store,
    url: str,
    output: Path,
    artifacts: Path,
    note: Callable[[str], None],
) -> tuple[Path | None, Path | None]:
    """Write the script of the winner, or of the trial that is nearest to the SLOs, and the report; store their paths.

    Args:
        result: of the run.
        name: of the study.
        store: with its trials.
        url: of the database.
        output: the script; where it is another file, the script goes beside it.
        artifacts: folder of the study, in which the report is written.
        note: receives one line if the script goes elsewhere, or the report cannot be written, which ends no study.

    Returns:
        The paths of both; None for one that was not written.

    Raises:
        UserError: if the script cannot be written.
    """
    script = _script(result, name, store, output, note)
    report = None if result.conclusion is None else _report(name, store, url, artifacts / REPORT, note)
    return script, report


def _script(result: RunResult, name: str, store: Store, output: Path, note: Callable[[str], None]) -> Path | None:
    number = None if result.conclusion is None else result.conclusion.exported
    if number is None:
        return None
    study = store.study(name)
    assert study is not None
    path = free_path(output, name)
    if (found := other_file(output, name)) is not None:
        note(f"{output} is {found} and stays; the script of this study is {path}")
    write_script(store, study, number, path)
    store.update_study(name, facts={"script": os.fspath(path.resolve())})
    return path


def _report(name: str, store: Store, url: str, path: Path, note: Callable[[str], None]) -> Path | None:
    # Plotly and Jinja take a second to import, which no start of a study should wait for.
    from tuner.use_cases.report.charts import plotted_facts
    from tuner.use_cases.report.page import page_of
    from tuner.use_cases.report.write import reported_study, write_page

    try:
        study = reported_study(store, url, name)
        store.update_study(name, facts=plotted_facts(study))
        write_page(page_of(study), path, mode=0o600)
    except (UserError, StorageError, ArithmeticError, LookupError, ValueError) as error:
        note(f"the report was not written: {type(error).__name__}: {error}; `tuner report` tries again")
        return None
    store.update_study(name, facts={"report": os.fspath(path.resolve())})
    return path
