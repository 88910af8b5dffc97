"""The number formats of a quantized checkpoint, as its `config.json` or `hf_quant_config.json` declares them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

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
