"""`tuner load`: send traffic to a server that runs already, and say how users fared."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tuner.cli.options import AsJson, Storage

Text = str | None


def load(
    url: Annotated[str, typer.Option(help="The server.")] = "http://127.0.0.1:8000",
    workload: Annotated[Text, typer.Option(help="Traffic: a YAML file.")] = None,
    preset: Annotated[Text, typer.Option(help="Preset whose traffic and SLOs count.")] = None,
    study: Annotated[Text, typer.Option(help="Study whose traffic and SLOs count.")] = None,
    rate: Annotated[float | None, typer.Option(help="Mean requests a second.")] = None,
    slo: Annotated[list[str] | None, typer.Option(help="SLO such as 'p99_ttft_ms<500'; repeatable.")] = None,
    model: Annotated[Text, typer.Option(help="Name in requests.  [default: what the server serves]")] = None,
    tokenizer: Annotated[Text, typer.Option(help="Tokenizer of the prompts.  [default: the model's]")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of schedule and prompts.")] = 900_000,
    timeout: Annotated[str, typer.Option(help="The load is cut off after this.")] = "30m",
    vllm: Annotated[Text, typer.Option(help="The vllm executable, for its tokenizer.  [env: TUNER_VLLM]")] = None,
    storage: Storage = None,
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder for a record a request.")] = Path("tuner_load"),
    as_json: AsJson = False,
) -> None:
    """Send traffic to a running server once; print figures by class and whether each SLO holds.

    Exits with 1 if an SLO is broken, or if the load generator was itself too late for its figures to count.
    """
    from tuner.cli.output.load import report
    from tuner.study.settings import read_duration
    from tuner.use_cases.load import LoadSettings, send_load

    settings = LoadSettings(
        url=url.rstrip("/").removesuffix("/v1"),
        workload=workload,
        preset=preset,
        study=study,
        rate=rate,
        slos=tuple(slo or ()),
        model=model,
        tokenizer=tokenizer,
        seed=seed,
        limit_s=read_duration("timeout", timeout),
        vllm=vllm,
        storage=storage,
        output=output,
    )
    raise typer.Exit(report(send_load(settings), as_json=as_json))
