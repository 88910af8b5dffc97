"""Predict the levers of a study, and keep those that are predicted to help."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from search_spaces import HardwareProfile, ModelShape, ParameterValue, SpaceError
from storage.metrics import COSTS
from storage.records import Provenance
from tuner.confidence import normal_factor
from tuner.engines.base import EngineInfo
from tuner.engines.factory import EngineFactory
from tuner.engines.simulator.config.model_shape import find_shape
from tuner.engines.simulator.config.precision import ConfigRefused
from tuner.engines.simulator.memory.budget import StartFailed
from tuner.errors import TunerError
from tuner.processes.secrets import mask_url_passwords
from tuner.scoring.score import score
from tuner.settings.declared import changed
from tuner.settings.study import StudySettings
from tuner.study.conclusion.conclusion import Lever
from tuner.study.conclusion.decide import PREDICTED_SPREAD
from tuner.study.prior.simulator_prior import simulator_of
from tuner.study.specification.builder import StudyPlan, build_spec
from tuner.study.specification.spec import StudySpec
from tuner.use_cases.levers.candidates import CHECKPOINT, Candidate, candidates, with_lever
from tuner.use_cases.simulated_engine import simulated_engine

SHOWN = 4
"""The most levers of a conclusion."""

LEAST_GAIN = math.exp(normal_factor() * PREDICTED_SPREAD)
"""A predicted ratio of scores from which a lever is shown: a smaller one may be an error of the predictions."""

_log = logging.getLogger(__name__)

Metrics = Mapping[str, float | None]


@dataclass(frozen=True)
class Predicted:
    """Predicted metrics, and the relative error of such predictions where it is known."""

    metrics: Metrics
    errors: Mapping[str, float]


@dataclass(frozen=True)
class Kept:
    """A study that keeps its reference: plan as given, spec, engine and card as used.

    `base` is the configuration of the reference.
    """

    plan: StudyPlan
    spec: StudySpec
    engine: EngineInfo
    card: HardwareProfile
    base: Mapping[str, ParameterValue]

    @property
    def simulated(self) -> bool:
        """Whether the study is simulated, so that another card needs no other machine."""
        return self.engine.provenance is Provenance.SIMULATED


def find_levers(kept: Kept) -> tuple[Lever, ...]:
    """Return the levers that are predicted to help: the best of each family, other cards last.

    A lever may not miss an SLO that the reference is predicted to meet. There is none where the simulator cannot
    predict the study, as on CPUs and for several workloads.
    """
    reference = _predicted(kept.spec, kept.engine, kept.base, kept.plan.shape)
    if reference is None:
        return ()
    best: dict[str, tuple[bool, Lever]] = {}
    arguments, shape = tuple(kept.plan.settings.server_arguments), kept.plan.shape
    quantized = shape is not None and shape.quantization is not None
    for candidate in candidates(kept.plan.workload, arguments, kept.card, quantized=quantized):
        lever = _lever(kept, candidate, reference)
        if lever is None or lever.score <= LEAST_GAIN:
            continue
        known = best.get(candidate.family)
        if known is None or known[1].score < lever.score:
            best[candidate.family] = candidate.card is not None, lever
    ordered = sorted(best.values(), key=lambda pair: (pair[0], -pair[1].score))
    return tuple(lever for _, lever in ordered[:SHOWN])


def _lever(kept: Kept, candidate: Candidate, reference: Predicted) -> Lever | None:
    """Return the lever with its predicted gain; None if it is impossible, allowed already, or misses an SLO."""
    config = {**kept.base, **candidate.change}
    if candidate.is_offered and kept.spec.space.contains(config):
        return None
    name = f"{kept.spec.name}-try-{candidate.family}"
    plan = with_lever(kept.plan, candidate, kept.base, name)
    try:
        engine, card = _engine(kept, candidate)
        spec = build_spec(plan, engine, card, Path())
        shape = plan.shape
        if candidate.checkpoint is not None and shape is not None:
            shape = replace(shape, quantization=candidate.checkpoint)
        complete = spec.space.complete(config)
    except (TunerError, SpaceError):
        return None
    found = _predicted(spec, engine, complete, shape)
    if found is None:
        return None
    goals, new, old = kept.spec.goals, found.metrics, reference.metrics
    gain = score(new, old, goals.scored)
    if gain is None or not _missed(kept.spec, new) <= _missed(kept.spec, old):
        return None
    names = [objective.metric for objective in goals.objectives]
    ratios = {each: one / other for each in names if (one := new.get(each)) and (other := old.get(each))}
    both = found.errors.keys() & reference.errors.keys()
    within = {each: max(found.errors[each], reference.errors[each]) for each in names if each in both}
    needs, settings = _needs(kept, candidate), _settings(kept, candidate, plan)
    priced = candidate.card is not None and any(each.rpartition(".")[2] in COSTS for each in names)
    name = f"{candidate.name} at its list price" if priced else candidate.name
    return Lever(name, gain, ratios, within, candidate.changes_answers, needs, settings)


def _engine(kept: Kept, candidate: Candidate) -> tuple[EngineInfo, HardwareProfile]:
    """Return the engine and the card with a lever."""
    if candidate.card is None:
        return kept.engine, kept.card
    if not kept.simulated:
        return kept.engine, candidate.card
    version = kept.plan.settings.vllm_version
    settings, devices = simulated_engine(candidate.card.key, version, kept.plan.preset.name, 1)
    return EngineFactory(settings)(0).info(), devices.profile


def _predicted(
    spec: StudySpec, engine: EngineInfo, config: Mapping[str, ParameterValue], shape: ModelShape | None
) -> Predicted | None:
    """Return the prediction of a configuration; None if it cannot be predicted or fails.

    Args:
        spec: of the study.
        engine: that runs it.
        config: the configuration.
        shape: of the model; with a placeholder for a checkpoint, of the checkpoint.
    """
    simulator = simulator_of(spec, engine)
    if simulator is None or shape is None:
        return None
    try:
        rendered = spec.space.render(config)
        if rendered.model not in (None, CHECKPOINT):
            shape = find_shape(str(rendered.model))
        argv = (*spec.server.arguments, *rendered.argv)
        environment = {**spec.server.environment, **rendered.environment}
        metrics = simulator.metrics(argv, environment, shape)
        return None if metrics is None else Predicted(metrics, simulator.errors(argv, environment, shape))
    except (TunerError, SpaceError, ConfigRefused, StartFailed):
        return None
    except (ArithmeticError, LookupError, ValueError) as error:  # as in the prior: levers are worth no failed study
        _log.warning("no prediction of %s, the simulator failed: %s: %s", dict(config), type(error).__name__, error)
        return None


def _missed(spec: StudySpec, metrics: Metrics) -> set[str]:
    """Return the SLOs that predicted metrics miss. Nothing predicts the answers; they count as kept."""
    known = {"quality": 1.0, **metrics}
    return {str(slo) for slo in spec.goals.slos if not slo.met(known.get(slo.metric))}


def _needs(kept: Kept, candidate: Candidate) -> str | None:
    """Return what the user must have for a lever."""
    if candidate.checkpoint is not None:
        method = candidate.checkpoint.upper()
        return f"an {method} checkpoint of the model: its folder or hub name in place of {CHECKPOINT}"
    if candidate.card is not None and not kept.simulated:
        return f"a machine with one {candidate.card.name}"
    return None


def _settings(kept: Kept, candidate: Candidate, plan: StudyPlan) -> dict[str, Any]:
    """Return the settings that measure only the lever, beside the defaults and what the preset enqueues."""
    settings, card = plan.settings, candidate.card
    trials = 1 + (settings.baseline is not None) + len(plan.enqueue)
    gpu = card.key if card is not None and kept.simulated else settings.gpu
    own = replace(settings, trials=trials, timeout=None, ablate=False, gpu=gpu, output=f"{plan.name}.sh")
    return given_settings(own)


def given_settings(settings: StudySettings) -> dict[str, Any]:
    """Return the settings that differ from their defaults, as plain JSON for a command, without a database's password.

    Lists are repeated options; `NAME=VALUE` stands for an entry of a mapping.
    """
    found = changed(settings)
    pairs = {
        name: [f"{key}={each}" for key, each in value.items()]
        for name, value in found.items()
        if isinstance(value, dict)
    }
    storage = {} if settings.storage is None else {"storage": mask_url_passwords(settings.storage)}
    return {**found, **pairs, **storage}
