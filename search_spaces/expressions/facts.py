"""The context of a space (hardware, engine, model, workload), and the facts that expressions read from it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from search_spaces.catalogue.hardware import HardwareProfile
from search_spaces.catalogue.models import ModelShape
from search_spaces.expressions.language import UNKNOWN, version_tuple
from search_spaces.units import GIB

VLLM_NAME = "vLLM"
"""The engine's name in texts, unless a context has another."""


@dataclass(frozen=True)
class Context:
    """The facts that a space is resolved for. None means unknown, and an unknown fact excludes nothing.

    Attributes:
        hardware: the card.
        engine_version: the engine's version, such as `0.25.1`.
        flags: option strings of the installed engine; a parameter with another flag is dropped.
        model: the shape of the model.
        packages: packages that the engine's environment can import.
        concurrency: requests in flight at most.
        input_len, output_len: tokens of the longest prompt and of the longest answer.
        priorities: whether the workload's requests have different priorities.
        draft_model: a model for speculative decoding.
        draft_kind: what the draft model is: `model`, `eagle3` or `mtp`.
        checkpoints: the checkpoint of each quantization method that a study offers.
        checkpoint_shapes: the shape of each checkpoint, as far as its config.json is on this machine.
        engine: the engine's name in texts.
        cores: the processor cores that a server may use.
        host_memory_gib: the host's memory.
        shm_gib: the size of `/dev/shm`, which the processes of a server share.
        gpus: the GPUs of a trial.
        nodes: over which they are spread evenly.
        simulated: whether the engine is simulated.
        base_argv: server arguments that the study sets. Parameters that they set are dropped, and expressions use their
            values.
    """

    hardware: HardwareProfile
    engine_version: str | None = None
    flags: frozenset[str] | None = None
    model: ModelShape | None = None
    packages: frozenset[str] | None = None
    concurrency: int | None = None
    input_len: int | None = None
    output_len: int | None = None
    priorities: bool | None = None
    draft_model: str | None = None
    draft_kind: str | None = None
    checkpoints: Mapping[str, str] = field(default_factory=dict)
    checkpoint_shapes: Mapping[str, ModelShape] = field(default_factory=dict)
    base_argv: tuple[str, ...] = ()
    engine: str = VLLM_NAME
    cores: int | None = None
    gpus: int = 1
    nodes: int = 1
    host_memory_gib: float | None = None
    shm_gib: float | None = None
    simulated: bool | None = None


def _model_facts(model: ModelShape | None, version: tuple[int, ...] | None) -> dict[str, object]:
    names = ("layers", "hidden", "intermediate", "heads", "kv_heads", "head_dim", "vocab")
    facts: dict[str, object] = {f"model.{name}": None if model is None else getattr(model, name) for name in names}
    facts["model.dtype"] = None if model is None else model.dtype.removeprefix("torch.")
    facts["model.quantization"] = None if model is None else (model.quantization or "none")
    facts["model.max_position_embeddings"] = None if model is None else model.longest_context(version)
    facts["model.default_context"] = None if model is None else model.default_context or model.longest_context(version)
    weights = None if model is None or not model.has_known_weights else model.weight_bytes(model.stored_bits)
    facts["model.weight_gib"] = None if weights is None else weights / GIB
    facts["model.experts"] = None if model is None else model.experts
    facts["model.draft_layers"] = None if model is None else model.draft_layers
    every_token = model is not None and model.cache is None
    facts["model.kv_gib_per_token"] = model.kv_bytes_per_token(2) / GIB if model is not None and every_token else None
    return facts


def facts_of(context: Context) -> dict[str, object]:
    """Return every fact by its dotted name; `UNKNOWN` where the context has None.

    `model.quantization` is "none" for a known model that is not quantized.
    """
    hardware = context.hardware
    version = None if context.engine_version is None else version_tuple(context.engine_version)
    facts: dict[str, object] = {
        "hardware.name": hardware.name,
        "hardware.key": hardware.key,
        "hardware.vendor": hardware.vendor,
        "hardware.compute_capability": hardware.compute_capability,
        "hardware.memory_gib": hardware.memory_gib,
        "hardware.bandwidth_gbs": hardware.bandwidth_gbs,
        "hardware.cores": context.cores,
        "hardware.gpus": context.gpus,
        "hardware.nodes": context.nodes,
        "hardware.host_memory_gib": context.host_memory_gib,
        "hardware.shm_gib": context.shm_gib,
        "engine.version": version,
        "engine.flags": context.flags,
        "engine.packages": context.packages,
        "engine.simulated": context.simulated,
        "workload.concurrency": context.concurrency,
        "workload.input_len": context.input_len,
        "workload.output_len": context.output_len,
        "workload.priorities": context.priorities,
        "draft.kind": context.draft_kind,
        **_model_facts(context.model, version),
    }
    return {name: UNKNOWN if value is None else value for name, value in facts.items()}


CHECKPOINT_FACTS = ("weight_bits", "activation_bits", "weight_type")
"""Facts of the checkpoint of a choice, as `checkpoint.weight_bits`, which only a requirement of that choice has."""


def checkpoint_fact(shape: ModelShape | None, name: str) -> object:
    """Return a fact of a choice's checkpoint by its dotted name; `UNKNOWN` where it is not known."""
    value = None if shape is None else getattr(shape, name.removeprefix("checkpoint."))
    return UNKNOWN if value is None else value


FACT_NAMES = frozenset(facts_of(Context(HardwareProfile("", "", "cpu", None, None, None))))
"""The names of all facts that an expression may use."""


def shown_fact(name: str, value: object) -> str:
    """Return a fact as text: a version with dots, a compute capability such as 7.5."""
    if isinstance(value, tuple):
        return ".".join(str(part) for part in value)
    return "unknown" if value is UNKNOWN else str(value)
