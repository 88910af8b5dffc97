"""`tuner simulate`: the predicted metrics of one configuration."""

from __future__ import annotations

from typing import Annotated

import typer

from tuner.cli.help import flag, option
from tuner.cli.options import (
    MODEL,
    OUTPUT,
    RUN,
    WORKLOAD,
    AsJson,
    Env,
    Gpu,
    GpusPerTrial,
    InputLen,
    OutputLen,
    Price,
    Prompts,
    Rate,
    Temperature,
    TrafficFile,
    Users,
    VllmVersion,
)

Text = str | None


def simulate(
    context: typer.Context,
    preset: Annotated[
        str,
        option(MODEL, "NAME", "Preset with model, card and workload."),
    ] = "qwen2.5-0.5b-t4",
    gpu: Gpu = None,
    gpus_per_trial: GpusPerTrial = None,
    instances: Annotated[
        int,
        option(RUN, "INTEGER", "Equal servers behind a router; with fewer GPUs than servers they share them.", least=1),
    ] = 1,
    price: Price = None,
    model: Annotated[
        Text,
        option(MODEL, "NAME|DIR", "Model: a known name, or a folder with its config.json.", shown="the preset's"),
    ] = None,
    vllm_version: VllmVersion = None,
    env: Env = None,
    workload: TrafficFile = None,
    rate: Rate = None,
    users: Users = None,
    prompts: Prompts = None,
    input_len: InputLen = None,
    output_len: OutputLen = None,
    temperature: Temperature = None,
    seed: Annotated[int, option(WORKLOAD, "INTEGER", "Seed of the workload.", least=0)] = 1000,
    noise: Annotated[bool, flag(OUTPUT, "Add the noise of a measured benchmark.", "--noise")] = False,
    as_json: AsJson = False,
) -> None:
    """Predict the metrics of one configuration.

    Nothing is started, and no GPU is needed. The configuration is the flags of `vllm serve` after `--`:

    tuner simulate --gpu h200 -- --max-num-seqs 64 --quantization fp8

    tuner simulate --gpu h200 --model Qwen/Qwen2.5-72B-Instruct -- --tensor-parallel-size 4
    """
    from tuner.cli.output.pages.simulate import report
    from tuner.cli.values import pairs, server_arguments
    from tuner.study.specification.settings import ServerSettings, WorkloadSettings
    from tuner.use_cases import simulate as use_case

    settings = use_case.SimulationSettings(
        preset=preset,
        gpu=gpu,
        vllm_version=vllm_version,
        model=model,
        workload=WorkloadSettings(
            files=() if workload is None else (workload,),
            rate=rate,
            max_concurrency=users,
            num_prompts=prompts,
            input_len=input_len,
            output_len=output_len,
            temperature=temperature,
        ),
        server=ServerSettings(server_arguments(context), pairs("env", env)),
        seed=seed,
        noise=noise,
        price=price,
        gpus_per_trial=gpus_per_trial,
        instances=instances,
    )
    report(use_case.simulate(settings), as_json=as_json)
