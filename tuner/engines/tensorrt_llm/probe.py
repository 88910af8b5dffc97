"""Print as JSON TensorRT-LLM's version, packages beside it and, with `--flags`, its flags and options.

The Python of `trtllm-serve` runs it. Options are those of the LLM API, under the names of
`tuner.engines.tensorrt_llm.options`.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import json
import sys
from collections.abc import Iterator
from typing import Any, get_args

PACKAGES = ("flashinfer", "modelopt", "xgrammar")
"""Packages that options need."""

DEPTH = 2
"""Levels of options, such as `kv_cache_config.dtype`."""

_TYPES = {"integer": "int", "float": "float"}


def version() -> str | None:
    """Return the version of TensorRT-LLM; None if this Python has none."""
    try:
        return importlib.metadata.version("tensorrt_llm")
    except importlib.metadata.PackageNotFoundError:
        return None


def flags() -> list[dict[str, Any]]:
    """Return the flags of `trtllm-serve serve` and the options of its file. The import takes 20 s and more."""
    serve = importlib.import_module("tensorrt_llm.commands.serve").serve
    options = importlib.import_module("tensorrt_llm.llmapi.llm_args").TorchLlmArgs
    named = [_flag(each) for each in serve.params if each.param_type_name == "option"]
    return [*named, *(_entry([f"--config.{name}"]) for name in sorted(set(_options(options, DEPTH))))]


def _flag(option: Any) -> dict[str, Any]:
    choices = getattr(option.type, "choices", None)
    aliases = getattr(option.type, "aliases", {})
    return _entry(
        [*option.opts, *option.secondary_opts],
        None if choices is None else [*map(str, choices), *map(str, aliases)],
        _TYPES.get(option.type.name),
        0 if option.is_flag else None,
    )


def _entry(
    names: list[str], choices: list[str] | None = None, kind: str | None = None, nargs: int | None = None
) -> dict[str, Any]:
    return {"names": names, "choices": choices, "type": kind, "nargs": nargs}


def _options(model: Any, depth: int) -> Iterator[str]:
    for name, field in model.model_fields.items():
        yield name
        if depth > 1:
            for inner in _models(field.annotation):
                yield from (f"{name}.{each}" for each in _options(inner, depth - 1))


def _models(annotation: Any) -> Iterator[Any]:
    """Yield the models in an annotation such as `Optional[Annotated[A | B, ...]]`."""
    if isinstance(annotation, type) and hasattr(annotation, "model_fields"):
        yield annotation
    for part in get_args(annotation):
        yield from _models(part)


def main() -> None:
    found: dict[str, Any] = {"version": version()}
    found["packages"] = [name for name in PACKAGES if importlib.util.find_spec(name) is not None]
    if "--flags" in sys.argv[1:]:
        found["flags"] = flags()
    print("\n" + json.dumps(found))


if __name__ == "__main__":
    main()
