"""Settings of a trial's server that a deployed one does not have: where it listens, what it logs, and its GPU."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise

_TRIAL_FLAGS = frozenset({"--host", "--port", "--uvicorn-log-level", "--log-config-file"})
_RANK_FLAGS = frozenset({"--nnodes", "--node-rank", "--master-addr", "--master-port", "--data-parallel-rpc-port"})
_TRIAL_SWITCHES = frozenset(
    {"--disable-uvicorn-access-log", "--disable-log-requests", "--enable-log-requests", "--no-enable-log-requests"}
)
_TRIAL_VARIABLES = re.compile(r"VLLM_LOGGING_\w+|VLLM_CONFIGURE_LOGGING|VLLM_CACHE_ROOT|VLLM_PORT|CUDA_VISIBLE_DEVICES")


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


def rank_check(nodes: int) -> str:
    """Return the lines of a script that refuse a start without its node's rank and the address of rank 0."""
    return (
        'if ! [[ "${NODE_RANK:-}" =~ ^[0-9]+$ && -n "${MASTER_ADDR:-}" ]] ||'
        f" ((10#$NODE_RANK >= {nodes})); then\n"
        f"  printf 'best_serve.sh: the server runs on {nodes} nodes; start this on each, with NODE_RANK=0 to "
        f"{nodes - 1}, and MASTER_ADDR=address of rank 0\\n' >&2\n"
        "  exit 2\nfi\n"
        'if [[ "$NODE_RANK" != 0 && "${1:-}" == --verify ]]; then\n'
        "  printf 'best_serve.sh: --verify runs on the node of rank 0; start the others without it\\n' >&2\n"
        "  exit 2\nfi\n"
        'rank=(); if [[ "$NODE_RANK" != 0 ]]; then rank=(--headless); fi\n'
    )


def rank_words(nodes: int) -> str:
    """Return the words of a script's command by which a rank meets the others; empty for a server on one node."""
    if nodes == 1:
        return ""
    meeting = '--master-addr "$MASTER_ADDR" --master-port "${MASTER_PORT:-29501}"'
    return f'--nnodes {nodes} --node-rank "$NODE_RANK" {meeting} "${{rank[@]}}" '
