"""`tuner quality`: whether a configuration keeps the model's answers."""

from __future__ import annotations

from typing import Annotated

import typer

from tuner.cli.help import option
from tuner.cli.options import GOALS, MODEL, AsJson, Env, QualityTask, Secret, Storage, Vllm

Text = str | None


def quality(
    context: typer.Context,
    model: Annotated[
        str,
        option(MODEL, "DIR|NAME", "The model to check: a folder or a hub name, possibly a quantized checkpoint."),
    ] = "Qwen/Qwen2.5-0.5B",
    reference: Annotated[
        Text,
        option(MODEL, "DIR|NAME", "The unquantized model.", shown="--model"),
    ] = None,
    vllm: Vllm = None,
    env: Env = None,
    secret: Secret = None,
    quality_task: QualityTask = None,
    slo: Annotated[
        str,
        option(GOALS, "SLO", "The accuracy to keep, as a share of the reference's."),
    ] = "quality>=0.99",
    startup_timeout: Annotated[str, option(MODEL, "DURATION", "Time limit of a server's start-up.")] = "15m",
    storage: Storage = None,
    as_json: AsJson = False,
) -> None:
    """Check whether a configuration keeps the model's answers.

    Starts the reference and the candidate one after another, each once: the database keeps what they answered. The
    candidate is --model with the flags of `vllm serve` after `--`. The reference has no flag that changes answers:

    tuner quality --model DIR --quality-task questions.jsonl -- --quantization fp8
    """
    from tuner.cli.output.pages.quality import report
    from tuner.cli.signals import stop_on_signals
    from tuner.cli.values import pairs, server_arguments
    from tuner.study.specification.settings import ServerSettings, read_duration
    from tuner.use_cases import quality as use_case

    settings = use_case.QualitySettings(
        model=model,
        reference=reference,
        task=quality_task,
        slo=slo,
        vllm=vllm,
        server=ServerSettings(server_arguments(context), pairs("env", env), tuple(secret or ())),
        storage=storage,
        startup_s=read_duration("startup_timeout", startup_timeout),
    )
    with stop_on_signals() as stop:
        result = use_case.check_quality(settings, stop)
    report(result, as_json=as_json)
