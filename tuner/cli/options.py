"""Options that several commands share, and the option of each setting."""

from __future__ import annotations

from typing import Annotated

import typer

Storage = Annotated[
    str | None,
    typer.Option("--storage", help="Database: a file or an SQLAlchemy URL.  [default: tuner_study/tuner.db]"),
]
StudyName = Annotated[str | None, typer.Option("--study", help="Name of the study.  [default: the latest]")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]

_OPTIONS = {
    "max_concurrency": "--users",
    "num_prompts": "--prompts",
    "output": "-o",
    "server_arguments": "server argument",
}


def option_of(field: str) -> str:
    """Return the option of a setting, as error messages name it; server arguments have none and follow `--`."""
    return _OPTIONS.get(field, "--" + field.replace("_", "-"))
