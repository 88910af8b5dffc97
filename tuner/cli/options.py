"""Options that several commands share."""

from __future__ import annotations

from typing import Annotated

import typer

Storage = Annotated[
    str | None,
    typer.Option("--storage", help="Database: a file or an SQLAlchemy URL.  [default: tuner_study/tuner.db]"),
]
StudyName = Annotated[str | None, typer.Option("--study", help="Name of the study.  [default: the latest]")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]
