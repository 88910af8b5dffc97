"""The number formats of a quantized checkpoint, as its `config.json` declares them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

FULL_BITS = 16
_FP8_METHODS = ("fp8", "fbgemm_fp8", "fp_quant")
_BITS_KEYS = ("bits", "w_bit", "wbits")
_ALGORITHMS = {"FP8": 8, "NVFP4": 4, "W4A8_AWQ": 4, "W4A16_AWQ": 4}
"""ModelOpt's names, with the bits of a weight."""
_MOST_BITS = 16


@dataclass(frozen=True)
class StoredFormat:
    """The formats of a checkpoint's linear layers.

    Attributes:
        method: the quantization method; None if the checkpoint is not quantized.
        weight_bits: bits of a weight, of the smallest where layers differ; None if the file does not say.
        activation_bits: bits of an activation in the matrix products, of the widest where layers differ; None if the
            file does not say.
        weight_type: `int` or `float`, None if the file does not say.
    """

    method: str | None = None
    weight_bits: int | None = None
    activation_bits: int | None = None
    weight_type: str | None = None


def stored_format(config: Mapping[str, Any]) -> StoredFormat:
    """Return the formats in a `quantization_config`; an empty one is not quantized.

    Read are compressed-tensors (`config_groups`), FP8, bitsandbytes, ModelOpt (`quant_algo`), and methods with a key
    `bits`, such as AWQ, GPTQ and AutoRound.

    Raises:
        TypeError, ValueError, AttributeError: for a value of an impossible type.
    """
    method = config.get("quant_method")
    if method is None:
        return StoredFormat()
    if isinstance(config.get("config_groups"), Mapping):
        return _of_groups(str(method), config["config_groups"])
    if method in _FP8_METHODS:
        activations = config.get("activation_scheme")
        return StoredFormat(str(method), 8, None if activations is None else 8, "float")
    if method == "bitsandbytes":
        eight = bool(config.get("load_in_8bit"))
        return StoredFormat(str(method), 8 if eight else 4, None, "int" if eight else "float")
    algorithm = config.get("quant_algo")
    if algorithm in _ALGORITHMS:
        return StoredFormat(str(method), _ALGORITHMS[algorithm])
    bits = next((config[key] for key in _BITS_KEYS if config.get(key) is not None), None)
    return StoredFormat(str(method), None if bits is None else _checked(bits), None, None if bits is None else "int")


def _of_groups(method: str, groups: Mapping[str, Any]) -> StoredFormat:
    """Return the formats of compressed-tensors: each group of layers has `weights` and maybe `input_activations`."""
    weights = [group["weights"] for group in groups.values() if group.get("weights")]
    if not weights:
        return StoredFormat(method)
    inputs = [group.get("input_activations") or {} for group in groups.values() if group.get("weights")]
    types = {str(each.get("type", "int")) for each in weights}
    return StoredFormat(
        method,
        min(_checked(each["num_bits"]) for each in weights),
        max(_checked(each.get("num_bits", FULL_BITS)) for each in inputs),
        types.pop() if len(types) == 1 else None,
    )


def _checked(bits: object) -> int:
    if isinstance(bits, bool) or not isinstance(bits, int) or not 1 <= bits <= _MOST_BITS:
        raise ValueError(f"a weight of {bits!r} bits")
    return bits
