"""Settings of a trial's server that a deployed one does not have: where it listens, what it logs, and its GPU."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

_TRIAL_FLAGS = frozenset({"--host", "--port", "--uvicorn-log-level", "--log-config-file"})
_TRIAL_SWITCHES = frozenset(
    {"--disable-uvicorn-access-log", "--disable-log-requests", "--enable-log-requests", "--no-enable-log-requests"}
)
_TRIAL_VARIABLES = re.compile(r"VLLM_LOGGING_\w+|VLLM_CONFIGURE_LOGGING|VLLM_CACHE_ROOT|VLLM_PORT|CUDA_VISIBLE_DEVICES")


def without_trial_settings(argv: Iterable[str]) -> tuple[str, ...]:
    """Return `argv` without host, port and log settings, given as `--flag value` or as `--flag=value`."""
    remaining: list[str] = []
    words = iter(argv)
    for word in words:
        flag = word.partition("=")[0]
        if flag in _TRIAL_SWITCHES:
            continue
        if flag in _TRIAL_FLAGS:
            if flag == word:
                next(words, None)
            continue
        remaining.append(word)
    return tuple(remaining)


def without_trial_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables without those of a trial, in the order of their names."""
    kept = {name: value for name, value in environment.items() if not _TRIAL_VARIABLES.fullmatch(name)}
    return dict(sorted(kept.items()))
