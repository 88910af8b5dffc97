"""The commands of servers that run already: `load`, `verify`, `compare` and `drift`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tuner.cli.help import flag, option
from tuner.cli.options import AsJson, Margin, Rate, Slos, Storage, StudyName, Vllm, of
from tuner.cli.output import pages
from tuner.settings.declared import MODEL, OUTPUT, RUN, SERVER, WORKLOAD, read_duration

_HERE = "http://127.0.0.1:8000"
Text = str | None


def _base(url: str) -> str:
    """Return the address of a server, which people also give with the path of its API."""
    return url.rstrip("/").removesuffix("/v1")


def load(
    url: Annotated[str, option(SERVER, "URL", "URL of the server.")] = _HERE,
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

    tuner server load --url http://127.0.0.1:8000 --preset chat
    """
    settings = pages.benchmarks.LoadSettings(
        url=_base(url),
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
    raise typer.Exit(pages.benchmarks.run_load(settings, as_json=as_json))


def verify(
    url: Annotated[str, option(None, "URL", "URL of the server.")] = _HERE,
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

    tuner server verify --url http://10.0.0.7:8000 --study mine
    """
    settings = pages.benchmarks.VerifySettings(_base(url), study, trial, model, vllm, storage)
    raise typer.Exit(pages.benchmarks.run_verification(settings))


def compare(
    url: Annotated[
        list[str],
        option(None, "URL", "A server, the reference first; given twice."),
    ],
    workload: Annotated[list[str], of("workload", panel=None, help="Traffic for the servers.", shown=None)],
    model: Annotated[
        Text, option(None, "NAME", "Name of the model in requests.", shown="the first that a server lists")
    ] = None,
    tokenizer: Annotated[
        Text, option(None, "DIR|NAME", "Tokenizer of the load generator.", shown="that of the model")
    ] = None,
    requests: Annotated[
        int | None, option(None, "INTEGER", "Requests of each run.", shown="the workload's, at most 50", least=2)
    ] = None,
    blocks: Annotated[int, option(None, "INTEGER", "Most blocks of four runs: A, B, B, A.", least=2)] = 10,
    margin: Margin = 3.0,
    as_json: AsJson = False,
) -> None:
    """Compare two running servers under the same requests.

    They get the requests in alternation until the interval of B's speed tells: exit code 0 if B is as fast as A or
    faster, 6 if it is slower or fails requests, 5 if the blocks cannot tell. The API keys are those in TUNER_API_KEY_A
    and TUNER_API_KEY_B, or TUNER_API_KEY.

    tuner server compare --url URL --url URL --workload chat.yaml
    """
    settings = pages.compare.CanarySettings(
        urls=tuple(_base(each) for each in url),
        workloads=tuple(workload),
        model=model,
        tokenizer=tokenizer,
        requests=requests,
        margin=margin / 100,
        blocks=blocks,
    )
    raise typer.Exit(pages.compare.run_canary(settings, as_json=as_json))


def drift(
    url: Annotated[list[str] | None, option(None, "URL", "URL of a server of vLLM.", shown=_HERE)] = None,
    study: StudyName = None,
    window: Annotated[str, option(None, "DURATION", "Length of a window.")] = "5m",
    limit: Annotated[
        str | None, option(None, "DURATION", "How long to watch.", "--for", shown="until something has drifted")
    ] = None,
    storage: Storage = None,
) -> None:
    """Watch running servers until their traffic is no longer that of the study.

    Reads /metrics, and prints a line for each window. Rate, lengths, cached prompts and latencies are compared with
    what the study measured. Exits with 6 once a property has deviated in three windows in a row. Nothing is sent to the
    servers, and nothing is changed. TUNER_API_KEY or VLLM_API_KEY is sent as their API key.

    tuner server drift --url http://10.0.0.7:8000 --url http://10.0.0.8:8000 --study mine

    For a study of a service, `tuner service drift` lets the service watch.
    """
    urls = tuple(_base(each) for each in url or [_HERE])
    limit_s = None if limit is None else read_duration("for", limit)
    settings = pages.benchmarks.DriftSettings(urls, study, storage, read_duration("window", window), limit_s)
    raise typer.Exit(pages.benchmarks.run_drift(settings))
