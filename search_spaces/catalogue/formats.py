"""Read the number formats of a checkpoint: its `quantization_config`, whatever tool wrote it.

Formats may differ between a model's modules: methods keep some at 16 bits, or give them other bits, by their names.
Each method names modules in its own way: exactly (a name also means the modules in it), as `fnmatch` does (`*`, `?`,
`[0-9]`), or by a regular expression (`re:`). Prefixes differ between checkpoints, so that names count from `layers.N`
on.

Bits of a weight include its scales, b + s / g for a scale of s bits for each g weights:

    AWQ, GPTQ and AutoRound   b + (16 + b z) / g     z: 1 with zero points, which AWQ has and symmetric weights have not
    GPTQ's marlin_24          b / 2 + 1 + 16 / g     of 4 weights 2 are stored, with 2 bits each for their places
    compressed-tensors        b + 16 / g             nothing for a scale of a channel or of a matrix
    FP8 by blocks             8 + 32 / (n m)         blocks of n × m
    NVFP4                     4 + 8 / 16             as AutoRound's nv_fp; its mx_fp is as MXFP4
    MXFP4, MXFP8              b + 8 / 32
    torchao                   b + 32 / g             a scale and a zero point of 16 bits each
    bitsandbytes              4 + 32 / 64; doubly quantized scales: 4 + 8 / 64 + 32 / (64 × 256)
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Any

from search_spaces.catalogue.model_config import shown, whole_number

FULL_BITS = 16
_FP8_METHODS = ("fp8", "fbgemm_fp8", "deepseek_v4_fp8")
MARLIN_24 = "marlin_24"
"""GPTQ's name of a format that stores 2 of 4 weights."""
_BITS_KEYS = ("bits", "w_bit", "wbits")
_ALGORITHMS = {"FP8": 8.0, "FP8_PER_CHANNEL_PER_TOKEN": 8.0, "FP8_PB_WO": 8.0, "MXFP8": 8.25, "NVFP4": 4.5}
_ALGORITHMS |= {"W4A16_NVFP4": 4.5, "W4A8_NVFP4_FP8": 4.5, "MXFP4": 4.25, "W4A8_MXFP4_FP8": 4.25, "INT8_SQ": 8.0}
_ALGORITHMS |= {"W8A8_SQ_PER_CHANNEL": 8.0, "W4A8_AWQ": 4.125, "W4A16_AWQ": 4.125, "NVFP4_AWQ": 4.5}
_ALGORITHMS |= {"FP8_BLOCK_SCALES": 8 + 32 / 128**2, "W4A16_MXFP4": 4.25, "W4A8_MXFP4_MXFP8": 4.25, "INT8": 8.0}
"""ModelOpt's names, with the bits of a weight."""
_KINDS = {"NVFP4_AWQ": None, "AWQ": "int", "INT8": "int", "MXFP": "mx"}
"""Types of the weights by a part of such a name."""
_FOUR_BITS = {"awq": 4.15625, "gptq": 4.125, "auto-round": 4.125, "mxfp4": 4.25, "compressed-tensors": 4.0}
"""Bits of methods whose checkpoints have 4 bits where they do not say how many."""
_CACHE_ALGORITHMS = {"FP8": 8, "NVFP4": 4, "INT8": 8}
_MOST_BITS = 16
_MX_GROUP = 32
"""Weights with one scale in OCP's microscaling formats."""
_PLACES = ("quantization_config", "compression_config", "quantization")
"""Keys of config.json with the formats; the last one is MLX's."""
_KEPT = (
    *("ignore", "exclude_modules", "modules_to_not_convert", "ignored_layers", "exclude", "llm_int8_skip_modules"),
    "modules_in_block_to_not_convert",
)
"""Keys of lists with the modules that stay at 16 bits."""
_PREFIX = re.compile(r"^(?!.*(?:mtp|vis|audio))(?:.*\.)?(?=layers\.)")
"""What comes before `layers.N` of the decoder."""
_ATOMS = r"(?:\\?[\w./$^*+?|\-]|\{\d(?:,\d)?\}|\[[\w\-]+\])*"
_SIMPLE = re.compile(_ATOMS)
_GROUP = re.compile(rf"(?<!\\)\((?:\?[:!=])?{_ATOMS}\)(?![*+{{])")
"""Regular expressions whose time is bounded: no group is repeated, and `_GROUP` is one without another in it."""
_DEEPEST = 8
"""Most groups within one another."""
_MOST_WAYS = 10_000
"""Most ways through the alternatives of a pattern; 80 layers by 7 modules are 560."""
_PREFIXES = ("model.", "model.language_model.", "language_model.model.", "")
"""What a regular expression may expect before `layers.N`."""
_WILD = re.compile(r"(\*|\?|\[!?[^\]]+\])")
"""Parts of a pattern that stand for other characters in `fnmatch`."""
_HEADS = ("lm_head", "language_model.lm_head")
"""Names of the output head."""
_REPEATS = 4
"""Most repetitions in a pattern of a file."""
_MOST_PATTERNS = 2000

Bits = Callable[[str], float]


@dataclass(frozen=True)
class StoredFormat:
    """The formats of a checkpoint's linear layers and of its KV cache.

    Attributes:
        method: the quantization method; None if the checkpoint is not quantized.
        weight_bits: bits of a weight without its scales, of the smallest where layers differ; None if the file does not
            say.
        activation_bits: bits of an activation in the matrix products, of the widest where layers differ; None if the
            file does not say.
        weight_type: `int`, `float`, or `mx` for floats whose scales are powers of two (OCP's microscaling); None if the
            file does not say.
        cache_bits: bits of a number in the KV cache for `--kv-cache-dtype auto`; None: those of the arithmetic.
        blocks: whether weights have their scales by blocks.
        unread: the key of a format whose bits are not known; None if they are.
        bits_of: bits of a weight, with its scales, in a module by its name from `layers.N` on.
        head_bits: bits of a weight of the output head, which only a file that names it quantizes.
    """

    method: str | None = None
    weight_bits: int | None = None
    activation_bits: int | None = None
    weight_type: str | None = None
    cache_bits: int | None = None
    blocks: bool = False
    unread: str | None = None
    bits_of: Bits | None = field(default=None, compare=False)
    head_bits: float = FULL_BITS


def declared_format(config: Mapping[str, Any], text: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the `quantization_config` of a config.json or of its part for the decoder; empty without one.

    Raises:
        TypeError: for one that is no object.
    """
    found: Any = next((part[key] for key in _PLACES for part in (config, text) if part.get(key)), {})
    if not isinstance(found, Mapping):
        raise TypeError("quantization_config is no object")
    return found


def of_quant_file(content: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the `quantization_config` that ModelOpt's `hf_quant_config.json` stands for, as vLLM reads it."""
    inner = content.get("quantization")
    return {"quant_method": "modelopt", **(inner if isinstance(inner, Mapping) else content)}


def stored_format(config: Mapping[str, Any]) -> StoredFormat:
    """Return the formats in a `quantization_config`; an empty one is not quantized.

    Raises:
        TypeError, ValueError, AttributeError: for a value of an impossible type.
    """
    if not config:
        return StoredFormat()
    inner = config.get("quantization")
    content = {**config, **inner} if isinstance(inner, Mapping) else config
    method = content.get("quant_method") or ("modelopt" if content.get("quant_algo") else None)
    if method is None:
        return StoredFormat("unknown", unread="quantization without quant_method")
    cache_bits = _cache_bits(content)
    return replace(_read(str(method), content), cache_bits=cache_bits)


def _read(method: str, content: Mapping[str, Any]) -> StoredFormat:
    if isinstance(content.get("config_groups"), Mapping):
        return _of_groups(method, content)
    if isinstance(content.get("quantized_layers"), Mapping):
        return _of_layers(method, content)
    if method in _READERS:
        return _READERS[method](method, content)
    algorithm = _algorithm(content)
    if algorithm in _ALGORITHMS:
        bits = _ALGORITHMS[algorithm]
        kind = next((kind for part, kind in _KINDS.items() if part in algorithm), None)
        activations = re.search(r"W4A(16|8)_", algorithm)
        stored = StoredFormat(method, int(bits), int(activations[1]) if activations else None, kind)
        if algorithm == "FP8":  # one scale for each matrix, as vLLM's own FP8
            stored = replace(stored, activation_bits=8, weight_type="float")
        return _kept(content, bits, stored)
    stated = next((content[key] for key in _BITS_KEYS if content.get(key) is not None), None)
    if isinstance(stated, float) or (stated is not None and method.startswith("exl")):  # the mean of EXL2 or EXL3
        return StoredFormat(method, unread=f"bits {stated:g}")
    if stated is not None:
        return _of_bits(method, content, _checked(stated))
    if method == "mxfp4":
        return _kept(content, _experts_only(_FOUR_BITS[method]), StoredFormat(method, 4))
    if algorithm is None and "quant_algo" in content:  # ModelOpt quantized nothing, or the KV cache alone
        return StoredFormat()
    if method in _FOUR_BITS:
        return _kept(content, _FOUR_BITS[method], StoredFormat(method))
    unread = f"quant_method {method}" if algorithm is None else f"quant_algo {algorithm}"
    return StoredFormat(method, unread=unread)


def _experts_only(bits: float) -> Bits:
    """Return the bits of vLLM's MXFP4 method, which quantizes experts alone."""
    return lambda name: bits if ".experts." in name else FULL_BITS


def _fp8(method: str, content: Mapping[str, Any]) -> StoredFormat:
    block = content.get("weight_block_size")
    sides = block if isinstance(block, list) else []
    of_scale = math.prod(whole_number({"weight_block_size": side}, "weight_block_size") for side in sides)
    scales = 32 / of_scale if sides else 0.0
    activations = None if content.get("activation_scheme") is None and method != "fbgemm_fp8" else 8
    return _kept(content, 8 + scales, StoredFormat(method, 8, activations, "float", blocks=bool(block)))


def _bitsandbytes(method: str, content: Mapping[str, Any]) -> StoredFormat:
    if content.get("load_in_8bit"):
        return _kept(content, 8, StoredFormat(method, 8, None, "int"))
    scales = 8 / 64 + 32 / (64 * 256) if content.get("bnb_4bit_use_double_quant") else 32 / 64
    return _kept(content, 4 + scales, StoredFormat(method, 4, None, "float"))


def _torchao(method: str, content: Mapping[str, Any]) -> StoredFormat:
    """Return the formats of torchao: `quant_type` has the name of its class, such as Float8WeightOnlyConfig."""
    text = str(content.get("quant_type"))
    found = re.search(r"(int|float|fp)(4|8)_?weight", text, re.IGNORECASE)
    if found is None or "fqn" in text.lower():  # formats by a module's full name
        return StoredFormat(method, unread=f"quant_type {shown(text)}")
    bits, group = int(found[2]), re.search(r"'group_size': (\d+)", f"{text} {content.get('quant_type_kwargs')}")
    scales = 2 * FULL_BITS / int(group[1]) if group else 0.0
    kind = "int" if found[1].lower() == "int" else "float"
    activations = 8 if re.search(r"(int|float)8_?dynamic_?activation", text, re.IGNORECASE) else None
    return _kept(content, bits + scales, StoredFormat(method, bits, activations, kind))


def _quark(method: str, content: Mapping[str, Any]) -> StoredFormat:
    """Return the formats of AMD's Quark: those of all modules, and by patterns those of some (`layer_quant_config`).

    Scales for the KV cache are not read: vLLM's `--kv-cache-dtype auto` leaves the cache at 16 bits.
    """
    parts = {"global_quant_config": content.get("global_quant_config"), **(content.get("layer_quant_config") or {})}
    formats = {name: _quark_weight(part) for name, part in parts.items()}
    unknown = next((name for name, found in formats.items() if found is None), None)
    if unknown is not None or content.get("layer_type_quant_config"):
        key = unknown or "layer_type_quant_config"
        return StoredFormat(method, unread=f"{key} {shown(content.get(key) or parts[key])}")
    known = [(name, found) for name, found in formats.items() if found is not None]
    rest, _, activations, kind = known[0][1]
    own: list[tuple[Matches, float]] = []
    for bits, names in groupby(known[1:], lambda item: item[1][0]):
        matches, pattern = _any_of(tuple(name for name, _ in names))
        if pattern is not None:
            return StoredFormat(method, unread=f"layer_quant_config {shown(pattern)}")
        own.append((matches, bits))
    least = min(found[1] for _, found in known)
    return _kept(content, _by_name(own, rest), StoredFormat(method, least, activations, kind))


def _quark_weight(part: Mapping[str, Any] | None) -> tuple[float, int, int, str] | None:
    """Return the bits of a weight with its scales and without, those of an activation, and the type; None: unknown.

    A list has the steps of a quantization in several steps; the last one is stored.
    """
    weight, inputs = (_last_of((part or {}).get(key)) for key in ("weight", "input_tensors"))
    bits, activations = (_QUARK_BITS.get(str((each or {}).get("dtype"))) for each in (weight, inputs))
    if part is None or "weight" not in part or bits is None or activations is None:
        return None
    name, scale, group = (str((weight or {}).get(key)) for key in ("dtype", "scale_format", "group_size"))
    kind = "int" if "int" in name else "mx" if scale == "e8m0" else "float"
    scales = (16 if kind == "int" else 8) / int(group) if group.isdecimal() and int(group) else 0.0
    return bits + scales, bits, activations, kind


def _last_of(value: Any) -> Mapping[str, Any] | None:
    last = value[-1] if isinstance(value, list) and value else value
    return last if isinstance(last, Mapping) else None


_QUARK_BITS = {"None": FULL_BITS, "bfloat16": FULL_BITS, "float16": FULL_BITS, "fp8_e4m3": 8, "int8": 8, "uint8": 8}
_QUARK_BITS |= {"fp6_e2m3": 6, "fp6_e3m2": 6, "fp4": 4, "int4": 4, "uint4": 4}
"""Quark's names of number formats, with their bits."""

_READERS = {
    **dict.fromkeys(_FP8_METHODS, _fp8),
    **{"bitsandbytes": _bitsandbytes, "quark": _quark, "torchao": _torchao},
}
"""Readers of methods with keys of their own."""


def _of_bits(method: str, content: Mapping[str, Any], bits: int) -> StoredFormat:
    """Return the formats of a method with a key `bits`: AWQ, GPTQ, AutoRound and their kin."""
    group = content.get("group_size", content.get("q_group_size"))
    blocks = isinstance(group, list)
    group = math.prod(whole_number({"group_size": side}, "group_size") for side in group) if blocks else group
    data, activations = str(content.get("data_type")), content.get("act_bits")
    activations = activations if isinstance(activations, int) and activations < FULL_BITS else None
    kind = "mx" if "mx_fp" in data else "float" if "fp" in data else "int"
    scale = FULL_BITS if kind == "int" else 32 if blocks else 8
    zero = bool(content.get("zero_point") if "zero_point" in content else content.get("sym") is False)
    other, unread = _other_bits(content, bits, group, zero, scale)
    default = _with_scales(bits, group, zero, scale)
    if MARLIN_24 in (content.get("checkpoint_format"), method.removeprefix("gptq_")):
        default += 1 - bits / 2
    least = min([bits, *(int(own) for _, own in other)])
    head = default if content.get("lm_head") is True else FULL_BITS
    stored = StoredFormat(method, least, activations, kind, None, blocks, unread, head_bits=_of_head(other, head))
    return _kept(content, _by_name(other, default), stored)


def _by_name(own: Iterable[tuple[Matches, float]], rest: float) -> Bits:
    """Return the bits of the first entry that matches a module's name, else `rest`."""
    return lambda name: next((bits for matches, bits in own if matches(name)), rest)


def _with_scales(bits: int, group: Any, zero: bool, scale: int = FULL_BITS) -> float:
    """Return the bits of a weight with a scale, and a zero point if there is one, for each group."""
    return bits + ((scale + bits * zero) / group if isinstance(group, int) and group > 0 else 0.0)


def _other_bits(
    content: Mapping[str, Any], bits: int, group: Any, zero: bool, scale: int
) -> tuple[list[tuple[Matches, float]], str | None]:
    """Return the bits of modules that differ (GPTQModel, AutoRound), and the key of one that is not read."""
    found = []
    for key in ("dynamic", "extra_config", "layer_config"):
        for pattern, change in (content.get(key) or {}).items():
            sign, text = (pattern[:1], pattern[2:]) if key == "dynamic" and pattern[1:2] == ":" else ("", pattern)
            matches, unknown = _any_of((f"re:{text}" if key == "dynamic" else text,))
            own = FULL_BITS if sign == "-" else (change or {}).get("bits", bits)
            if unknown is not None or not isinstance(own, int):
                return [], key
            own_group = (change or {}).get("group_size", group)
            found.append((matches, own if own >= FULL_BITS else _with_scales(own, own_group, zero, scale)))
    return found, None


def _algorithm(content: Mapping[str, Any]) -> str | None:
    """Return ModelOpt's name of a format, in capitals as vLLM reads it; None if there is none."""
    name = content.get("quant_algo")
    return None if name is None else str(name).upper()


def _of_layers(method: str, content: Mapping[str, Any]) -> StoredFormat:
    """Return the formats of ModelOpt's mixed precision: each quantized module with its algorithm."""
    layers: dict[str, float] = {}
    for name, own in content["quantized_layers"].items():
        algorithm = _algorithm(own)
        if algorithm in (None, "NONE", "UNQUANTIZED"):
            continue
        if algorithm not in _ALGORITHMS:
            return StoredFormat(method, unread=f"quant_algo {shown(algorithm)}")
        layers[_PREFIX.sub("", name)] = _ALGORITHMS[algorithm]

    def bits_of(name: str) -> float:
        parts = name.split(".")  # a module, or one that it is in
        inner = (".".join(parts[:end]) for end in range(len(parts), 1, -1))
        return next((layers[each] for each in inner if each in layers), FULL_BITS)

    least = min(layers.values(), default=FULL_BITS)
    head = next((layers[name] for name in _HEADS if name in layers), FULL_BITS)
    return StoredFormat(method, int(least), bits_of=bits_of, head_bits=head)


def _of_groups(method: str, content: Mapping[str, Any]) -> StoredFormat:
    """Return the formats of compressed-tensors: each group of layers has `weights` and maybe `input_activations`."""
    groups = [group for group in content["config_groups"].values() if group.get("weights")]
    structure = (content.get("sparsity_config") or {}).get("sparsity_structure")
    if structure not in (None, "unstructured", "0:0"):  # the file does not say how much of a weight is stored
        return StoredFormat(method, unread=f"sparsity_structure {shown(structure)}")
    if not groups:  # scales of the KV cache alone
        return StoredFormat()
    weights = [group["weights"] for group in groups]
    if any(each.get("num_bits") is None for each in weights):
        return StoredFormat(method, unread="config_groups without num_bits")
    inputs = [group.get("input_activations") or {} for group in groups]
    types = {"mx" if _is_mx(each) else str(each.get("type", "int")) for each in weights}
    stored = StoredFormat(
        method,
        min(_checked(each["num_bits"]) for each in weights),
        max(_checked(each.get("num_bits", FULL_BITS)) for each in inputs),
        types.pop() if len(types) == 1 else None,
    )
    own, rest = [], float(FULL_BITS)
    for group in groups:
        bits = _group_bits(group["weights"])
        targets = group.get("targets") or ("Linear",)
        named = tuple(each for each in targets if each.startswith("re:") or not each[:1].isupper())
        if len(named) < len(targets):
            rest = bits  # a class, such as Linear
        matches, unknown = _any_of(named)
        if unknown is not None:
            return replace(stored, unread=f"targets {shown(unknown)}")
        own.append((matches, bits))
    return _kept(content, _by_name(own, rest), replace(stored, head_bits=_of_head(own, FULL_BITS)))


def _of_head(own: Iterable[tuple[Matches, float]], default: float) -> float:
    """Return the bits of a weight of the output head, by the names of modules that have bits of their own."""
    return next((bits for matches, bits in own if any(map(matches, _HEADS))), default)


def _is_mx(weights: Mapping[str, Any]) -> bool:
    return weights.get("type") == "float" and weights.get("group_size") == _MX_GROUP


def _group_bits(weights: Mapping[str, Any]) -> float:
    """Return the bits of a weight with its scale in a group of compressed-tensors."""
    bits, group = _checked(weights["num_bits"]), weights.get("group_size")
    if not isinstance(group, int) or group <= 0:
        return bits
    if _is_mx(weights) or (bits == 4 and weights.get("type") == "float"):  # NVFP4, MXFP4 and MXFP8: scales of 8 bits
        return bits + 8 / group
    return _with_scales(bits, group, weights.get("symmetric") is False)


def _kept(content: Mapping[str, Any], bits: float | Bits, stored: StoredFormat) -> StoredFormat:
    """Return the formats with the modules that the file keeps at 16 bits."""
    patterns: list[str] = []
    for key in _KEPT:
        value = content.get(key)
        if isinstance(value, list):
            patterns += [str(each) for each in value]
    is_kept, unknown = _any_of(tuple(dict.fromkeys(patterns)))
    if unknown is not None:
        return replace(stored, unread=stored.unread or f"ignore {shown(unknown)}")

    def bits_of(name: str) -> float:
        return FULL_BITS if is_kept(name) else bits(name) if callable(bits) else bits

    head = FULL_BITS if any(map(is_kept, _HEADS)) else stored.head_bits
    return replace(stored, bits_of=bits_of, head_bits=head)


Matches = Callable[[str], bool]


def _any_of(patterns: tuple[str, ...]) -> tuple[Matches, str | None]:
    """Return whether one of a file's patterns names a module, and a pattern that cannot be tried in bounded time."""
    regular = [pattern for pattern in patterns if pattern.startswith("re:")]
    names = [_PREFIX.sub("", pattern) for pattern in patterns if not pattern.startswith("re:")]
    globs, plain = [name for name in names if _WILD.search(name)], {name for name in names if not _WILD.search(name)}
    unknown = next((each for each in (*globs, *regular) if not _is_bounded(each)), None)
    if unknown is None and len(globs) + len(regular) > _MOST_PATTERNS:
        unknown = f"of {len(patterns)} patterns"
    if unknown is not None:
        return lambda _: False, unknown
    glob = re.compile(rf"(?:^|\.)(?:{'|'.join(map(_expression, globs))})(?:$|\.)")
    compiled = [re.compile(_expression(each)) for each in regular]

    first = {name.partition(".")[0] for name in plain}

    def matches(name: str) -> bool:
        parts = name.split(".")
        begins = [place for place, part in enumerate(parts) if part in first]
        spans = (".".join(parts[a:b]) for a in begins for b in range(a + 1, len(parts) + 1))
        if any(span in plain for span in spans) or (globs and glob.search(name)):
            return True
        return any(each.match(prefix + name) for each in compiled for prefix in _PREFIXES)

    return matches, None


def _is_bounded(pattern: str) -> bool:
    """Return whether a pattern can be tried, and its time has a bound: few repetitions, and no repeated group."""
    expression = _expression(pattern)
    without, ways = _without_groups(expression) if pattern.startswith("re:") else ("", 1)
    if not _SIMPLE.fullmatch(without) or ways > _MOST_WAYS:
        return False
    try:
        re.compile(expression)
    except re.error:
        return False
    return len(re.findall(r"[*+{]", pattern)) <= _REPEATS


def _without_groups(expression: str) -> tuple[str, int]:
    """Return a regular expression with a letter for each group that is not repeated, and the ways through its groups.

    A matcher may try them all: (a|a)(a|a) has four.
    """
    ways = 1
    for _ in range(_DEEPEST):
        for found in _GROUP.finditer(expression):
            optional = expression[found.end() : found.end() + 1] == "?"
            ways *= found[0].count("|") + 1 + optional
        expression = _GROUP.sub("x", expression)
    return expression, ways


def _expression(pattern: str) -> str:
    """Return a pattern of a file as a regular expression."""
    if pattern.startswith("re:"):
        return pattern[3:]
    wild = {"*": ".*", "?": "."}
    parts = enumerate(_WILD.split(pattern))  # every second one is wild
    return "".join(wild.get(part, part.replace("[!", "[^")) if place % 2 else re.escape(part) for place, part in parts)


def mean_bits(bits_of: Bits, modules: Iterable[tuple[int, Iterable[str]]]) -> float:
    """Return the mean bits of a weight in modules.

    Args:
        bits_of: of a module by its name.
        modules: the weights of each, and the names that checkpoints give it; one that the file singles out counts.
    """
    usual, total, weights = bits_of(""), 0.0, 0
    for size, names in modules:
        total += size * next((own for own in map(bits_of, names) if own != usual), usual)
        weights += size
    return total / weights if weights else usual


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
