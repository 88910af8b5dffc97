"""Answer `tuner/engines/server/probe.py` for TensorRT-LLM. The Python of `trtllm-serve` runs it.

Options are the fields of the LLM API's arguments, which the server reads from a
YAML file; `tuner.engines.tensorrt_llm.options` names them `--config.KEY`.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from typing import Any, get_args

DISTRIBUTION = "tensorrt_llm"

PACKAGES = ("flashinfer", "modelopt", "xgrammar")
"""Optional packages that some options need."""

DEPTH = 2
"""Levels of nested options that are listed: `kv_cache_config.dtype` has two."""

_TYPES = {"integer": "int", "float": "float"}
"""Names of types in click, and in Python; other values are not checked."""


def flags() -> list[dict[str, Any]]:
    """Return the flags of `trtllm-serve serve` and the options of its YAML file. The import takes 20 s or more."""
    serve = importlib.import_module("tensorrt_llm.commands.serve").serve
    options = importlib.import_module("tensorrt_llm.llmapi.llm_args").TorchLlmArgs
    named = [_flag(each) for each in serve.params if each.param_type_name == "option"]
    unchecked = {"choices": None, "type": None, "nargs": None}
    return [*named, *({"names": [f"--config.{name}"], **unchecked} for name in sorted(set(_options(options, DEPTH))))]


def _flag(option: Any) -> dict[str, Any]:
    """Return a flag of a click option; `nargs` is 0 for a switch without a value."""
    choices, aliases = getattr(option.type, "choices", None), getattr(option.type, "aliases", {})
    return {
        "names": [*option.opts, *option.secondary_opts],
        "choices": None if choices is None else [*map(str, choices), *map(str, aliases)],
        "type": _TYPES.get(option.type.name),
        "nargs": 0 if option.is_flag else None,
    }


def _options(model: Any, depth: int) -> Iterator[str]:
    """Yield the dotted names of a pydantic model's fields, down to `depth` levels."""
    for name, field in model.model_fields.items():
        yield name
        if depth > 1:
            for inner in _models(field.annotation):
                yield from (f"{name}.{each}" for each in _options(inner, depth - 1))


def _models(annotation: Any) -> Iterator[Any]:
    """Yield the pydantic models in an annotation such as `Optional[Annotated[A | B, ...]]`."""
    if isinstance(annotation, type) and hasattr(annotation, "model_fields"):
        yield annotation
    for part in get_args(annotation):
        yield from _models(part)
