"""Readers of a model's `config.json`: its layers, its number formats and its longest context.

A plain decoder has one kind of layer: full attention with grouped heads and a gated MLP. What else a file declares is
named by its key, so that nothing is predicted or ruled out for layers that no equation covers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from search_spaces.yaml_file import read_yaml

_SHOWN = 80
"""Most characters of a key with its value in a message."""


def whole_number(config: Mapping[str, Any], key: str) -> int:
    """Return a whole number of at least 1.

    Raises:
        KeyError: if it is missing or null.
        ValueError: if it is no such number, with the key.
    """
    value = config.get(key)
    if value is None:
        raise KeyError(key)
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or value != int(value) or value < 1:
        raise ValueError(f"{key} {value!r}"[:_SHOWN])
    return int(value)


def number(config: Mapping[str, Any], key: str, default: float) -> float:
    """Return a positive number; the default if it is missing or null.

    Raises:
        ValueError: if it is no such number, with the key.
    """
    value = config.get(key)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
        raise ValueError(f"{key} {value!r}"[:_SHOWN])
    return float(value)


_FILE = Path(__file__).with_name("architectures.yaml")
EXPERTS = ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts", "num_moe_experts")
"""Keys of the number of experts of a layer."""
_POSITIONS = "max_position_embeddings"
_LATENT, _ROTATED = "kv_lora_rank", "qk_rope_head_dim"
_HYBRID = "full_attention_interval"
_PATTERNS = ("sliding_window_pattern", "_sliding_window_pattern")
_KINDS = {
    "is_encoder_decoder": "an encoder-decoder",
    _LATENT: "multi-head latent attention (MLA)",
    "block_configs": "a model whose layers differ",
    _HYBRID: "a hybrid of full and linear attention",
    "hybrid_override_pattern": "a hybrid of attention and Mamba",
    "layers_block_type": "a hybrid of attention and Mamba",
    "attn_layer_period": "a hybrid of attention and Mamba",
    "attn_layer_indices": "a hybrid of attention and Mamba",
    "mamba_d_state": "a model with Mamba layers",
    "ssm_cfg": "a model with Mamba layers",
    "linear_attn_config": "a hybrid of full and linear attention",
    "attention_chunk_size": "chunked attention",
    "num_kv_shared_layers": "a KV cache that layers share",
    "cross_attention_layers": "cross-attention",
    "index_topk": "sparse attention",
}
"""Keys that say of which kind a model is, if their value is neither null, false, 0 nor empty."""
_FULL = ("full_attention", "attention")
_SLIDING = "sliding_attention"
_MODAL = ("vision_config", "audio_config", "thinker_config")
"""Keys of parts beside the decoder, which change neither its weights nor its KV cache."""
_LATENT_PARTS = ("index_topk",)
"""Keys of latent attention that only add to its KV cache."""
_SHOWN_VALUE = 40
"""Most characters of a value in a message."""


@dataclass(frozen=True)
class Unread:
    """Why a model is no plain dense decoder: its `kind`, and the `key` of config.json that says so."""

    kind: str
    key: str

    def __str__(self) -> str:
        return f"{self.kind} is not simulated ({self.key} in config.json)"


@dataclass(frozen=True)
class CacheLayers:
    """The layers of a model by what their KV cache holds; layers in neither count are taken to hold nothing.

    Attributes:
        full: layers that hold every token.
        windowed: layers that hold the last `window` tokens.
        window: tokens of a sliding window.
        latent: numbers of a token in a layer (latent attention, MLA); 0: keys and values of each key-value head.
    """

    full: int
    windowed: int = 0
    window: int = 0
    latent: int = 0


@dataclass(frozen=True)
class Architecture:
    """The layers that a config.json declares.

    Attributes:
        dense: whether `ModelShape.weight_bytes` holds for the decoder.
        cache: the layers of the KV cache, as far as they are certain; None if every layer holds every token.
        unread: what the simulator has no model of; None for a plain dense decoder.
        tied: whether the class ties the output head where config.json does not say.
        fills: keys that the class fills in with a number of its own.
    """

    dense: bool
    cache: CacheLayers | None
    unread: Unread | None
    tied: bool = False
    fills: tuple[str, ...] = ()


@cache
def _types() -> Mapping[str, Any]:
    types: Mapping[str, Any] = read_yaml(_FILE).data
    return types


def read_architecture(config: Mapping[str, Any], text: Mapping[str, Any]) -> Architecture:
    """Return the layers of a model; one without a `model_type` is taken for a dense decoder.

    Args:
        config: the whole config.json.
        text: its part for the decoder; the same where it has no such part.

    Raises:
        TypeError, ValueError: for an impossible value.
    """
    name = text.get("model_type") or config.get("model_type")
    known = {} if name is None else _types()["dense"].get(str(name))
    facts: Mapping[str, Any] = known or {}
    special = _special(config, text)
    if special is None and known is None:
        special = Unread("a model of this type", f"model_type {_shown(name)}")
    window = _window(text, facts)
    certain = known is not None or name in _types()["cache"]
    cache = _cache(text, window) if certain and not _varies(text) else CacheLayers(0)
    unread = special
    if unread is None and cache is not None:
        unread = Unread("sliding-window attention", "layer_types" if window is None else f"sliding_window {window}")
    modal = next((key for key in _MODAL if config.get(key)), None)
    if unread is None and modal is not None:
        unread = Unread("a multimodal model", modal)
    return Architecture(
        dense=special is None,
        cache=cache,
        unread=unread,
        tied=bool(facts.get("tied", False)),
        fills=tuple(facts.get("fills", ())),
    )


def _special(config: Mapping[str, Any], text: Mapping[str, Any]) -> Unread | None:
    """Return the first key that makes a model other than a dense decoder with full or sliding attention."""
    for key in EXPERTS:
        if text.get(key) not in (None, False, 0, 1):
            return Unread("a mixture of experts", f"{key} {_shown(text[key])}")
    for key, kind in _KINDS.items():
        value = text.get(key) or (key == "is_encoder_decoder" and config.get(key))
        if value:
            shown = "" if isinstance(value, Mapping | list) else f" {_shown(value)}"
            return Unread(kind, f"{key}{shown}")
    kinds = text.get("layer_types")
    other = [kind for kind in kinds if kind not in (*_FULL, _SLIDING)] if isinstance(kinds, list) else []
    return Unread("a model with layers of another kind", f"layer_types {_shown(other[0])}") if other else None


def _shown(value: object) -> str:
    """Return a value of a file in one short line."""
    text = " ".join(str(value).split())
    return text if len(text) <= _SHOWN_VALUE else f"{text[: _SHOWN_VALUE - 1]}…"


def _window(text: Mapping[str, Any], facts: Mapping[str, Any]) -> int | None:
    """Return the tokens of a sliding window that is shorter than the context; None without one."""
    given = {"sliding_window": facts.get("window"), **text}
    if given["sliding_window"] is None or text.get("use_sliding_window") is False:
        return None
    window = whole_number(given, "sliding_window")
    longest = None if text.get(_POSITIONS) is None else whole_number(text, _POSITIONS)
    return None if longest is not None and window >= longest else window


def _varies(text: Mapping[str, Any]) -> bool:
    """Return whether a key says that layers differ in a way that the counts of `_cache` leave out."""
    return any(text.get(key) for key in _KINDS if key not in (_LATENT, _HYBRID, *_LATENT_PARTS))


def _cache(text: Mapping[str, Any], window: int | None) -> CacheLayers | None:
    """Return the layers of the KV cache, as far as they are counted; None if each of them holds every token."""
    kinds = text.get("layer_types")
    if text.get("num_hidden_layers") is None:
        return CacheLayers(0)
    layers = whole_number(text, "num_hidden_layers")
    if text.get(_LATENT):
        rotated = whole_number(text, _ROTATED) if text.get(_ROTATED) else 0
        return CacheLayers(layers, latent=whole_number(text, _LATENT) + rotated)
    if isinstance(kinds, list):
        sliding, full = kinds.count(_SLIDING), sum(kind in _FULL for kind in kinds)
        if window is None and text.get("sliding_window") is not None:  # as long as the context
            full, sliding = full + sliding, 0
        return None if full == layers else CacheLayers(full, sliding, window or 0)
    if text.get(_HYBRID):
        return CacheLayers(layers // whole_number(text, _HYBRID))
    if window is None:
        return None
    pattern = next((text[key] for key in _PATTERNS if isinstance(text.get(key), int) and text[key] > 0), None)
    full = 0 if pattern is None else layers // pattern
    return CacheLayers(full, layers - full, window)


_KEYS = (
    *("max_position_embeddings", "n_positions", "max_seq_len", "seq_length", "model_max_length"),
    *("max_target_positions", "max_sequence_length", "max_seq_length", "seq_len"),
)
"""Keys of the longest context; vLLM takes the smallest."""
_OWN = "model_max_length"
"""The key that comes before all others."""
_UNSCALED = (
    *("default", "su", "longrope", "llama3", "mrope"),
    *("deepseek_yarn", "deepseek_llama_scaling", "telechat3-yarn"),
)
"""RoPE types whose factor does not lengthen `max_position_embeddings`."""
_YARN = "yarn"
_ORIGINAL = "original_max_position_embeddings"


@dataclass(frozen=True)
class ContextLength:
    """The longest context of a model in tokens.

    Attributes:
        longest: what vLLM derives, from 0.32 on for a model with YaRN.
        yarn: the same for a model with YaRN before 0.32: factor × `original_max_position_embeddings`; None without.
        default: what a server without `--max-model-len` has, where that is less (LongRoPE); None: the longest.
    """

    longest: int
    yarn: int | None = None
    default: int | None = None


def find_context_length(config: Mapping[str, Any], text: Mapping[str, Any]) -> ContextLength:
    """Return the longest context that a config.json declares; arguments as for `read_architecture`.

    Raises:
        KeyError: if no key has a length.
        TypeError, ValueError: for a value of an impossible type.
    """
    lengths = [whole_number(text, key) for key in _KEYS if text.get(key) is not None]
    if not lengths:
        raise KeyError(_KEYS[0])
    declared = whole_number(text, _OWN) if text.get(_OWN) else min(lengths)
    if "gemma3" in str(config.get("model_type", "")):  # its length is scaled already
        return ContextLength(declared)
    factor, yarn, is_long = 1.0, None, False
    for rope in _ropes(text):
        kind = str(rope.get("rope_type") or rope.get("type") or "default")
        is_long = is_long or kind in ("su", "longrope")
        if kind == _YARN:
            yarn = int(number(rope, _ORIGINAL, declared) * number(rope, "factor", 1.0))
        elif kind not in _UNSCALED:
            factor = number(rope, "factor", 1.0)
    original = whole_number(text, _ORIGINAL) if is_long and text.get(_ORIGINAL) is not None else None
    return ContextLength(int(declared * factor), yarn, original)


def _ropes(text: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Yield the RoPE parameters, of each kind of layer where they differ."""
    rope = text.get("rope_parameters") or text.get("rope_scaling")
    if not isinstance(rope, Mapping):
        return
    nested = [each for each in rope.values() if isinstance(each, Mapping)]
    yield from nested or [rope]


FULL_BITS = 16
_FP8_METHODS = ("fp8", "fbgemm_fp8")
_BITS_KEYS = ("bits", "w_bit", "wbits")
_ALGORITHMS = {"FP8": 8, "FP8_PER_CHANNEL_PER_TOKEN": 8, "FP8_PB_WO": 8, "MXFP8": 8, "NVFP4": 4}
_ALGORITHMS |= {"W4A8_AWQ": 4, "W4A16_AWQ": 4, "W4A8_MXFP4_FP8": 4}
"""ModelOpt's names, with the bits of a weight."""
_FOUR_BITS = ("awq", "gptq", "bitsandbytes", "auto-round", "mxfp4", "compressed-tensors")
"""Methods whose checkpoints have at least 4 bits where they do not say how many."""
_CACHE_ALGORITHMS = {"FP8": 8, "NVFP4": 4, "INT8": 8}
_MOST_BITS = 16
_EXCEPTIONS = ("dynamic", "extra_config", "layer_config")
"""Keys of GPTQModel and AutoRound with the layers that have other bits, or none."""
_PLACES = ("quantization_config", "compression_config")
"""Keys of config.json with the formats."""


@dataclass(frozen=True)
class StoredFormat:
    """The formats of a checkpoint's linear layers and of its KV cache.

    Attributes:
        method: the quantization method; None if the checkpoint is not quantized.
        weight_bits: bits of a weight, of the smallest where layers differ; None if the file does not say.
        activation_bits: bits of an activation in the matrix products, of the widest where layers differ; None if the
            file does not say.
        weight_type: `int` or `float`, None if the file does not say.
        cache_bits: bits of a number in the KV cache for `--kv-cache-dtype auto`; None: those of the arithmetic.
        blocks: whether weights have their scales by blocks.
        unread: the key of a format whose bits are not known; None if they are.
    """

    method: str | None = None
    weight_bits: int | None = None
    activation_bits: int | None = None
    weight_type: str | None = None
    cache_bits: int | None = None
    blocks: bool = False
    unread: str | None = None


def declared_format(config: Mapping[str, Any], text: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the `quantization_config` of a config.json or of its part for the decoder; empty without one.

    Raises:
        TypeError: for one that is no object.
    """
    found: Any = next((part[key] for part in (config, text) for key in _PLACES if part.get(key)), {})
    if not isinstance(found, Mapping):
        raise TypeError("quantization_config is no object")
    return found


def of_quant_file(content: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the `quantization_config` that ModelOpt's `hf_quant_config.json` stands for, as vLLM reads it."""
    inner = content.get("quantization")
    return {"quant_method": "modelopt", **(inner if isinstance(inner, Mapping) else content)}


def stored_format(config: Mapping[str, Any]) -> StoredFormat:
    """Return the formats in a `quantization_config`; an empty one is not quantized.

    Read are compressed-tensors (`config_groups`), FP8, bitsandbytes, ModelOpt (`quant_algo`), and methods with a key
    `bits`, such as AWQ, GPTQ and AutoRound. Another one has its method and `unread`.

    Raises:
        TypeError, ValueError, AttributeError: for a value of an impossible type.
    """
    if not config:
        return StoredFormat()
    inner = config.get("quantization")
    content = {**config, **inner} if isinstance(inner, Mapping) else config
    method = content.get("quant_method") or ("modelopt" if content.get("quant_algo") else None)
    if method is None:
        return StoredFormat("unknown", unread="quantization_config without quant_method")
    return _weights(str(method), content, _cache_bits(content))


def _weights(method: str, content: Mapping[str, Any], cache_bits: int | None) -> StoredFormat:
    if isinstance(content.get("config_groups"), Mapping):
        return _of_groups(method, content["config_groups"], cache_bits)
    if method in _FP8_METHODS:
        activations = content.get("activation_scheme")
        blocks = bool(content.get("weight_block_size"))
        return StoredFormat(method, 8, None if activations is None else 8, "float", cache_bits, blocks)
    if method == "bitsandbytes":
        eight = bool(content.get("load_in_8bit"))
        return StoredFormat(method, 8 if eight else 4, None, "int" if eight else "float")
    algorithm = None if content.get("quant_algo") is None else str(content["quant_algo"])
    if algorithm in _ALGORITHMS:
        plain = algorithm == "FP8"  # one scale for each matrix, as vLLM's own FP8
        return StoredFormat(
            method, _ALGORITHMS[algorithm], 8 if plain else None, "float" if plain else None, cache_bits
        )
    bits = next((content[key] for key in _BITS_KEYS if content.get(key) is not None), None)
    if isinstance(bits, float) and not bits.is_integer():  # the mean of an EXL2 checkpoint
        return StoredFormat(method, cache_bits=cache_bits, unread=f"bits {bits:g}")
    if bits is not None:
        unread = "lm_head true" if content.get("lm_head") is True else _exceptions(content)
        return StoredFormat(method, _checked(bits), None, "int", cache_bits, unread=unread)
    unread = f"quant_method {method}" if algorithm is None else f"quant_algo {algorithm}"
    unread = None if method in _FOUR_BITS else unread
    return StoredFormat(method, cache_bits=cache_bits, unread=unread)


def _exceptions(content: Mapping[str, Any]) -> str | None:
    """Return the key that gives some layers other bits than the rest; None without one."""
    return next((key for key in _EXCEPTIONS if content.get(key)), None)


def _of_groups(method: str, groups: Mapping[str, Any], cache_bits: int | None) -> StoredFormat:
    """Return the formats of compressed-tensors: each group of layers has `weights` and maybe `input_activations`."""
    weights = [group["weights"] for group in groups.values() if group.get("weights")]
    if not weights:
        return StoredFormat(method, cache_bits=cache_bits, unread="config_groups without weights")
    inputs = [group.get("input_activations") or {} for group in groups.values() if group.get("weights")]
    types = {str(each.get("type", "int")) for each in weights}
    return StoredFormat(
        method,
        min(_checked(each["num_bits"]) for each in weights),
        max(_checked(each.get("num_bits", FULL_BITS)) for each in inputs),
        types.pop() if len(types) == 1 else None,
        cache_bits,
    )


def _cache_bits(content: Mapping[str, Any]) -> int | None:
    """Return the bits of a number in the KV cache that a checkpoint has scales for; None without."""
    scheme = content.get("kv_cache_scheme")
    if isinstance(scheme, Mapping) and scheme.get("num_bits") is not None:
        return _checked(scheme["num_bits"])
    algorithm = content.get("kv_cache_quant_algo")
    return _CACHE_ALGORITHMS.get(str(algorithm).upper())


def _checked(bits: object) -> int:
    if isinstance(bits, bool) or not isinstance(bits, int) or not 1 <= bits <= _MOST_BITS:
        raise ValueError(f"a weight of {bits!r} bits")
    return bits
