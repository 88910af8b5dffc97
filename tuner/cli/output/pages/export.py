"""The page of `tuner study export`: the files that it wrote."""

from __future__ import annotations

from pathlib import Path

from tuner.export.formats.registry import formats
from tuner.use_cases.files import export


def print_export(study: str | None, trial: int | None, output: Path | None, storage: str | None, form: str) -> None:
    """Write a trial in a deployment format; see `export`."""
    first, *others = export(study, trial, output, storage, form)
    what = formats()[form].what if form in formats() else "a bash script"
    print(f"wrote {first}, {what}" + "".join(f", and {each}" for each in others))
