"""The use cases that compare answers: `tuner quality`, and the check of a study with an SLO on quality."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from records.trials import Config, Failure, FailureKind, Phase, Provenance, StudyRecord, TrialRecord
from search_spaces import ParameterValue
from search_spaces.render import gpus_of
from storage import open_store
from storage.store import Store
from storage.waiting import DatabaseWait
from tuner.engines.base import EngineSettings
from tuner.engines.command_line import engine_of
from tuner.engines.factory import EngineFactory
from tuner.engines.kind import Feature
from tuner.engines.kinds import kind_of
from tuner.engines.server.devices import OWN_VARIABLES
from tuner.engines.user_command import absolute_arguments
from tuner.engines.vllm.engine import VllmEngine
from tuner.engines.vllm.toolbox import find_executable
from tuner.errors import SettingError, UserError, see_trials, trials_command
from tuner.executors.base import Check
from tuner.files import home
from tuner.processes.family import own_identity
from tuner.processes.secrets import NO_SECRETS, Secrets
from tuner.quality.compare import AnswersVerdict
from tuner.quality.examiner import (
    CHECKED,
    FORMAT_FLAGS,
    ExamFailed,
    Examiner,
    Quality,
    Variant,
    changed_answers,
    check_command,
    fact_of,
    formats_of,
    is_checked,
    split_flags,
    without_format_variables,
)
from tuner.quality.harness import PREFIX, HarnessTask, harness_task
from tuner.quality.task import Task, read_task
from tuner.scoring.goals import Slo, parse_slo
from tuner.settings.declared import seconds_of
from tuner.settings.study import StudySettings
from tuner.specs import Limits, ModelRef
from tuner.study.specification.find_model import find_model
from tuner.study.specification.model_files import check_model_files
from tuner.study.specification.plan import refer_to_secrets
from tuner.study.specification.spec import ServerSettings, StudySpec
from tuner.use_cases.devices import find_devices
from tuner.use_cases.places import find_study, storage_url

_DEFAULT_MODEL = "Qwen/Qwen2.5-0.5B"

_OF_THE_TRIAL = frozenset({"--host", "--port", "--served-model-name", "--max-num-seqs", "--max-num-batched-tokens"})
"""Flags of a trial's server that the server of a check has not: its own, and the batches of a benchmark."""


@dataclass(frozen=True)
class Asked:
    """A candidate and its reference; `study` is the name of the candidate's study, None for one from settings."""

    candidate: Variant
    reference: Variant
    secrets: Secrets = NO_SECRETS
    study: str | None = None
    executable: str | None = None


def reference_of(variant: Variant) -> Variant:
    """Return the variant without the flags and variables that change answers."""
    kept, _ = split_flags(variant.argv, FORMAT_FLAGS)
    return replace(variant, argv=kept, environment=without_format_variables(variant.environment))


def given(model: str | None, reference: str | None, server: ServerSettings) -> Asked:
    """Return a model with the flags of a server; see `check_quality`.

    Raises:
        SettingError: for a model that is not found or lacks files, and a secret flag with a literal value.
    """
    settings, secrets = refer_to_secrets(server, os.environ)
    found, _ = find_model(model or _DEFAULT_MODEL, None)
    original, _ = find_model(reference or found.name, None)
    check_model_files("model", found.name, settings.arguments)
    check_model_files("reference", original.name, settings.arguments)
    candidate = Variant(found, absolute_arguments(settings.arguments), settings.environment)
    return Asked(candidate, reference_of(replace(candidate, model=original)), secrets)


def studied(store: Store, name: str, number: int | None, reference: str | None) -> Asked:
    """Return a trial of a study, None for the winner, and the reference, None for the study's own model.

    Raises:
        SettingError: where there is no such study or trial, it has no server, or nothing in it changes answers.
    """
    study = find_study(store, name)
    if study.provenance is Provenance.SIMULATED:
        raise SettingError("study", study.name, "it is simulated: no server answered", "give a measured study")
    if not kind_of(engine_of(study.premise)).can(Feature.QUALITY):
        rule = f"it ran {engine_of(study.premise)}, and answers are compared with vLLM only"
        raise SettingError("study", study.name, rule, "give a study of vLLM")
    record = _trial(store, study, number)
    assert record.outcome is not None
    assert record.outcome.served is not None
    served, arguments = record.outcome.served
    argv, _ = split_flags(arguments, _OF_THE_TRIAL)
    environment = {name: value for name, value in record.outcome.environment.items() if name not in OWN_VARIABLES}
    server, secrets = refer_to_secrets(ServerSettings(argv, environment, ()), os.environ)
    named = study.premise["model"]
    original, _ = find_model(reference or str(named["name"]), None)
    model = ModelRef(served, named["tokenizer"], original.served_name)
    candidate = Variant(model, server.arguments, server.environment)
    without = reference_of(replace(candidate, model=original))
    if candidate.model.name == without.model.name and candidate.formats == without.formats:
        rule = f"trial {record.number} of study {study.name!r} has no flag that changes answers"
        raise SettingError("trial", None, rule, "its answers are the model's own")
    return Asked(candidate, without, secrets, study.name, study.facts.get("executable"))


def _trial(store: Store, study: StudyRecord, number: int | None) -> TrialRecord:
    if number is None:
        number = (study.conclusion or {}).get("winner")
    if number is None:
        rule = f"study {study.name!r} has no winner"
        raise SettingError("trial", None, rule, f"give {{trial}} N, {see_trials(study.name)}")
    record = store.trial(study.name, number)
    if record is None or record.outcome is None or record.outcome.served is None:
        rule = f"study {study.name!r} has no such trial with a server"
        raise SettingError("trial", number, rule, f"choose one that {trials_command(study.name)} lists as ok")
    return record


def keep_in_study(store: Store, asked: Asked, fact: Mapping[str, Any]) -> None:
    """Store what was found with the study, for its script and for other trials with the same formats."""
    assert asked.study is not None
    study = find_study(store, asked.study)
    candidate = asked.candidate
    key = formats_of(candidate.model.name, candidate.argv, candidate.environment)
    store.update_study(asked.study, {CHECKED: {**study.facts.get(CHECKED, {}), key: dict(fact)}})


def check_of_winner(store: Store, name: str) -> str | None:
    """Return the command that checks the winner's answers; None where none may differ, or where they were compared."""
    study = store.study(name)
    winner = None if study is None else (study.conclusion or {}).get("winner")
    trial = None if winner is None else store.trial(name, winner)
    if study is None or trial is None or study.provenance is Provenance.SIMULATED:
        return None
    if not kind_of(engine_of(study.premise)).can(Feature.QUALITY):
        return None
    return check_command(study, trial) if changed_answers(study, trial) and not is_checked(study, trial) else None


@dataclass(frozen=True)
class QualityReport:
    """The result, with what was compared."""

    candidate: Variant
    reference: Variant
    quality: Quality
    slo: Slo
    task: str | None


def check_quality(
    settings: StudySettings, reference: str | None, slo: str, trial: int | None, stop: threading.Event
) -> QualityReport:
    """Compare a candidate with the reference.

    Args:
        settings: the candidate's model and server, or its study, whose model and server are then compared;
            `quality_task` is None for token probabilities only.
        reference: the unquantized model, None for the candidate's; it is served with the candidate's flags, but those
            that change answers.
        slo: the bound on `quality`.
        trial: of the study; None: the winner.
        stop: ends the check when it is set.

    Raises:
        UserError: for a setting that cannot work, or a model that cannot be served.
    """
    server = ServerSettings(tuple(settings.server_arguments), settings.env, tuple(settings.secret))
    _check_candidate(settings, server, trial)
    bound = read_quality_slo(slo)
    task = None if settings.quality_task is None else find_task(settings.quality_task)
    url = storage_url(settings.storage, create=settings.study is None)
    folder = Path(url.removeprefix("sqlite:///")).parent if url.startswith("sqlite:///") else Path("tuner_study")
    with closing(open_store(url, DatabaseWait(lambda _: None, stop))) as store:
        if settings.study is None:
            asked = given(settings.model, reference, server)
        else:
            asked = studied(store, settings.study, trial, reference)
        executable = os.fspath(find_executable(settings.vllm or asked.executable))
        devices = find_devices(1, max(gpus_of(asked.candidate.argv), gpus_of(asked.reference.argv)))
        own, secrets = own_identity(), asked.secrets
        engine_settings = EngineSettings("vllm", executable, home(), driver=own, secrets=secrets, gpus=devices.each)
        engine = EngineFactory(engine_settings)(0)
        assert isinstance(engine, VllmEngine)
        with closing(engine):
            limits = Limits(startup_s=seconds_of("startup_timeout", settings.startup_timeout))
            examiner = Examiner(engine, devices.names[0], store, folder.resolve() / "quality", task, limits, stop)
            check_reference(examiner, asked.reference, task)
            quality = _compare(examiner, asked.reference, asked.candidate)
        if asked.study is not None:
            keep_in_study(store, asked, fact_of(quality, bound))
    return QualityReport(asked.candidate, asked.reference, quality, bound, settings.quality_task)


def _check_candidate(settings: StudySettings, server: ServerSettings, trial: int | None) -> None:
    """Check that either a study or a model is given."""
    study = settings.study
    if study is None and trial is not None:
        raise SettingError("trial", trial, "it needs a study", "give {study} NAME")
    own = settings.model is not None or server.arguments or server.environment or server.secrets
    if study is not None and own:
        rule = "model, flags, environment and secrets are those of the study"
        raise SettingError("study", study, rule, "leave out {model}, {env}, {secret} and the flags after --")


def find_task(text: str) -> Task | HarnessTask:
    """Return the questions of a file, or tasks of lm-evaluation-harness.

    Raises:
        SettingError: about `quality_task`, see `read_task` and `harness_task`.
    """
    return harness_task(text) if text.startswith(PREFIX) else read_task(text)


def read_quality_slo(text: str) -> Slo:
    """Return the bound on `quality`.

    Raises:
        SettingError: for another metric, and a bound that is no share.
    """
    slo = parse_slo(text)
    if slo.metric != "quality" or slo.op not in (">=", ">") or not 0 < slo.threshold <= 1:
        raise SettingError("slo", text, "it bounds no quality", "give for example 'quality>=0.99'")
    return slo


def check_reference(examiner: Examiner, reference: Variant, task: Task | HarnessTask | None) -> None:
    """Ask the reference, so that one that cannot be served is an error before anything else starts.

    Raises:
        UserError: if it cannot be served, or answers no question right.
    """
    try:
        answers = examiner.answers(reference).answers
    except ExamFailed as failed:
        remedy = _remedy_of(failed)
        raise SettingError("reference", reference.model.name, f"it cannot be served: {failed}", remedy) from None
    if task is not None and not any(answers["right"]):
        rule = f"the reference answers none of {len(answers['right'])} questions right"
        raise SettingError("quality_task", None, rule, "check `prompt`, `answer` and `regex` in {quality_task}")


def _remedy_of(failed: ExamFailed) -> str:
    if failed.log is None or (failed.failure is not None and failed.failure.kind.lacks_memory):
        return "give a model that fits by {reference}, or leave the quality out"
    return f"its log is {failed.log}"


def _compare(examiner: Examiner, reference: Variant, candidate: Variant) -> Quality:
    try:
        return examiner.compare(reference, candidate)
    except ExamFailed as failed:
        log = "" if failed.log is None else f"; its log is {failed.log}"
        raise UserError(f"the candidate {candidate.model.name} cannot be examined: {failed}{log}") from None


def quality_task(
    slos: Sequence[Slo], task: str | None, engines: Sequence[str], workers: int, *, here: bool
) -> Task | HarnessTask | None:
    """Return the task of a study with an SLO on `quality`; None for a study without one.

    Args:
        slos: of the study.
        task: the JSONL file.
        engines: of the study; quality needs vLLM's log-probabilities of prompts, and its checkpoints.
        workers: of the study.
        here: whether the servers are real and on this machine.

    Raises:
        SettingError: for an SLO that bounds no quality, one without a task or a task without one, and where no server
            can be asked.
    """
    bounds = [slo for slo in slos if slo.metric.rpartition(".")[2] == "quality"]
    other = next((each for each in engines if not kind_of(each).can(Feature.QUALITY)), None)
    if other is not None and (bounds or task is not None):
        field, value = ("slo", str(bounds[0])) if bounds else ("quality_task", task)
        raise SettingError(field, value, f"quality is measured with vLLM only, not with {other}", "leave it out")
    if not bounds:
        if task is not None:
            rule = "these questions measure an SLO on quality, and there is none"
            raise SettingError("quality_task", task, rule, "add {slo} 'quality>=0.99'")
        return None
    read_quality_slo(str(bounds[0]))
    if task is None:
        raise SettingError("slo", str(bounds[0]), "quality needs questions", "give {quality_task} FILE")
    found = find_task(task)
    if not here:
        rule = "no reference can be served: quality needs a real vLLM on this machine, not a simulation or a cluster"
        raise SettingError("slo", str(bounds[0]), rule, "leave the quality out, or run where a vLLM is")
    if workers > 1:
        rule = "quality is checked between trials, which needs one worker"
        raise SettingError("workers", workers, rule, "give {workers} 1")
    return found


def answer_check(
    spec: StudySpec,
    task: Task | HarnessTask,
    settings: EngineSettings,
    device: str,
    store: Store,
    note: Callable[[str], None],
    stop: threading.Event,
    stack: ExitStack,
) -> Check:
    """Ask the reference, and return the check of the study's configurations.

    Raises:
        SettingError: if the reference cannot be served, or answers no question right.
    """
    engine = EngineFactory(settings)(0)
    stack.callback(engine.close)
    assert isinstance(engine, VllmEngine)
    folder = spec.artifacts.parent.parent / "quality"
    examiner = Examiner(engine, device, store, folder, task, spec.limits, stop)
    reference = Variant(spec.model, spec.server.arguments, spec.server.environment)
    slo = next(slo for slo in spec.goals.slos if slo.metric == "quality")
    note("asking the reference, the model without a parameter that changes answers; once")
    check_reference(examiner, reference, task)

    def check(config: Config) -> float | Failure:
        candidate = variant_of(spec, config)
        if candidate == reference:
            return 1.0
        try:
            pairs = examiner.compare(reference, candidate).pairs
        except ExamFailed as failed:
            return failed.failure or Failure(FailureKind.INVALID_CONFIGURATION, Phase.CHECK, str(failed))
        assert pairs is not None
        verdict = pairs.verdict(slo.threshold)
        if verdict is AnswersVerdict.LOST or not slo.met(pairs.quality):
            low, high = pairs.interval
            message = f"misses {slo}: quality {pairs.quality:.3f} ({low:.3f} to {high:.3f}), {verdict}"
            return Failure(FailureKind.INVALID_CONFIGURATION, Phase.CHECK, message)
        return pairs.quality

    return check


def variant_of(spec: StudySpec, config: Config) -> Variant:
    """Return what the configuration's parameters that change answers make of the server.

    The other parameters are left out, unless the former need them.
    """
    space = spec.space
    changing = {parameter.name for parameter in space.parameters if parameter.spec.changes_answers}
    chosen: dict[str, ParameterValue] = {name: value for name, value in config.items() if name in changing}
    full, names = space.names(config).lookup, space.names(chosen).lookup
    needs_more = any(
        parameter.active(full) and not parameter.active(names)
        for parameter in space.parameters
        if chosen.get(parameter.name) is not None
    )
    rendered = space.render(config if needs_more or space.violations(chosen) else chosen)
    model = spec.model
    if rendered.model is not None:
        model = ModelRef(rendered.model, model.tokenizer, model.served_name)
    variant = Variant(spec.model, spec.server.arguments, spec.server.environment)
    environment = {**variant.environment, **rendered.environment}
    return replace(variant, model=model, argv=(*variant.argv, *rendered.argv), environment=environment)
