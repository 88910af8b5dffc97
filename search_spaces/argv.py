"""The words of a server's command line in one spelling, as the engines' own parsers read them."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

VLLM_NAMES = {
    "-ac": "--attention-config",
    "-asc": "--api-server-count",
    "-cc": "--compilation-config",
    "-dc": "--diffusion-config",
    "-dcp": "--decode-context-parallel-size",
    "-dp": "--data-parallel-size",
    "-dpa": "--data-parallel-address",
    "-dpb": "--data-parallel-backend",
    "-dpe": "--data-parallel-external-lb",
    "-dph": "--data-parallel-hybrid-lb",
    "-dpl": "--data-parallel-size-local",
    "-dpm": "--data-parallel-multi-port-external-lb",
    "-dpn": "--data-parallel-rank",
    "-dpp": "--data-parallel-rpc-port",
    "-dpr": "--data-parallel-start-rank",
    "-ep": "--enable-expert-parallel",
    "-n": "--nnodes",
    "-O": "--optimization-level",
    "-pcp": "--prefill-context-parallel-size",
    "-pp": "--pipeline-parallel-size",
    "-q": "--quantization",
    "-r": "--node-rank",
    "-sc": "--speculative-config",
    "-tp": "--tensor-parallel-size",
    "--device-memory-utilization": "--gpu-memory-utilization",
}
"""Other names of vLLM's flags, each with the long name that a space uses."""

_NAMES = {
    **VLLM_NAMES,
    "--tp-size": "--tensor-parallel-size",
    "--pp-size": "--pipeline-parallel-size",
    "--dp-size": "--data-parallel-size",
    "-b": "--batch-size",
    "-c": "--ctx-size",
    "-cb": "--cont-batching",
    "-ctk": "--cache-type-k",
    "-ctv": "--cache-type-v",
    "-fa": "--flash-attn",
    "-nocb": "--no-cont-batching",
    "-kvu": "--kv-unified",
    "-no-kvu": "--no-kv-unified",
    "-np": "--parallel",
    "-t": "--threads",
    "-tb": "--threads-batch",
    "-ub": "--ubatch-size",
}
"""Other names of flags of vLLM, SGLang and llama.cpp.

No short name belongs to parameters of two engines. Other flags may clash: `-n` is vLLM's `--nnodes` and llama.cpp's
`--predict`.
"""

_NUMBER_WITH_SUFFIX = re.compile(r"(\d+(?:\.\d+)?)([kKmMgGtT]?)")
SUFFIX_FACTORS = {
    **{"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12},
    **{"K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40},
}
"""vLLM's suffixes of whole numbers."""

_ATTENTION_COPIES, _ATTENTION_SIZE = "--enable-dp-attention", "--attention-data-parallel-size"

_LEVEL = re.compile(r"-O=?(\w+)")
_NUMBER = re.compile(r"-[\d.]")


def one_spelling(argv: Sequence[str]) -> list[str]:
    """Return the words with the long name of each flag and with its value as a word of its own.

    A flag's name has dashes, except behind a dot, where it is a key of a JSON object. vLLM's `-O3` is an optimization
    level, and `-O.KEY` a key of `--compilation-config`. With SGLang's
    `--enable-dp-attention`, data parallelism is of the attention alone and adds no GPUs.
    """
    words: list[str] = []
    for word in argv:
        level = _LEVEL.fullmatch(word)
        if level is not None:
            words += [VLLM_NAMES["-O"], level[1]]
        elif not word.startswith("-") or _NUMBER.match(word):
            words.append(word)
        else:
            name, equals, value = word.partition("=")
            words += [long_name(name), *([value] if equals else [])]
    if _ATTENTION_COPIES in words:
        words = [_ATTENTION_SIZE if word == _NAMES["--dp-size"] else word for word in words]
        words += [_NAMES["--dp-size"], "1"]
    return words


def completed(name: str, flags: Iterable[str]) -> str | None:
    """Return the only long flag that begins with `name`, as argparse completes it; None without one."""
    longer = [flag for flag in flags if name.startswith("--") and flag.startswith(name)]
    return longer[0] if len(longer) == 1 else None


def long_name(name: str) -> str:
    """Return the long name of a flag, with dashes."""
    base, dot, keys = name.partition(".")
    base = VLLM_NAMES["-cc"] if base == "-O" and dot else base
    base = base.replace("_", "-") if base.startswith("--") else base
    return _NAMES.get(base, base) + dot + keys


def whole_number(text: str) -> int | None:
    """Return a whole number with vLLM's suffixes, 16k is 16,000 and 16K is 16,384; None for another text."""
    match = _NUMBER_WITH_SUFFIX.fullmatch(text)
    value = math.inf if match is None else float(match[1]) * SUFFIX_FACTORS[match[2]]
    return int(value) if math.isfinite(value) and value == int(value) else None


def last_place(flag: str, words: Sequence[str]) -> int:
    """Return the place of the last use of a flag.

    Raises:
        ValueError: if the flag is not among the words.
    """
    return len(words) - 1 - list(reversed(words)).index(flag)


def value_after(flag: str, words: Sequence[str]) -> str | None:
    """Return the word after the last use of a flag; None if that word is another flag, or there is none.

    Raises:
        ValueError: if the flag is not among the words.
    """
    index = last_place(flag, words) + 1
    return words[index] if index < len(words) and not words[index].startswith("--") else None


_LOAD_FORMAT = "--load-format"


def has_random_weights(argv: Sequence[str]) -> bool:
    """Return whether arguments make vLLM draw the model's weights at random: `--load-format dummy`."""
    words = one_spelling(argv)
    return _LOAD_FORMAT in words and value_after(_LOAD_FORMAT, words) == "dummy"


def object_of(flag: str, words: Sequence[str]) -> object:
    """Return the JSON value of a flag, given as a whole or in parts; None without the flag, text that is not JSON."""
    parts = dotted_object(flag, words)
    if parts is not None or flag not in words:
        return parts
    return _json_or_text(value_after(flag, words) or "")


def dotted_object(flag: str, words: Sequence[str]) -> dict[str, Any] | None:
    """Return the JSON object that words such as `--flag.a.b VALUE` set together; None if there are none.

    A name that ends in `+` adds to a list. A value that is not JSON is text. With such words, vLLM ignores a value of
    the flag itself.
    """
    content: dict[str, Any] = {}
    places = [index for index, word in enumerate(words) if word.startswith(f"{flag}.")]
    for index in places:
        key = words[index].removeprefix(f"{flag}.")
        text = "".join(words[index + 1 : index + 2])
        _set(content, key.removesuffix("+").split("."), text.split(",") if key.endswith("+") else _json_or_text(text))
    return content if places else None


def _set(content: dict[str, Any], keys: Sequence[str], value: Any) -> None:
    """Set a value in an object of objects; lists are joined, and anything else is replaced."""
    *parents, last = keys
    for parent in parents:
        if not isinstance(content.get(parent), dict):
            content[parent] = {}
        content = content[parent]
    known = content.get(last)
    content[last] = known + value if isinstance(known, list) and isinstance(value, list) else value


def _json_or_text(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


KEY_PATTERN = r"^[^.\[\]]+(\.[^.\[\]]+)*(\[\])?$"
_LIST = "[]"


def put(content: dict[str, Any], key: str, value: object) -> None:
    """Set a key of an object, and make the objects and the list on its way.

    A value of a list that is there already is not added again. Keys of one object must not conflict
    (`conflicting_keys`).
    """
    *parents, last = key.removesuffix(_LIST).split(".")
    for parent in parents:
        content = content.setdefault(parent, {})
    if not key.endswith(_LIST):
        content[last] = value
        return
    values = content.setdefault(last, [])
    if value not in values:
        values.append(value)


def value_at(content: object, key: str) -> object:
    """Return the value of a key in an object, a list for a key that ends in `[]`; None where there is none."""
    for part in key.removesuffix(_LIST).split("."):
        if not isinstance(content, Mapping):
            return None
        content = content.get(part)
    if key.endswith(_LIST):
        return content if isinstance(content, list) else None
    return content


def is_list(key: str) -> bool:
    """Return whether a key adds to a list."""
    return key.endswith(_LIST)


def conflicting_keys(keys: Iterable[str]) -> tuple[str, str] | None:
    """Return two keys that cannot be in one object, as `a` and `a.b` or `a` and `a[]`; None if all can."""
    known = sorted(set(keys))
    for key in known:
        path = key.removesuffix(_LIST)
        for other in known:
            same_list = other != key and other.removesuffix(_LIST) == path
            if same_list or other.startswith(f"{path}."):
                return key, other
    return None
