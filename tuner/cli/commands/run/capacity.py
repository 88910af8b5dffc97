"""`tuner capacity`: the highest request rate that meets every SLO, for one configuration."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tuner.cli.help import option
from tuner.cli.options import (
    OUTPUT,
    RUN,
    WORKLOAD,
    AsJson,
    Engine,
    Env,
    Gpu,
    LlamaServer,
    Model,
    Secret,
    ServerCommand,
    Sglang,
    Slos,
    Temperature,
    Tokenizer,
    TrafficFile,
    TrtllmServe,
    Vllm,
    VllmVersion,
)


def capacity(
    context: typer.Context,
    preset: Annotated[
        str,
        option(WORKLOAD, "NAME", "Preset with traffic, model and SLOs."),
    ] = "chat",
    workload: TrafficFile = None,
    rate: Annotated[
        float | None,
        option(WORKLOAD, "NUMBER", "First request rate that is tried, in requests per second.", shown="the workload's"),
    ] = None,
    temperature: Temperature = None,
    slo: Slos = None,
    model: Model = None,
    tokenizer: Tokenizer = None,
    engine: Engine = "auto",
    vllm: Vllm = None,
    llama_server: LlamaServer = None,
    sglang: Sglang = None,
    trtllm_serve: TrtllmServe = None,
    server_command: ServerCommand = None,
    gpu: Gpu = None,
    vllm_version: VllmVersion = None,
    env: Env = None,
    secret: Secret = None,
    repeats: Annotated[
        int,
        option(RUN, "INTEGER", "Searches on the same server; their median is the capacity.", least=1),
    ] = 1,
    startup_timeout: Annotated[str, option(RUN, "DURATION", "Time limit of the server's start-up.")] = "15m",
    output: Annotated[
        Path,
        option(OUTPUT, "DIR", "Folder of logs; each search has a subfolder.", "--output", "-o"),
    ] = Path("tuner_capacity"),
    as_json: AsJson = False,
) -> None:
    """Find the highest request rate that meets every SLO.

    Starts one server and bisects the request rate. Without a GPU, or with --gpu, vLLM is simulated and the
    capacity is marked as such.

    Flags after `--` are passed to the server:

    tuner capacity --workload chat.yaml -- --max-num-seqs 64
    """
    from tuner.cli.output.pages.capacity import CapacityProgress, report
    from tuner.cli.signals import stop_on_signals
    from tuner.cli.values import pairs, server_arguments
    from tuner.specs import Limits
    from tuner.study.specification import settings
    from tuner.use_cases.capacity import search_capacity

    files = () if workload is None else (workload,)
    study_settings = settings.StudySettings(
        preset=preset,
        name="capacity",
        model=settings.ModelSettings(model, tokenizer),
        workload=settings.WorkloadSettings(files, rate, temperature=temperature),
        goals=settings.GoalSettings(("capacity",), tuple(slo or ())),
        search=settings.SearchSettings(repeats=repeats),
        server=settings.ServerSettings(server_arguments(context), pairs("env", env), tuple(secret or ())),
        limits=Limits(startup_s=settings.read_duration("startup_timeout", startup_timeout)),
    )
    choice = settings.EngineChoice(
        *(engine, vllm, gpu, vllm_version),
        llama_server=llama_server,
        server_command=server_command,
        sglang=sglang,
        trtllm_serve=trtllm_serve,
    )
    with stop_on_signals() as stop:
        result = search_capacity(study_settings, choice, output, CapacityProgress(), stop)
    raise typer.Exit(report(result, as_json=as_json))
