"""The words of a trial's command: without the settings of a trial, and grouped into flags with their values."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from tuner.engines.vllm.instances import VISIBLE
from tuner.engines.vllm.kind import VLLM_VARIABLE

_FLAG = re.compile(r"--?[A-Za-z][\w.+-]*(=.*)?", re.DOTALL)
_TRIAL_FLAGS = frozenset({"--host", "--port", "--uvicorn-log-level", "--log-config-file"})
_RANK_FLAGS = frozenset({"--nnodes", "--node-rank", "--master-addr", "--master-port", "--data-parallel-rpc-port"})
_TRIAL_SWITCHES = frozenset(
    {"--disable-uvicorn-access-log", "--disable-log-requests", "--enable-log-requests", "--no-enable-log-requests"}
)
_TRIAL_VARIABLES = re.compile(
    rf"VLLM_LOGGING_\w+|VLLM_CONFIGURE_LOGGING|VLLM_CACHE_ROOT|VLLM_PORT|{VISIBLE}|{VLLM_VARIABLE}"
)
"""Settings of a trial's server that a deployed one does not have: where it listens, what it logs, and its GPU."""


@dataclass(frozen=True)
class Argument:
    """A flag as it is written, such as `--max-num-seqs`, and its values; the flag is empty for words before any."""

    flag: str
    values: tuple[str, ...] = ()


def without_trial_settings(argv: Iterable[str]) -> tuple[str, ...]:
    """Return `argv` without host, port and log settings, given as `--flag value` or as `--flag=value`."""
    return _without(argv, _TRIAL_FLAGS)


def without_rank(argv: Iterable[str]) -> tuple[str, ...]:
    """Return `argv` without the trial's settings and the flags by which the ranks of several nodes meet."""
    return _without(argv, _TRIAL_FLAGS | _RANK_FLAGS)


def nodes_in(argv: Sequence[str]) -> int:
    """Return the nodes of a trial's server: the value of the `--nnodes` that the tuner adds; 1 without it."""
    values = [value for word, value in pairwise(argv) if word == "--nnodes"]
    return int(values[-1]) if values and values[-1].isdecimal() else 1


def _without(argv: Iterable[str], flags: frozenset[str]) -> tuple[str, ...]:
    remaining: list[str] = []
    words = iter(argv)
    for word in words:
        flag = word.partition("=")[0]
        if flag in _TRIAL_SWITCHES:
            continue
        if flag in flags:
            if flag == word:
                next(words, None)
            continue
        remaining.append(word)
    return tuple(remaining)


def without_trial_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables without those of a trial, in the order of their names."""
    kept = {name: value for name, value in environment.items() if not _TRIAL_VARIABLES.fullmatch(name)}
    return dict(sorted(kept.items()))


def paths_in(values: Iterable[str]) -> Iterator[str]:
    """Yield the absolute paths in a flag's values: whole ones, those of `NAME=PATH`, and texts in JSON."""
    for value in values:
        try:
            texts = list(texts_in(json.loads(value)))
        except ValueError:
            texts = [value, value.partition("=")[2]]
        yield from (text for text in texts if text.startswith("/") and len(text) > 1)


def texts_in(content: Any) -> Iterator[str]:
    """Yield the texts of a JSON value; the names of members are none."""
    if isinstance(content, str):
        yield content
    elif isinstance(content, Mapping | list | tuple):
        for part in content.values() if isinstance(content, Mapping) else content:
            yield from texts_in(part)


def arguments_of(words: Iterable[str]) -> tuple[Argument, ...]:
    """Group words into flags with their values, as argparse does; `--flag=value` has one value."""
    found: list[Argument] = []
    for word in words:
        match = _FLAG.fullmatch(word)
        if match is None:
            last = found.pop() if found else Argument("")
            found.append(Argument(last.flag, (*last.values, word)))
        elif match[1] is None:
            found.append(Argument(word))
        else:
            found.append(Argument(word[: match.start(1)], (match[1][1:],)))
    return tuple(found)
