"""The levers that are tried: other decoding, weights, KV caches and cards, with the settings that allow each."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from search_spaces import HardwareProfile, ParameterValue, known_hardware
from tuner.study.specification.builder import StudyPlan
from tuner.workloads.spec import Workload

CHECKPOINT = "CHECKPOINT"
"""Stands in a command for a checkpoint that the user has to provide."""

CARDS = 2
"""How many of the next bigger cards are tried."""

SAMPLING_FLAG = "--override-generation-config"

Config = Mapping[str, ParameterValue]


@dataclass(frozen=True)
class Candidate:
    """One way to pull a lever.

    Attributes:
        family: the lever, as it ends the name of the study that measures it; only the best of a family is shown.
        name: for people.
        change: parameters that differ from the reference.
        greedy: whether answers are decoded greedily, at temperature 0.
        checkpoint: the method of a quantized checkpoint that the user has to provide.
        card: another card.
        changes_answers: whether the answers change.
    """

    family: str
    name: str
    change: Config = field(default_factory=dict)
    greedy: bool = False
    checkpoint: str | None = None
    card: HardwareProfile | None = None
    changes_answers: bool = False

    @property
    def is_offered(self) -> bool:
        """Whether nothing but parameters changes, so that a study may have been allowed to try it."""
        return not self.greedy and self.checkpoint is None and self.card is None


def candidates(
    workload: Workload, arguments: tuple[str, ...], card: HardwareProfile, *, quantized: bool
) -> Iterator[Candidate]:
    """Yield what is tried for a study.

    Args:
        workload: of the study.
        arguments: the server's, as the user gave them; those that set the sampling exclude greedy decoding.
        card: of the study.
        quantized: whether the model's own checkpoint is quantized.
    """
    is_greedy = workload.temperature == 0
    if is_greedy or SAMPLING_FLAG not in {argument.split("=")[0] for argument in arguments}:
        yield from _decoding(change=not is_greedy)
    for value, name in (("fp8", "FP8 weights"), ("fp8_per_block", "FP8 weights by blocks")):
        yield Candidate("fp8-weights", name, {"quantization": value}, changes_answers=True)
    if not quantized:
        awq = {"quantization": "awq"}
        yield Candidate("awq", "4-bit weights (AWQ)", awq, checkpoint="awq", changes_answers=True)
    yield Candidate("fp8-kv", "FP8 KV cache", {"kv_cache_dtype": "fp8"}, changes_answers=True)
    for each in bigger_cards(card):
        yield Candidate(each.key, f"one {each.name}", card=each)


def _decoding(*, change: bool) -> Iterator[Candidate]:
    """Yield greedy decoding with and without speculation; where it is greedy already, speculation alone."""
    ngram: Config = {"speculative": "ngram", "ngram_tokens": 5, "ngram_max": 5, "ngram_min": 2}
    suffix: list[Config] = [{"speculative": "suffix", "suffix_tokens": tokens} for tokens in (12, 32)]
    ways = {"suffix speculation": suffix, "ngram speculation": [ngram]}
    if change:
        yield Candidate("greedy", "greedy decoding", greedy=True, changes_answers=True)
    for name, configurations in ways.items():
        for config in configurations:
            full = f"greedy decoding with {name}" if change else name
            family = "greedy" if change else "speculation"
            yield Candidate(family, full, config, greedy=change, changes_answers=change)


def bigger_cards(card: HardwareProfile) -> list[HardwareProfile]:
    """Return the next bigger known cards: at least as much memory, bandwidth and 16-bit arithmetic, and more of one.

    They are ordered by bandwidth, which bounds decoding.
    """
    own = _size(card)
    if own is None:
        return []
    sized = [(size, each) for each in known_hardware().values() if (size := _size(each)) is not None]
    bigger = [(size, each) for size, each in sized if each.key != card.key and size != own]
    fitting = [each for size, each in bigger if all(a >= b for a, b in zip(size, own, strict=True))]
    return sorted(fitting, key=lambda each: each.bandwidth_gbs or 0.0)[:CARDS]


def _size(card: HardwareProfile) -> tuple[float, float, float] | None:
    """Return bandwidth, memory and 16-bit arithmetic; None if one is not known."""
    arithmetic = card.tflops.get("float16")
    if card.bandwidth_gbs is None or card.memory_gib is None or arithmetic is None:
        return None
    return card.bandwidth_gbs, card.memory_gib, arithmetic


def with_lever(plan: StudyPlan, candidate: Candidate, base: Config, name: str) -> StudyPlan:
    """Return the plan of a study that measures only a lever, beside its own defaults.

    Args:
        plan: of the study that keeps its reference.
        candidate: the lever.
        base: configuration of the reference.
        name: of the new study.
    """
    settings, config = plan.settings, {**base, **candidate.change}
    checkpoint, workload, temperature = settings.checkpoint, plan.workload, settings.temperature
    only = tuple(dict.fromkeys((*settings.only, *config))) if settings.only else ()
    keeps = settings.keep_answers and not candidate.changes_answers
    enqueue = (json.dumps(config),) if candidate.change else ()
    if candidate.checkpoint is not None:
        checkpoint = {**checkpoint, candidate.checkpoint: CHECKPOINT}
    if candidate.greedy:
        workload, temperature = workload.model_copy(update={"temperature": 0.0}), 0.0
    settings = replace(
        settings,
        study=name,
        checkpoint=checkpoint,
        temperature=temperature,
        only=only,
        keep_answers=keeps,
        enqueue=enqueue,
        learn_from=(),
        price=settings.price if candidate.card is None else None,
    )
    return replace(plan, settings=settings, name=name, workload=workload)
