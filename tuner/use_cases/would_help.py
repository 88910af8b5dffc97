"""Hints for a study that keeps its reference: at most three changes that its settings exclude, with predictions."""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from search_spaces import HardwareProfile, ModelShape, ParameterValue, SpaceError
from tuner.confidence import normal_factor
from tuner.engines.base import EngineInfo
from tuner.errors import TunerError
from tuner.scoring.goals import score
from tuner.study.simulator_prior import BROKEN, REFUSED, server_with, simulator_of
from tuner.study.specification.builder import build_spec
from tuner.study.specification.plan import StudyPlan
from tuner.study.specification.spec import StudySpec

SHOWN = 3
"""The most lines."""

PREDICTED_SPREAD = 0.02
"""Standard deviation of the error of a predicted difference of scores' logarithms."""

LEAST_GAIN = math.exp(normal_factor() * PREDICTED_SPREAD)
"""A predicted ratio of scores from which a change is shown: a smaller one may be an error of the predictions."""

_SAMPLING_FLAG = "--override-generation-config"
_log = logging.getLogger(__name__)

Config = Mapping[str, ParameterValue]
Metrics = Mapping[str, float | None]


@dataclass(frozen=True)
class _Change:
    """A change: its name, the parameters that differ from the reference, and whether answers are decoded greedily.

    Of the changes of one `family`, only the best is shown.
    """

    family: str
    name: str
    config: Config = field(default_factory=dict)
    greedy: bool = False
    changes_answers: bool = True


def would_help(plan: StudyPlan, spec: StudySpec, engine: EngineInfo, base: Config) -> tuple[str, ...]:
    """Return what is predicted to help, the best first: the change, and its ratios to the reference.

    A change may not miss an SLO that the reference is predicted to meet. Empty where the simulator cannot predict the
    study, as on CPUs and for several workloads.
    """
    reference = _predicted(spec, engine, base, plan.shape)
    if reference is None:
        return ()
    best: dict[str, tuple[float, str]] = {}
    for change in _changes(plan):
        config = {**base, **change.config}
        if not change.greedy and spec.space.contains(config):  # the study could try it
            continue
        wider = _wider(plan, engine, spec.space.context.hardware, config, greedy=change.greedy)
        found = None if wider is None else _gain(spec, reference, _predicted(wider, engine, config, plan.shape))
        if found is not None and found[0] > max(LEAST_GAIN, best.get(change.family, (0.0, ""))[0]):
            answers = " (changes the answers)" if change.changes_answers else ""
            best[change.family] = found[0], f"{change.name}{answers}: {found[1]}"
    return tuple(line for _, line in sorted(best.values(), reverse=True)[:SHOWN])


def _changes(plan: StudyPlan) -> Iterator[_Change]:
    """Yield what is tried: greedy decoding, speculation where decoding is greedy, and FP8."""
    is_greedy = plan.workload.temperature == 0
    given = {argument.partition("=")[0] for argument in plan.settings.server_arguments}
    if not is_greedy and _SAMPLING_FLAG not in given:
        yield _Change("decoding", "greedy decoding (temperature 0)", greedy=True)
    if is_greedy or _SAMPLING_FLAG not in given:
        before = "" if is_greedy else "greedy decoding (temperature 0) with "
        suffix: list[Config] = [{"speculative": "suffix", "suffix_tokens": tokens} for tokens in (12, 32)]
        ngram: Config = {"speculative": "ngram", "ngram_tokens": 5, "ngram_max": 5, "ngram_min": 2}
        for config in (*suffix, ngram):
            name = f"{before}{config['speculative']} speculation"
            yield _Change("decoding", name, config, greedy=not is_greedy, changes_answers=not is_greedy)
    for value, name in (("fp8", "FP8 weights"), ("fp8_per_block", "FP8 weights by blocks")):
        yield _Change("weights", name, {"quantization": value})
    yield _Change("KV cache", "FP8 KV cache", {"kv_cache_dtype": "fp8"})


def _wider(
    plan: StudyPlan, engine: EngineInfo, card: HardwareProfile, config: Config, *, greedy: bool
) -> StudySpec | None:
    """Return a study that has a configuration, perhaps decoded greedily; None if there is no such study."""
    given = (json.dumps(config),) if config else ()
    plan = replace(plan, settings=replace(plan.settings, only=(), keep_answers=False, enqueue=given))
    if greedy:
        plan = replace(plan, workload=plan.workload.model_copy(update={"temperature": 0.0}))
    try:
        return build_spec(plan, engine, card, Path())
    except (TunerError, SpaceError):
        return None


def _gain(spec: StudySpec, reference: Metrics, found: Metrics | None) -> tuple[float, str] | None:
    """Return the ratio of the scores and the text of all ratios; None for a change that cannot be or misses an SLO."""
    gain = None if found is None else score(found, reference, spec.goals.scored)
    if found is None or gain is None or not _missed(spec, found) <= _missed(spec, reference):
        return None
    names = [objective.metric for objective in spec.goals.objectives]
    ratios = {each: one / other for each in names if (one := found.get(each)) and (other := reference.get(each))}
    return gain, ", ".join(f"{name} ×{ratio:.2f}" for name, ratio in {"score": gain, **ratios}.items())


def _predicted(spec: StudySpec, engine: EngineInfo, config: Config, shape: ModelShape | None) -> Metrics | None:
    """Return the prediction of a configuration; None if it cannot be predicted or fails."""
    simulator = simulator_of(spec, engine)
    if simulator is None or shape is None:
        return None
    try:
        return simulator.metrics(*server_with(spec, spec.space.complete(config), shape))
    except REFUSED:
        return None
    except BROKEN as error:  # a hint is worth no failed study
        _log.warning("no prediction of %s, the simulator failed: %s: %s", dict(config), type(error).__name__, error)
        return None


def _missed(spec: StudySpec, metrics: Metrics) -> set[str]:
    """Return the SLOs that predicted metrics miss. Nothing predicts the answers; they count as kept."""
    known = {"quality": 1.0, **metrics}
    return {str(slo) for slo in spec.goals.slos if not slo.met(known.get(slo.metric))}
