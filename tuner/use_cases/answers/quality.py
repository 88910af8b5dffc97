"""The use case of `tuner quality`: whether a configuration keeps the answers of the unquantized model."""

from __future__ import annotations

import os
import threading
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from search_spaces.rendering.shape import gpus_of
from storage import open_store
from storage.failures import FailureKind
from storage.waiting import DatabaseWait
from tuner.engines.base import EngineSettings
from tuner.engines.factory import EngineFactory
from tuner.engines.vllm.engine import VllmEngine
from tuner.engines.vllm.installation import find_executable
from tuner.errors import SettingError, UserError
from tuner.processes.identity import own_identity
from tuner.quality.checked import fact_of
from tuner.quality.examiner import ExamFailed, Examiner, Quality, Variant
from tuner.quality.harness import PREFIX, HarnessTask, harness_task
from tuner.quality.task import Task, read_task
from tuner.scoring.slo import Slo, parse_slo
from tuner.specs import Limits
from tuner.study.specification.settings import ServerSettings
from tuner.use_cases.answers.asked import given, keep_in_study, studied
from tuner.use_cases.devices import find_devices
from tuner.use_cases.places import home, storage_url

_TOO_LARGE = frozenset({FailureKind.OUT_OF_MEMORY_STARTUP, FailureKind.KV_CACHE_TOO_SMALL})


@dataclass(frozen=True)
class QualitySettings:
    """A candidate and the reference.

    `model` and `server` are the candidate's. `reference` is the unquantized model, None for `model`; it is served
    with the candidate's flags, but those that change answers. `task` is a JSONL file, None for token probabilities
    only. `slo` is the bound on `quality`. With `study`, the candidate is its trial number `trial`, None for the winner;
    `model` and `server` are then the study's.
    """

    model: str | None
    reference: str | None
    task: str | None
    slo: str
    vllm: str | None
    server: ServerSettings
    storage: str | None
    startup_s: float
    study: str | None = None
    trial: int | None = None


@dataclass(frozen=True)
class QualityReport:
    """The result, with what was compared."""

    candidate: Variant
    reference: Variant
    quality: Quality
    slo: Slo
    task: str | None


def check_quality(settings: QualitySettings, stop: threading.Event) -> QualityReport:
    """Compare a candidate with the reference.

    Raises:
        UserError: for a setting that cannot work, or a model that cannot be served.
    """
    slo = read_quality_slo(settings.slo)
    task = None if settings.task is None else find_task(settings.task)
    url = storage_url(settings.storage, create=settings.study is None)
    folder = Path(url.removeprefix("sqlite:///")).parent if url.startswith("sqlite:///") else Path("tuner_study")
    with closing(open_store(url, DatabaseWait(lambda _: None, stop))) as store:
        if settings.study is None:
            asked = given(settings.model, settings.reference, settings.server)
        else:
            asked = studied(store, settings.study, settings.trial, settings.reference)
        executable = os.fspath(find_executable(settings.vllm or asked.executable))
        devices = find_devices(1, max(gpus_of(asked.candidate.argv), gpus_of(asked.reference.argv)))
        own, secrets = own_identity(), asked.secrets
        engine_settings = EngineSettings("vllm", executable, home(), driver=own, secrets=secrets, gpus=devices.each)
        engine = EngineFactory(engine_settings)(0)
        assert isinstance(engine, VllmEngine)
        with closing(engine):
            limits = Limits(startup_s=settings.startup_s)
            examiner = Examiner(engine, devices.names[0], store, folder.resolve() / "quality", task, limits, stop)
            check_reference(examiner, asked.reference, task)
            quality = _compare(examiner, asked.reference, asked.candidate)
        if asked.study is not None:
            keep_in_study(store, asked, fact_of(quality, slo))
    return QualityReport(asked.candidate, asked.reference, quality, slo, settings.task)


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
    if failed.log is None or (failed.failure is not None and failed.failure.kind in _TOO_LARGE):
        return "give a model that fits by {reference}, or leave the quality out"
    return f"its log is {failed.log}"


def _log_of(failed: ExamFailed) -> str:
    return "" if failed.log is None else f"; its log is {failed.log}"


def _compare(examiner: Examiner, reference: Variant, candidate: Variant) -> Quality:
    try:
        return examiner.compare(reference, candidate)
    except ExamFailed as failed:
        raise UserError(f"the candidate {candidate.model.name} cannot be examined: {failed}{_log_of(failed)}") from None
