"""`tuner optimize`: the main job."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tuner.cli.options import AsJson, Storage

if TYPE_CHECKING:
    from tuner.study.specification.settings import RunSettings, StudySettings

_LOAD = "The load"
_SEARCH = "The search"
_RUN = "The run"

Text = str | None


def optimize(
    context: typer.Context,
    trials: Annotated[int, typer.Option(help="Trials of the study, the defaults and earlier runs included.")] = 60,
    preset: Annotated[str, typer.Option(help="Model, load, SLOs and space under one name.")] = "qwen2.5-0.5b-t4",
    study: Annotated[Text, typer.Option(help="Name of the study; the same name goes on.  [default: preset]")] = None,
    model: Annotated[Text, typer.Option(help="Model folder or hub name.")] = None,
    tokenizer: Annotated[Text, typer.Option(help="Tokenizer of the load generator.  [default: the model's]")] = None,
    engine: Annotated[str, typer.Option(help="vllm, simulated, or auto: simulated without a GPU.")] = "auto",
    vllm: Annotated[Text, typer.Option(help="The vllm executable.  [env: TUNER_VLLM]")] = None,
    gpu: Annotated[Text, typer.Option(help="The card to simulate, or a YAML file.  [default: preset]")] = None,
    vllm_version: Annotated[Text, typer.Option(help="The vLLM to simulate.  [default: by card]")] = None,
    objective: Annotated[list[str] | None, typer.Option(help="METRIC or METRIC:WEIGHT; repeatable.")] = None,
    slo: Annotated[list[str] | None, typer.Option(help="SLO such as 'p99_tpot_ms<50'; repeatable.")] = None,
    space: Annotated[Text, typer.Option(help="Search space: a shipped one or a YAML file.")] = None,
    only: Annotated[list[str] | None, typer.Option(help="Tune only this parameter; repeatable.")] = None,
    keep_answers: Annotated[bool, typer.Option("--keep-answers", help="Leave out what changes the answers.")] = False,
    enqueue: Annotated[list[str] | None, typer.Option(help="Named or JSON configuration to measure.")] = None,
    checkpoint: Annotated[list[str] | None, typer.Option(help="METHOD=MODEL: a quantized checkpoint.")] = None,
    draft_model: Annotated[Text, typer.Option(help="Draft model for speculative decoding.")] = None,
    workload: Annotated[
        list[str] | None, typer.Option(help="Traffic: a YAML file; several are sent one after another.")
    ] = None,
    rate: Annotated[float | None, typer.Option(help="Mean requests a second of the traffic.")] = None,
    users: Annotated[int | None, typer.Option(help="Concurrent users.")] = None,
    prompts: Annotated[int | None, typer.Option(help="Prompts of one benchmark.")] = None,
    input_len: Annotated[int | None, typer.Option(help="Tokens of a prompt.")] = None,
    output_len: Annotated[int | None, typer.Option(help="Tokens of an answer.")] = None,
    temperature: Annotated[float | None, typer.Option(help="Sampling temperature, set on the server.")] = None,
    env: Annotated[list[str] | None, typer.Option(help="NAME=VALUE for every server; repeatable.")] = None,
    repeats: Annotated[int, typer.Option(min=1, help="Benchmarks of a trial, each of another seed.")] = 1,
    baseline_repeats: Annotated[
        int, typer.Option(min=0, help="Benchmarks of the defaults and in each round; 0: no defaults.")
    ] = 3,
    finalists: Annotated[int, typer.Option(min=1, help="Trials measured again at the end.")] = 3,
    confirm_rounds: Annotated[int, typer.Option(min=0, help="Rounds of the finalists; 0: none.")] = 3,
    search_load: Annotated[
        float,
        typer.Option(min=0, max=1, help="Share of the requests that a new study's search sends; the rounds send all."),
    ] = 0.5,
    workers: Annotated[int | None, typer.Option(help="Workers, one a GPU.  [default: every GPU]")] = None,
    warm_start: Annotated[
        bool, typer.Option(help="Fork servers from a process that has vLLM imported: it saves a start its imports.")
    ] = True,
    ray_address: Annotated[Text, typer.Option(help="Ray cluster to run on.  [default: in process]")] = None,
    storage: Storage = None,
    timeout: Annotated[Text, typer.Option(help="Wall clock of this run, such as 45m or 2h.")] = None,
    startup_timeout: Annotated[str, typer.Option(help="Deadline of a server's start.")] = "15m",
    seed: Annotated[int, typer.Option(min=0, help="Seed of the search.")] = 0,
    sampler: Annotated[
        str, typer.Option(metavar="NAME", help="residual, Optuna's tpe, or auto: residual if trials are measured.")
    ] = "auto",
    learn_from: Annotated[
        list[str] | None, typer.Option(help="Earlier study to learn from: another card, model or load; repeatable.")
    ] = None,
    min_gain: Annotated[
        float,
        typer.Option(min=0, help="The search ends when a trial is expected to gain less, % of the score; 0: never."),
    ] = 0.5,
    ablate: Annotated[
        bool, typer.Option("--ablate", help="Measure the best without each of its flags: one more trial a flag.")
    ] = False,
    output: Annotated[Path, typer.Option("--output", "-o", help="Script to write.")] = Path("best_serve.sh"),
    plain: Annotated[bool, typer.Option("--plain", help="Plain lines instead of a live view.")] = False,
    as_json: AsJson = False,
) -> None:
    """Find the best configuration and write it as a script.

    Searches, measures the finalists and the defaults again in rounds, and writes best_serve.sh.

    What follows `--` goes to every server: `tuner optimize --model DIR -- --load-format dummy`.
    """
    from tuner.cli.values import pairs, server_arguments
    from tuner.specs import Limits
    from tuner.study.specification import settings

    study_settings = settings.StudySettings(
        preset=preset,
        name=study,
        model=settings.ModelSettings(model, tokenizer, pairs("checkpoint", checkpoint), draft_model),
        workload=settings.WorkloadSettings(
            files=tuple(workload or ()),
            rate=rate,
            max_concurrency=users,
            num_prompts=prompts,
            input_len=input_len,
            output_len=output_len,
            temperature=temperature,
        ),
        search_load=search_load,
        goals=settings.GoalSettings(tuple(objective or ()), tuple(slo or ())),
        space=settings.SpaceSettings(space, tuple(only or ()), keep_answers, tuple(enqueue or ())),
        search=settings.SearchSettings(seed, sampler, tuple(learn_from or ()), repeats),
        confirmation=settings.ConfirmationSettings(finalists, confirm_rounds, baseline_repeats),
        server=settings.ServerSettings(server_arguments(context), pairs("env", env)),
        limits=Limits(startup_s=settings.read_duration("startup_timeout", startup_timeout)),
    )
    timeout_s = None if timeout is None else settings.read_duration("timeout", timeout)
    run = settings.RunSettings(
        budget=settings.Budget(trials, timeout_s, min_gain=min_gain / 100, ablate=ablate),
        engine=settings.EngineChoice(engine, vllm, gpu, vllm_version, workers, warm_start, ray_address),
        storage=storage,
        output=output,
    )
    raise typer.Exit(_run(study_settings, run, plain=plain, as_json=as_json))


def _run(study_settings: StudySettings, run: RunSettings, *, plain: bool, as_json: bool) -> int:
    """Run the study behind a view, print its result and return the exit code."""
    from tuner.cli.output.pages.optimize import report
    from tuner.cli.output.progress.views import new_view
    from tuner.cli.signals import stop_on_signals
    from tuner.use_cases.optimize import optimize

    view = new_view(plain)
    with stop_on_signals() as stop, closing(view):
        result = optimize(study_settings, run, view, stop)
    return report(result, as_json=as_json)
