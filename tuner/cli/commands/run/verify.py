"""`tuner verify`: compare a server that runs anywhere with what its study measured."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from tuner.cli.help import option
from tuner.cli.options import Storage, StudyName, Vllm


def verify(
    url: Annotated[str, option(None, "URL", "URL of the server.")] = "http://127.0.0.1:8000",
    study: StudyName = None,
    trial: Annotated[int | None, option(None, "INTEGER", "Number of the trial.", shown="the winner")] = None,
    model: Annotated[str | None, option(None, "NAME", "Name of the model in requests.", shown="the study's")] = None,
    vllm: Vllm = None,
    storage: Storage = None,
) -> None:
    """Compare a running server with what the study measured.

    Sends the study's workload with seeds that no trial used, and prints one line for each metric and SLO, as
    best_serve.sh --verify does. Exits with 1 if a metric is worse than its recorded interval or an SLO is missed, with
    2 if it could not run, and with 5 if the study's own measurements vary too much to tell. TUNER_API_KEY or
    VLLM_API_KEY is sent as the server's API key.

    tuner verify --url http://10.0.0.7:8000 --study mine
    """
    from storage.records import Provenance
    from tuner.cli.signals import terminated_like_interrupted
    from tuner.use_cases import verify as use_case

    settings = use_case.VerifySettings(url.rstrip("/").removesuffix("/v1"), study, trial, model, vllm, storage)
    with terminated_like_interrupted():
        found = use_case.verify(settings)
    if found.provenance is Provenance.SIMULATED:
        print(f"the numbers of study {found.study} are simulated: the server is compared with predictions")
    for line in (*found.comparison.lines, *found.unverified):
        print(line)
    for line in found.disturbed:
        print(line, file=sys.stderr)
    raise typer.Exit(found.comparison.exit_code)
