"""The pages of `tuner study export` and `tuner study report`: the files that they wrote."""

from __future__ import annotations

import os
from pathlib import Path

from tuner.cli.from_server import open_client
from tuner.export.formats.registry import formats
from tuner.owner import free_path
from tuner.use_cases.bundle import check_bundle, write_bundle
from tuner.use_cases.files import export, latest
from tuner.use_cases.report.page import report


def print_export(study: str | None, trial: int | None, output: Path | None, storage: str | None, form: str) -> None:
    first, *others = export(study, trial, output, storage, form)
    what = formats()[form].what if form in formats() else "a bash script"
    print(f"wrote {first}, {what}" + "".join(f", and {each}" for each in others))


def print_report(studies: list[str], output: Path | None, storage: str | None) -> None:
    print(f"wrote {report(studies, output, storage)}; open it in a browser")


def print_bundle(studies: list[str], output: Path | None, storage: str | None, leave_out: list[str]) -> None:
    """Write a bundle, and list what is in it; see `write_bundle`."""
    written = write_bundle(studies, output, os.environ, storage, leave_out)
    print(*(f"  {line}" for line in written.manifest), sep="\n")
    print(f"wrote {written.path}; look through it, then attach it, or strike parts with --leave-out NAME")


def print_check(bundle: Path) -> None:
    print(*check_bundle(bundle), f"{bundle} is complete", sep="\n")


def print_server_report(names: list[str], output: Path | None, server: str, *, insecure: bool) -> None:
    """Write the report that a server draws: it has the files of the trials."""
    with open_client(server, insecure=insecure) as client:
        found = [*dict.fromkeys(names or [latest(client)])]
        path = free_path(Path("report.html"), ", ".join(found)) if output is None else output
        print(f"wrote {client.report(found[0], path, *found[1:])}; open it in a browser")
