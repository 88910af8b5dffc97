"""`tuner simulate`: the predicted metrics of one configuration."""

from __future__ import annotations

from typing import Annotated

import typer

from tuner.cli.options import AsJson

Text = str | None


def simulate(
    context: typer.Context,
    gpu: Annotated[Text, typer.Option(help="Card, or a YAML file that describes one.  [default: preset]")] = None,
    model: Annotated[Text, typer.Option(help="Known model, or a folder with its config.json.")] = None,
    preset: Annotated[str, typer.Option(help="Preset that gives workload, model and card.")] = "qwen2.5-0.5b-t4",
    workload: Annotated[Text, typer.Option(help="Traffic: a YAML file.  [default: the preset's workload]")] = None,
    rate: Annotated[float | None, typer.Option(help="Mean requests a second of the traffic.")] = None,
    users: Annotated[int | None, typer.Option(help="Concurrent users.")] = None,
    prompts: Annotated[int | None, typer.Option(help="Prompts of the benchmark.")] = None,
    input_len: Annotated[int | None, typer.Option(help="Tokens of a prompt.")] = None,
    output_len: Annotated[int | None, typer.Option(help="Tokens of an answer.")] = None,
    temperature: Annotated[float | None, typer.Option(help="Sampling temperature, set on the server.")] = None,
    env: Annotated[list[str] | None, typer.Option(help="NAME=VALUE for the server; repeatable.")] = None,
    vllm_version: Annotated[Text, typer.Option(help="The vLLM to simulate.  [default: by card]")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the workload.")] = 1000,
    noise: Annotated[bool, typer.Option("--noise", help="Add the noise of a measured run.")] = False,
    as_json: AsJson = False,
) -> None:
    """Predict the metrics of one configuration.

    The flags of `vllm serve` follow `--`. Nothing is started and no GPU is needed:

    `tuner simulate --gpu h200 --model Qwen/Qwen2.5-7B -- --max-num-seqs 64 --quantization fp8`
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
    )
    report(use_case.simulate(settings), as_json=as_json)
