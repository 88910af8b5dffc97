"""`tuner quality`: whether a configuration keeps the model's answers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from tuner.cli.help import option
from tuner.cli.options import AsJson, Env, QualityTask, Secret, Storage, Vllm, of
from tuner.settings.declared import GOALS, MODEL, STUDY

if TYPE_CHECKING:
    from tuner.study.specification.settings import ServerSettings

Text = str | None
Number = int | None


def quality(
    context: typer.Context,
    study: Annotated[Text, of("study", help="Check a trial of this study.", shown="none")] = None,
    trial: Annotated[Number, option(STUDY, "INTEGER", "Number of the study's trial.", shown="the winner")] = None,
    model: Annotated[
        Text,
        option(
            MODEL,
            "DIR|NAME",
            "The model to check: a folder or a hub name, possibly a quantized checkpoint.",
            shown="Qwen/Qwen2.5-0.5B",
        ),
    ] = None,
    reference: Annotated[
        Text,
        option(MODEL, "DIR|NAME", "The unquantized model.", shown="--model, or the study's"),
    ] = None,
    vllm: Vllm = None,
    env: Env = None,
    secret: Secret = None,
    quality_task: QualityTask = None,
    slo: Annotated[
        str,
        option(GOALS, "SLO", "The accuracy to keep, as a share of the reference's."),
    ] = "quality>=0.99",
    startup_timeout: Annotated[str, of("startup_timeout", panel=MODEL)] = "15m",
    storage: Storage = None,
    as_json: AsJson = False,
) -> None:
    """Check whether a configuration keeps the model's answers.

    Starts the reference and the candidate one after another, each once: the database keeps what they answered. The
    candidate is --model with the flags of `vllm serve` after `--`. The reference has no flag that changes answers:

    tuner quality --model DIR --quality-task questions.jsonl -- --quantization fp8

    With --study, the candidate is a trial of a study, and its script shows the result:

    tuner quality --study NAME --quality-task questions.jsonl
    """
    from tuner.cli.output.pages.quality import report
    from tuner.cli.signals import stop_on_signals
    from tuner.cli.values import pairs, server_arguments
    from tuner.settings.declared import read_duration
    from tuner.study.specification.settings import ServerSettings
    from tuner.use_cases.answers import quality as use_case

    server = ServerSettings(server_arguments(context), pairs("env", env), tuple(secret or ()))
    _check_candidate(study, trial, model, server)
    settings = use_case.QualitySettings(
        model=model,
        reference=reference,
        task=quality_task,
        slo=slo,
        vllm=vllm,
        server=server,
        storage=storage,
        startup_s=read_duration("startup_timeout", startup_timeout),
        study=study,
        trial=trial,
    )
    with stop_on_signals() as stop:
        result = use_case.check_quality(settings, stop)
    report(result, as_json=as_json)


def _check_candidate(study: Text, trial: Number, model: Text, server: ServerSettings) -> None:
    """Check that either a study or a model is given.

    Raises:
        SettingError: for both, and for a trial without a study.
    """
    from tuner.errors import SettingError

    if study is None and trial is not None:
        raise SettingError("trial", trial, "it needs a study", "give {study} NAME")
    if study is not None and (model is not None or server.arguments or server.environment or server.secrets):
        rule = "model, flags, environment and secrets are those of the study"
        raise SettingError("study", study, rule, "leave out {model}, {env}, {secret} and the flags after --")
