"""The context of a space (hardware, engine, model, workload), and the facts that expressions read from it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from search_spaces.errors import SpaceError
from search_spaces.expressions import UNKNOWN, version_tuple
from search_spaces.hardware import HardwareProfile


@dataclass(frozen=True)
class ModelShape:
    """The shape of a dense decoder, as in its `config.json`.

    Attributes:
        layers: number of layers.
        hidden: size of the hidden state.
        intermediate: size of the MLP's intermediate state.
        heads: number of query heads.
        kv_heads: number of key-value heads.
        head_dim: size of a head.
        vocab: size of the vocabulary.
        max_position_embeddings: tokens of the longest context.
        tied: whether the output head is the token embedding.
        dtype: the checkpoint's number format.
        quantization: the checkpoint's quantization method; None if it is not quantized.
    """

    layers: int
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    max_position_embeddings: int
    tied: bool
    dtype: str
    quantization: str | None

    @classmethod
    def from_config_json(cls, config: Mapping[str, Any]) -> ModelShape:
        """Return the shape from a Hugging Face `config.json` (its `text_config` if it has one).

        Raises:
            SpaceError: with the first key that is missing.
        """
        text: Mapping[str, Any] = config.get("text_config") or config
        try:
            heads, hidden = int(text["num_attention_heads"]), int(text["hidden_size"])
            return cls(
                layers=int(text["num_hidden_layers"]),
                hidden=hidden,
                intermediate=int(text["intermediate_size"]),
                heads=heads,
                kv_heads=int(text.get("num_key_value_heads") or heads),
                head_dim=int(text.get("head_dim") or hidden // heads),
                vocab=int(text["vocab_size"]),
                max_position_embeddings=int(text["max_position_embeddings"]),
                tied=bool(text.get("tie_word_embeddings", config.get("tie_word_embeddings", False))),
                dtype=str(text.get("dtype") or text.get("torch_dtype") or config.get("torch_dtype") or "float32"),
                quantization=(config.get("quantization_config") or {}).get("quant_method"),
            )
        except KeyError as error:
            raise SpaceError(
                f"the model's config.json has no {error.args[0]!r}; give a decoder's config.json"
            ) from None

    def weight_bytes(self, bits: int) -> int:
        """Return the bytes of all weights, with `bits` per weight in the linear layers and at least 16 in the rest.

        With hidden size h, head size d, n query heads, k key-value heads, intermediate size f, L layers and vocabulary
        V, the linear layers have L (h d (2 n + 2 k) + 3 h f) weights. The rest is the token embedding and an untied
        head (V h each) and the norms, h (2 L + 1). Biases and scales are left out, so the result is slightly low.
        """
        attention = self.hidden * self.head_dim * (2 * self.heads + 2 * self.kv_heads)
        linear = self.layers * (attention + 3 * self.hidden * self.intermediate)
        rest = self.vocab * self.hidden * (1 if self.tied else 2) + self.hidden * (2 * self.layers + 1)
        return (linear * bits + rest * max(bits, 16)) // 8

    def kv_bytes_per_token(self, bytes_per_element: float) -> int:
        """Return the KV cache's bytes of one token: 2 × layers × kv_heads × head_dim × bytes per element."""
        return int(2 * self.layers * self.kv_heads * self.head_dim * bytes_per_element)


@dataclass(frozen=True)
class Context:
    """What a space is resolved for. None means unknown, and an unknown fact excludes nothing.

    Attributes:
        hardware: the card.
        engine_version: the engine's version, such as `0.25.1`.
        flags: option strings of the installed `vllm serve`; a parameter with another flag is dropped.
        model: the shape of the model.
        packages: packages that the engine's environment can import.
        concurrency: requests in flight at most.
        input_len, output_len: tokens of the longest prompt and of the longest answer.
        draft_model: a small model for speculative decoding.
        checkpoints: the checkpoint of each quantization method that a study offers.
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
    draft_model: str | None = None
    checkpoints: Mapping[str, str] = field(default_factory=dict)
    base_argv: tuple[str, ...] = ()


def _model_facts(model: ModelShape | None) -> dict[str, object]:
    names = ("layers", "hidden", "intermediate", "heads", "kv_heads", "head_dim", "vocab", "max_position_embeddings")
    facts: dict[str, object] = {f"model.{name}": None if model is None else getattr(model, name) for name in names}
    facts["model.dtype"] = None if model is None else model.dtype.removeprefix("torch.")
    facts["model.quantization"] = None if model is None else (model.quantization or "none")
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
        "engine.version": version,
        "engine.flags": context.flags,
        "engine.packages": context.packages,
        "workload.concurrency": context.concurrency,
        "workload.input_len": context.input_len,
        "workload.output_len": context.output_len,
        **_model_facts(context.model),
    }
    return {name: UNKNOWN if value is None else value for name, value in facts.items()}


FACT_NAMES = frozenset(facts_of(Context(HardwareProfile("", "", "cpu", None, None, None))))
"""The names of all facts that an expression may use."""


def shown_fact(name: str, value: object) -> str:
    """Return a fact as text: a version with dots, a compute capability such as 7.5."""
    if isinstance(value, tuple):
        return ".".join(str(part) for part in value)
    return "unknown" if value is UNKNOWN else str(value)
