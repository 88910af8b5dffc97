"""`tuner export`: a trial as a bash script or another file that starts its server."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from tuner.cli.from_server import reads_server
from tuner.cli.help import option
from tuner.cli.options import Storage, StudyName


@reads_server(lambda values: [values["study"]])
def export(
    study: StudyName = None,
    trial: Annotated[int | None, option(None, "INTEGER", "Number of the trial.", shown="the winner")] = None,
    form: Annotated[
        str,
        option(
            None,
            "FORMAT",
            "What to write: script, command (one line), vllm-config (for vllm serve --config), compose, kubernetes, "
            "kserve, ray-serve or systemd.",
            "--format",
        ),
    ] = "script",
    output: Annotated[
        Path | None,
        option(None, "FILE", "File to write.", "--output", "-o", shown="best_serve.sh, or the format's name"),
    ] = None,
    storage: Storage = None,
) -> None:
    """Write a trial as a file that starts its server.

    The bash script can also measure its server: its own --verify runs the benchmark and compares the figures with the
    study's. Every file begins with where its numbers come from, and refers to secrets instead of containing them.

    tuner export --format kubernetes -o server.yaml
    """
    from tuner.export.formats.registry import FORMATS
    from tuner.use_cases.files.export import export as write_export

    first, *others = write_export(study, trial, output, storage, form)
    what = FORMATS[form].what if form in FORMATS else "a bash script"
    print(f"wrote {first}, {what}" + "".join(f", and {each}" for each in others))
