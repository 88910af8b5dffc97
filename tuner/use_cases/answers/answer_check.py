"""The check of a study's configurations: do they keep the answers of the unquantized model?"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace

from search_spaces import ParameterValue
from storage.records import Config, Failure, FailureKind, Phase
from storage.store import Store
from tuner.engines.base import EngineSettings
from tuner.engines.factory import EngineFactory
from tuner.engines.vllm.engine import VllmEngine
from tuner.errors import SettingError
from tuner.executors.checked import Check
from tuner.quality.examiner import ExamFailed, Examiner, Variant
from tuner.quality.harness import HarnessTask
from tuner.quality.pairs import Kept
from tuner.quality.task import Task
from tuner.scoring.slo import Slo
from tuner.specs import ModelRef
from tuner.study.specification.spec import StudySpec
from tuner.use_cases.answers.quality import check_reference, find_task, read_quality_slo


def quality_task(slos: tuple[Slo, ...], task: str | None, workers: int, *, here: bool) -> Task | HarnessTask | None:
    """Return the task of a study with an SLO on `quality`; None for a study without one.

    Args:
        slos: of the study.
        task: the JSONL file.
        workers: of the study.
        here: whether the servers are real and on this machine.

    Raises:
        SettingError: for an SLO that bounds no quality, one without a task or a task without one, and where no server
            can be asked.
    """
    bounds = [slo for slo in slos if slo.metric.rpartition(".")[2] == "quality"]
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
        if verdict is Kept.LOST or not slo.met(pairs.quality):
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
    changing = {parameter.name for parameter in space.parameters if parameter.changes_answers}
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
