"""`tuner optimize`: the main job."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tuner.cli.help import flag, option
from tuner.cli.options import (
    CONFIRMATION,
    GOALS,
    MODEL,
    OUTPUT,
    RUN,
    SEARCH,
    SPACE,
    STUDY,
    WORKLOAD,
    AsJson,
    BunchedTokens,
    Engines,
    Env,
    Gpu,
    GpusPerTrial,
    InputLen,
    KeepAnswers,
    LlamaServer,
    Models,
    NodesPerTrial,
    OutputLen,
    Price,
    Prompts,
    QualityTask,
    Rate,
    RayAddress,
    Secret,
    ServerCommand,
    Sglang,
    Slos,
    Spaces,
    Storage,
    Temperature,
    Tokenizer,
    TrtllmServe,
    Users,
    Vllm,
    VllmVersion,
)

if TYPE_CHECKING:
    from tuner.study.specification.settings import RunSettings, StudySettings

Text = str | None


def optimize(
    context: typer.Context,
    preset: Annotated[
        str,
        option(STUDY, "NAME", "Preset with model, workload, SLOs and search space; `tuner presets` lists them."),
    ] = "qwen2.5-0.5b-t4",
    study: Annotated[
        Text,
        option(
            STUDY,
            "NAME",
            "Name of the study; a study that exists is continued.",
            shown="from preset, model, card, workload",
        ),
    ] = None,
    trials: Annotated[
        int,
        option(STUDY, "INTEGER", "Trials of the study, including the defaults and the trials of earlier runs."),
    ] = 60,
    timeout: Annotated[
        Text,
        option(
            STUDY,
            "DURATION",
            "Time limit of this run, such as 45m or 2h, with the confirmation; at most half is reserved for that.",
            shown="no limit",
        ),
    ] = None,
    model: Models = None,
    tokenizer: Tokenizer = None,
    checkpoint: Annotated[
        list[str] | None,
        option(
            MODEL, "METHOD=MODEL", "Quantized checkpoint of the model, for a quantization method of the search space."
        ),
    ] = None,
    draft_model: Annotated[
        Text,
        option(MODEL, "DIR|NAME", "Draft model for speculative decoding."),
    ] = None,
    engine: Engines = None,
    vllm: Vllm = None,
    llama_server: LlamaServer = None,
    sglang: Sglang = None,
    trtllm_serve: TrtllmServe = None,
    server_command: ServerCommand = None,
    gpu: Gpu = None,
    price: Price = None,
    vllm_version: VllmVersion = None,
    env: Env = None,
    secret: Secret = None,
    workload: Annotated[
        list[str] | None,
        option(
            WORKLOAD,
            "FILE",
            "Traffic, a YAML file; several files are benchmarked one after another.",
            shown="the preset's",
        ),
    ] = None,
    rate: Rate = None,
    users: Users = None,
    prompts: Prompts = None,
    input_len: InputLen = None,
    output_len: OutputLen = None,
    temperature: Temperature = None,
    objective: Annotated[
        list[str] | None,
        option(GOALS, "METRIC[:WEIGHT]", "Metric to optimise, with its weight in the score.", shown="the workload's"),
    ] = None,
    slo: Slos = None,
    quality_task: QualityTask = None,
    space: Spaces = None,
    only: Annotated[
        list[str] | None,
        option(SPACE, "PARAMETER", "Search only this parameter."),
    ] = None,
    keep_answers: KeepAnswers = False,
    bunched_tokens: BunchedTokens = False,
    enqueue: Annotated[
        list[str] | None,
        option(SPACE, "NAME|JSON", "Configuration to measure before the search: a name from `tuner space`, or JSON."),
    ] = None,
    baseline: Annotated[
        Text,
        option(
            SPACE,
            "NAME|JSON|FLAGS",
            "What runs today; the winner is compared with it. A name from `tuner space`, JSON, or flags in quotes.",
            shown="the defaults",
        ),
    ] = None,
    sampler: Annotated[
        str,
        option(
            SEARCH,
            "NAME",
            "residual, tpe, or auto: residual for measured trials and with --learn-from, else Optuna's tpe.",
        ),
    ] = "auto",
    seed: Annotated[int, option(SEARCH, "INTEGER", "Seed of the search.", least=0)] = 0,
    learn_from: Annotated[
        list[str] | None,
        option(SEARCH, "STUDY", "Source study; it may have another card, model or workload."),
    ] = None,
    repeats: Annotated[
        int,
        option(SEARCH, "INTEGER", "Benchmarks per trial, each with its own seed.", least=1),
    ] = 1,
    search_load: Annotated[
        float,
        option(
            SEARCH,
            "SHARE",
            "Share of a closed loop's requests that a trial of the search sends; the rounds send all.",
            least=0,
            most=1,
        ),
    ] = 0.5,
    min_gain: Annotated[
        float,
        option(
            SEARCH,
            "PERCENT",
            "End the search when the expected improvement of the score stays below this; 0: never.",
            least=0,
        ),
    ] = 0.5,
    ablate: Annotated[
        bool,
        flag(
            SEARCH,
            "After the search, measure the best configuration without each flag: one more trial per flag.",
            "--ablate",
        ),
    ] = False,
    finalists: Annotated[
        int,
        option(CONFIRMATION, "INTEGER", "Best configurations of the search that are measured again.", least=1),
    ] = 3,
    confirm_rounds: Annotated[
        int,
        option(
            CONFIRMATION, "INTEGER", "Rounds that measure every finalist and the defaults; 0: no confirmation.", least=0
        ),
    ] = 3,
    baseline_repeats: Annotated[
        int,
        option(
            CONFIRMATION,
            "INTEGER",
            "Benchmarks of the defaults, and of each measurement in a round; 0: no defaults.",
            least=0,
        ),
    ] = 3,
    reduce: Annotated[
        bool,
        flag(
            CONFIRMATION,
            "Measure the winner with fewer flags, too, and export the smallest form that is as good.",
            "--reduce/--no-reduce",
        ),
    ] = True,
    workers: Annotated[
        int | None,
        option(RUN, "INTEGER", "Trials that run at the same time.", shown="as many as the GPUs allow"),
    ] = None,
    gpus_per_trial: GpusPerTrial = None,
    nodes_per_trial: NodesPerTrial = 1,
    warm_start: Annotated[
        bool,
        flag(RUN, "Fork each server from a process that has imported vLLM, for a faster start-up."),
    ] = True,
    startup_timeout: Annotated[
        str,
        option(RUN, "DURATION", "Time limit of a server's start-up."),
    ] = "15m",
    ray_address: RayAddress = None,
    storage: Storage = None,
    output: Annotated[
        Path,
        option(
            *(OUTPUT, "FILE", "Bash script to write; best_serve-STUDY.sh where best_serve.sh is another file."),
            *("--output", "-o"),
        ),
    ] = Path("best_serve.sh"),
    plain: Annotated[
        bool,
        flag(OUTPUT, "Print one line per trial instead of a live view.", "--plain"),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Find the best configuration and write it as a script.

    Searches, measures the finalists and the defaults again in rounds, and writes best_serve.sh. Exits with 3 if no
    configuration meets the SLOs (the script is then of the nearest one, and says so), and with 4 if --timeout ended the
    run before it had a result; the same command then continues it.

    Flags after `--` are passed to every server:

    tuner optimize --model DIR -- --load-format dummy
    """
    from tuner.cli.values import divided, pairs, server_arguments
    from tuner.specs import Limits
    from tuner.study.specification import settings

    (first, engines), (served, models), (source, spaces) = (divided(each, engine) for each in (engine, model, space))
    checkpoints = pairs("checkpoint", checkpoint, "METHOD=MODEL")
    study_settings = settings.StudySettings(
        preset=preset,
        name=study,
        model=settings.ModelSettings(served, tokenizer, checkpoints, draft_model, models),
        workload=settings.WorkloadSettings(
            *(tuple(workload or ()), rate, users, prompts, input_len, output_len), temperature=temperature
        ),
        search_load=search_load,
        goals=settings.GoalSettings(tuple(objective or ()), tuple(slo or ()), quality_task),
        space=settings.SpaceSettings(
            *(source, tuple(only or ()), keep_answers, tuple(enqueue or ()), bunched_tokens, baseline, spaces)
        ),
        search=settings.SearchSettings(seed, sampler, tuple(learn_from or ()), repeats),
        confirmation=settings.ConfirmationSettings(finalists, confirm_rounds, baseline_repeats, reduce),
        server=settings.ServerSettings(server_arguments(context), pairs("env", env), tuple(secret or ())),
        limits=Limits(startup_s=settings.read_duration("startup_timeout", startup_timeout)),
        price=price,
        gpus_per_trial=gpus_per_trial,
        nodes_per_trial=nodes_per_trial,
    )
    timeout_s = None if timeout is None else settings.read_duration("timeout", timeout)
    budget = settings.Budget(trials, timeout_s, min_gain=min_gain / 100, ablate=ablate)
    choice = settings.EngineChoice(
        *(first or "auto", vllm, gpu, vllm_version, workers, warm_start, ray_address),
        *(llama_server, server_command, sglang, trtllm_serve, engines),
    )
    raise typer.Exit(
        _run(study_settings, settings.RunSettings(budget, choice, storage, output), plain=plain, as_json=as_json)
    )


def _run(study_settings: StudySettings, run: RunSettings, *, plain: bool, as_json: bool) -> int:
    """Run the study behind a view, print its result and return the exit code."""
    from tuner.cancellation import Wishes
    from tuner.cli.output.pages.optimize import report
    from tuner.cli.output.progress.views import new_view
    from tuner.cli.signals import stop_on_signals
    from tuner.use_cases.optimize import optimize

    view = new_view(plain)
    with stop_on_signals() as stop, closing(view):
        result = optimize(study_settings, run, view, Wishes(stop))
    return report(result, as_json=as_json)
