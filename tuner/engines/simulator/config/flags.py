"""Reads the command line of `vllm serve` as vLLM 0.15 to 0.32 do, and refuses what they refuse."""

from __future__ import annotations

import argparse
import difflib
import json
import math
import re
from collections.abc import Sequence
from typing import Any, NoReturn

from search_spaces.rendering.words import VLLM_NAMES, dotted_object, one_spelling

_NUMBER_WITH_SUFFIX = re.compile(r"(\d+(?:\.\d+)?)([kKmMgGtT]?)")
_SUFFIX_FACTORS = {
    **{"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12},
    **{"K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40},
}
_BOOLEAN_FLAGS = (
    *("enable-prefix-caching", "enable-chunked-prefill", "async-scheduling", "enforce-eager"),
    *("scheduler-reserve-full-isl", "disable-log-stats", "enable-log-requests", "disable-uvicorn-access-log"),
    *("calculate-kv-scales", "trust-remote-code", "disable-cascade-attn", "enable-flashinfer-autotune"),
)
_TEXT_FLAGS = (
    *("dtype", "quantization", "kv-cache-dtype", "attention-backend", "scheduling-policy", "performance-mode"),
    *("load-format", "generation-config", "served-model-name", "tokenizer", "host", "revision", "seed", "port"),
    *("prefix-caching-hash-algo", "uvicorn-log-level", "tokenizer-mode", "download-dir", "shutdown-timeout"),
)
_INTEGER_FLAGS = (
    *("max-model-len", "max-num-seqs", "max-num-batched-tokens", "block-size", "kv-cache-memory-bytes"),
    *("max-cudagraph-capture-size", "long-prefill-token-threshold", "stream-interval", "api-server-count"),
    *("max-num-active-seqs", "max-num-queued-reqs", "max-num-queued-tokens", "tensor-parallel-size"),
    *("pipeline-parallel-size", "data-parallel-size"),
)
_FLOAT_FLAGS = ("gpu-memory-utilization", "watermark", "cpu-offload-gb", "swap-space")
_JSON_FLAGS = ("compilation-config", "speculative-config", "override-generation-config")
_MOST_DOTS = 20


class FlagError(ValueError):
    """An argument that vLLM would refuse; the message is one line."""


class UnknownFlagError(FlagError):
    """A flag that the simulator does not read, although vLLM may have it."""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise FlagError(message)


def parse_flags(arguments: Sequence[str]) -> dict[str, Any]:
    """Return the value of each flag under its name with underscores; None for a flag that is not given.

    Args:
        arguments: the arguments after `vllm serve MODEL`.

    Raises:
        UnknownFlagError: for a flag that is not simulated, which vLLM may have.
        FlagError: for a value of the wrong type.
    """
    flags, rest = _parser().parse_known_args(_joined_keys(one_spelling(arguments)))
    if rest:
        known = sorted(name for name in flag_names() if name.startswith("--"))
        near = difflib.get_close_matches(rest[0], known, n=1)
        hint = f"did you mean {near[0]}?" if near else "measure that with the engine vllm"
        raise UnknownFlagError(f"{' '.join(rest)}: not simulated; {hint}")
    return vars(flags)


def flag_names() -> frozenset[str]:
    """Return every option string that the simulator reads, as `vllm serve --help=all` lists them."""
    options = frozenset(_parser()._option_string_actions) - {"-h", "--help"}
    return options | {name for name, long in VLLM_NAMES.items() if long in options}


def _parser() -> _Parser:
    parser = _Parser(prog="vllm serve", allow_abbrev=False, add_help=False)
    for name in _BOOLEAN_FLAGS:
        parser.add_argument(f"--{name}", action=argparse.BooleanOptionalAction, default=None)
    for name in _TEXT_FLAGS:
        parser.add_argument(f"--{name}")
    for name in _INTEGER_FLAGS:
        parser.add_argument(f"--{name}", type=_integer)
    for name in _FLOAT_FLAGS:
        parser.add_argument(f"--{name}", type=float)
    for name in _JSON_FLAGS:
        parser.add_argument(f"--{name}", type=_json_object)
    parser.add_argument("--optimization-level", type=_integer)
    parser.add_argument("--cudagraph-capture-sizes", type=_integer, nargs="+")
    return parser


def _joined_keys(words: Sequence[str]) -> list[str]:
    """Return the words, with all `--flag.key VALUE` of a flag joined to one `--flag {"key": VALUE}` at the end."""
    others: list[str] = []
    flags: dict[str, None] = {}
    rest = iter(words)
    for word in rest:
        flag, dot, key = word.partition(".")
        if not dot or not flag.startswith("--"):
            others.append(word)
            continue
        if flag.removeprefix("--") not in _JSON_FLAGS:
            raise FlagError(f"argument {word}: {flag} has no keys")
        if next(rest, None) is None:
            raise FlagError(f"argument {word}: expected one argument")
        if key.count(".") > _MOST_DOTS:
            raise FlagError(f"argument {flag}: a key with more than {_MOST_DOTS} dots")
        flags[flag] = None
    return [*others, *(word for flag in flags for word in (flag, json.dumps(dotted_object(flag, words))))]


def _integer(text: str) -> int:
    """Return a whole number with vLLM's suffixes: 16k is 16,000 and 16K is 16,384."""
    match = _NUMBER_WITH_SUFFIX.fullmatch(text)
    value = None if match is None else float(match[1]) * _SUFFIX_FACTORS[match[2]]
    if value is None or not math.isfinite(value) or value != int(value):
        raise argparse.ArgumentTypeError(f"invalid int value: {text!r}")
    return int(value)


def _json_object(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise argparse.ArgumentTypeError(f"Value {text} cannot be converted to JSON.")
    return value
