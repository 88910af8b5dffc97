"""`tuner capacity`: the highest request rate that meets every SLO, for one configuration."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tuner.cli.options import AsJson

Text = str | None


def capacity(
    context: typer.Context,
    workload: Annotated[Text, typer.Option(help="Traffic: a YAML file.  [default: the preset's]")] = None,
    preset: Annotated[str, typer.Option(help="Preset that gives traffic, model and SLOs.")] = "chat",
    rate: Annotated[float | None, typer.Option(help="First rate to try, in requests per second.")] = None,
    slo: Annotated[list[str] | None, typer.Option(help="SLO such as 'p99_ttft_ms<500'; repeatable.")] = None,
    model: Annotated[Text, typer.Option(help="Model folder or hub name.")] = None,
    tokenizer: Annotated[Text, typer.Option(help="Tokenizer of the prompts.  [default: the model's]")] = None,
    temperature: Annotated[float | None, typer.Option(help="Sampling temperature, set on the server.")] = None,
    vllm: Annotated[Text, typer.Option(help="The vllm executable.  [env: TUNER_VLLM]")] = None,
    env: Annotated[list[str] | None, typer.Option(help="NAME=VALUE for the server; repeatable.")] = None,
    repeats: Annotated[int, typer.Option(min=1, help="Searches on the same server; the median counts.")] = 1,
    startup_timeout: Annotated[str, typer.Option(help="Deadline of the server's start.")] = "15m",
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder of numbered results.")] = Path(
        "tuner_capacity"
    ),
    as_json: AsJson = False,
) -> None:
    """Find the highest request rate that meets every SLO.

    Starts one server and bisects the rate. This measures: it needs a vLLM and does not simulate.
    The flags of `vllm serve` follow `--`: `tuner capacity --workload chat.yaml -- --max-num-seqs 64`.
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
        server=settings.ServerSettings(server_arguments(context), pairs("env", env)),
        limits=Limits(startup_s=settings.read_duration("startup_timeout", startup_timeout)),
    )
    with stop_on_signals() as stop:
        result = search_capacity(study_settings, vllm, output, CapacityProgress(), stop)
    raise typer.Exit(report(result, as_json=as_json))
