"""`tuner export`: a trial as a script."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tuner.cli.options import Storage, StudyName
from tuner.errors import UserError
from tuner.use_cases.places import find_study, storage_url

if TYPE_CHECKING:
    from storage.records import StudyRecord
    from storage.store import Store


def export(
    study: StudyName = None,
    trial: Annotated[int | None, typer.Option(help="Trial's number.  [default: the winner]")] = None,
    output: Annotated[Path, typer.Option("--output", "-o", help="File to write.")] = Path("best_serve.sh"),
    storage: Storage = None,
) -> None:
    """Write a trial as a script that starts its server, and verifies itself with --verify."""
    from storage import open_store

    with closing(open_store(storage_url(storage, create=False))) as store:
        record = find_study(store, study)
        number = trial
        if number is None:
            conclusion = record.conclusion or {}
            number = conclusion.get("winner")
            if number is None:
                raise UserError(f"study {record.name!r} names no winner yet; give --trial N, see `tuner trials`")
        path = write_script(store, record, number, output)
    print(f"wrote {path}")


def write_script(store: Store, study: StudyRecord | None, number: int, output: Path) -> Path:
    """Write the script of a trial and return its path.

    Raises:
        UserError: when there is no such trial, or it has no figures.
    """
    from tuner.export.from_study import script_of
    from tuner.export.serve_script import write

    assert study is not None
    script = script_of(study, number, store.trials(study.name))
    try:
        write(script, output)
    except OSError as error:
        raise UserError(f"-o {str(output)!r} cannot be written: {error.strerror}; choose another file") from None
    return output
