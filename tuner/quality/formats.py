"""The flags and variables of a server that change a model's answers."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

FORMAT_FLAGS = frozenset(
    {"--quantization", "-q", "--kv-cache-dtype", "--speculative-config", "--quantization-config", "--hf-overrides"}
)
"""Flags that change answers: the reference is served without them."""

FORMAT_VARIABLES = frozenset({"VLLM_MARLIN_INPUT_DTYPE"})
"""Environment variables that change answers."""


def split_flags(argv: Sequence[str], flags: Collection[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Split the arguments of a server into those without some flags, and these flags with their values.

    A part of a flag's JSON value (`--speculative-config.method=ngram`) belongs to the flag.
    """
    kept: list[str] = []
    taken: list[str] = []
    taking = False
    for word in argv:
        flag, equals, _ = word.partition("=")
        if flag.startswith("-"):
            taking = flag.split(".")[0].replace("_", "-") in flags
        (taken if taking else kept).append(word)
        if equals and flag.startswith("-"):
            taking = False
    return tuple(kept), tuple(taken)


def without_format_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that do not change answers."""
    return {name: value for name, value in environment.items() if name not in FORMAT_VARIABLES}


def formats_of(model: str, argv: Sequence[str], environment: Mapping[str, str]) -> str:
    """Return what changes the answers of a server, as one line: the same for servers with the same answers.

    Args:
        model: the checkpoint.
        argv: arguments of the server.
        environment: its variables.
    """
    _, taken = split_flags(argv, FORMAT_FLAGS)
    variables = sorted(f"{name}={value}" for name, value in environment.items() if name in FORMAT_VARIABLES)
    return " ".join([model, *taken, *variables])
