"""`tuner load`: one benchmark of a server that already runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tuner.cli.help import flag, option
from tuner.cli.options import SERVER, AsJson, Rate, Slos, Storage, of
from tuner.settings.declared import MODEL, OUTPUT, RUN, WORKLOAD

Text = str | None


def load(
    url: Annotated[str, option(SERVER, "URL", "URL of the server.")] = "http://127.0.0.1:8000",
    model: Annotated[
        Text,
        option(SERVER, "NAME", "Name of the model in requests.", shown="the first that the server lists"),
    ] = None,
    preset: Annotated[Text, of("preset", panel=WORKLOAD, help="Send the traffic of this preset.")] = None,
    workload: Annotated[
        list[str] | None,
        of("workload", help="Send the traffic of this YAML file; several are sent in turn.", shown=None),
    ] = None,
    study: Annotated[Text, of("study", panel=WORKLOAD, help="Send the traffic of this study.", shown=None)] = None,
    rate: Rate = None,
    seed: Annotated[int, of("seed", panel=WORKLOAD, help="Seed of arrivals and prompts.")] = 900_000,
    slo: Slos = None,
    tokenizer: Annotated[
        list[str] | None,
        option(
            MODEL,
            "DIR|NAME",
            "Tokenizer of the load generator: a folder or a hub name; with several, prompts use their common tokens.",
            shown="the model's",
        ),
    ] = None,
    vllm: Annotated[
        Text,
        of(
            "vllm",
            help="The vllm executable, whose Python reads the tokenizer; without one, the package tokenizers does.",
        ),
    ] = None,
    new_connections: Annotated[
        bool,
        flag(RUN, "Send each request over a connection of its own, as studies of a command do.", "--new-connections"),
    ] = False,
    timeout: Annotated[str, of("timeout", panel=RUN, help="Time limit of the benchmark.", shown=None)] = "30m",
    storage: Storage = None,
    output: Annotated[
        Path,
        option(OUTPUT, "DIR", "Folder of the recorded requests.", "--output", "-o"),
    ] = Path("tuner_load"),
    as_json: AsJson = False,
) -> None:
    """Benchmark a running server and check its SLOs.

    Sends the traffic of a preset, a file or a study, and prints metrics by request class. Exits with 1 if an SLO is
    missed, or if the load generator sent requests so late that the metrics are not valid. TUNER_API_KEY or VLLM_API_KEY
    is sent as the server's API key.

    tuner load --url http://127.0.0.1:8000 --preset chat
    """
    from tuner.cli.output.pages.load import report
    from tuner.cli.signals import terminated_like_interrupted
    from tuner.settings.declared import read_duration
    from tuner.use_cases.load import LoadSettings, send_load

    settings = LoadSettings(
        url=url.rstrip("/").removesuffix("/v1"),
        workloads=tuple(workload or ()),
        preset=preset,
        study=study,
        rate=rate,
        slos=tuple(slo or ()),
        model=model,
        tokenizers=tuple(tokenizer or ()),
        seed=seed,
        limit_s=read_duration("timeout", timeout),
        vllm=vllm,
        storage=storage,
        output=output,
        new_connections=new_connections,
    )
    with terminated_like_interrupted():
        result = send_load(settings)
    raise typer.Exit(report(result, as_json=as_json))
