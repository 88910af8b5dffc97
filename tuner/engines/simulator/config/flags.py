"""The command line of `vllm serve`, read as vLLM 0.15 to 0.32 read it; what cannot be read is refused as vLLM does."""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Sequence
from typing import Any, NoReturn

_HUMAN = re.compile(r"(\d+(?:\.\d+)?)([kKmMgGtT]?)")
_FACTORS = {"": 1, "k": 10**3, "K": 2**10, "m": 10**6, "M": 2**20, "g": 10**9, "G": 2**30, "t": 10**12, "T": 2**40}
_SWITCHES = (
    *("enable-prefix-caching", "enable-chunked-prefill", "async-scheduling", "enforce-eager"),
    *("scheduler-reserve-full-isl", "disable-log-stats", "enable-log-requests", "disable-uvicorn-access-log"),
    *("calculate-kv-scales", "trust-remote-code", "disable-cascade-attn", "enable-flashinfer-autotune"),
)
_TEXTS = (
    *("dtype", "quantization", "kv-cache-dtype", "attention-backend", "scheduling-policy", "performance-mode"),
    *("load-format", "generation-config", "served-model-name", "tokenizer", "host", "revision", "seed", "port"),
    *("prefix-caching-hash-algo", "uvicorn-log-level", "tokenizer-mode", "download-dir", "shutdown-timeout"),
)
_NUMBERS = (
    *("max-model-len", "max-num-seqs", "max-num-batched-tokens", "block-size", "kv-cache-memory-bytes"),
    *("max-cudagraph-capture-size", "long-prefill-token-threshold", "stream-interval", "api-server-count"),
    *("max-num-active-seqs", "max-num-queued-reqs", "max-num-queued-tokens", "tensor-parallel-size"),
    *("pipeline-parallel-size", "data-parallel-size"),
)
_SHARES = ("gpu-memory-utilization", "watermark", "cpu-offload-gb", "swap-space")
_OBJECTS = ("compilation-config", "speculative-config", "override-generation-config")
_SHORT = {
    "-O": "--optimization-level",
    "-q": "--quantization",
    "-cc": "--compilation-config",
    "-sc": "--speculative-config",
    "-tp": "--tensor-parallel-size",
    "-pp": "--pipeline-parallel-size",
    "-dp": "--data-parallel-size",
    "-asc": "--api-server-count",
    "--device-memory-utilization": "--gpu-memory-utilization",
}
_LEVEL = re.compile(r"-O(\d+)")


class FlagError(ValueError):
    """A word of the command line that vLLM would refuse; the message is one line."""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise FlagError(message)


def parse_flags(words: Sequence[str]) -> dict[str, Any]:
    """Return what was said, by the flag's name with underscores; None where nothing was.

    Args:
        words: the flags after `vllm serve MODEL`.

    Raises:
        FlagError: for an unknown flag or a value that cannot be read.
    """
    known, rest = _parser().parse_known_args([word for each in words for word in _spelled(each)])
    if rest:
        raise FlagError(f"unrecognized arguments: {' '.join(rest)}")
    return vars(known)


def flag_names() -> frozenset[str]:
    """Return every option string that is known, as `vllm serve --help=all` would list them."""
    return frozenset(_parser()._option_string_actions) - {"-h", "--help"} | {*_SHORT}


def _parser() -> _Parser:
    parser = _Parser(prog="vllm serve", allow_abbrev=False, add_help=False)
    for name in _SWITCHES:
        parser.add_argument(f"--{name}", action=argparse.BooleanOptionalAction, default=None)
    for name in _TEXTS:
        parser.add_argument(f"--{name}")
    for name in _NUMBERS:
        parser.add_argument(f"--{name}", type=_whole)
    for name in _SHARES:
        parser.add_argument(f"--{name}", type=float)
    for name in _OBJECTS:
        parser.add_argument(f"--{name}", type=_object, action=_Merge)
    parser.add_argument("--optimization-level", type=_whole)
    parser.add_argument("--cudagraph-capture-sizes", type=_whole, nargs="+")
    return parser


def _spelled(word: str) -> list[str]:
    """Return a word under the flag's long name: `-O2`, `-cc.cudagraph_mode=NONE`, `--max_num_seqs=8`."""
    level = _LEVEL.fullmatch(word)
    if level:
        return ["--optimization-level", level[1]]
    flag, equals, value = word.partition("=")
    if not flag.startswith("-"):
        return [word]
    flag, dot, key = flag.partition(".")
    flag = _SHORT.get(flag, flag)
    flag = flag.replace("_", "-") if flag.startswith("--") else flag
    if dot and equals:
        return [flag, json.dumps(_nested(key.split("."), _value(value)))]
    return [flag, value] if equals else [flag]


def _nested(keys: list[str], value: object) -> object:
    return {keys[0]: _nested(keys[1:], value)} if keys else value


def _value(text: str) -> object:
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return text


class _Merge(argparse.Action):
    """Adds what a flag says to what it said before, as vLLM does with `-cc.mode=… -cc.cudagraph_mode=…`."""

    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: Any = None) -> None:
        setattr(namespace, self.dest, {**(getattr(namespace, self.dest) or {}), **values})


def _whole(text: str) -> int:
    """Read a whole number, with vLLM's suffixes: 16k is 16,000 and 16K 16,384."""
    found = _HUMAN.fullmatch(text)
    value = None if found is None else float(found[1]) * _FACTORS[found[2]]
    if value is None or value != int(value):
        raise argparse.ArgumentTypeError(f"invalid int value: {text!r}")
    return int(value)


def _object(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except json.JSONDecodeError:
        value = None
    if not isinstance(value, dict):
        raise argparse.ArgumentTypeError(f"Value {text} cannot be converted to JSON.")
    return value
