"""`tuner load`: one benchmark of a server that already runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tuner.cli.options import AsJson, Storage

Text = str | None


def load(
    url: Annotated[str, typer.Option(help="URL of the server.")] = "http://127.0.0.1:8000",
    workload: Annotated[Text, typer.Option(help="Traffic: a YAML file.")] = None,
    preset: Annotated[Text, typer.Option(help="Preset that gives traffic and SLOs.")] = None,
    study: Annotated[Text, typer.Option(help="Study that gives traffic and SLOs.")] = None,
    rate: Annotated[float | None, typer.Option(help="Mean requests per second.")] = None,
    slo: Annotated[list[str] | None, typer.Option(help="SLO such as 'p99_ttft_ms<500'; repeatable.")] = None,
    model: Annotated[Text, typer.Option(help="Name in requests.  [default: what the server serves]")] = None,
    tokenizer: Annotated[Text, typer.Option(help="Tokenizer of the prompts.  [default: the model's]")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the schedule and the prompts.")] = 900_000,
    timeout: Annotated[str, typer.Option(help="Deadline of the benchmark.")] = "30m",
    vllm: Annotated[Text, typer.Option(help="The vllm executable, for its tokenizer.  [env: TUNER_VLLM]")] = None,
    storage: Storage = None,
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder of request records.")] = Path("tuner_load"),
    as_json: AsJson = False,
) -> None:
    """Benchmark a running server and check its SLOs.

    Prints metrics by request class. Exits with 1 if an SLO is missed, or if the load generator sent requests too
    late for its figures to count.
    """
    from tuner.cli.output.pages.load import report
    from tuner.study.specification.settings import read_duration
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
