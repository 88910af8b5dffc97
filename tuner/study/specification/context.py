"""The context of a study's model, which no request of its workload may exceed."""

from __future__ import annotations

from collections.abc import Sequence

from search_spaces import ModelShape
from search_spaces.rendering.words import one_spelling, value_after, whole_number
from search_spaces.schema import VLLM
from tuner.engines.kinds import kind_of
from tuner.errors import SettingError
from tuner.workloads.spec import Workload
from tuner.workloads.suite import Suite
from tuner.workloads.traffic import Traffic

_OVERRIDES = ("--hf-overrides", "--json-model-override-args")
"""Flags that replace values of config.json."""


def longest_context(
    shape: ModelShape | None, engine: str, arguments: Sequence[str], version: tuple[int, ...] | None = None
) -> int | None:
    """Return the tokens of the longest request that a server accepts; None if that is not known.

    vLLM's `--max-model-len` decides where it is given: whether vLLM allows more than the model's own context depends on
    its version and environment. Another engine's flag can lengthen the context.

    Args:
        shape: of the model.
        engine: that serves it.
        arguments: of the server.
        version: of vLLM; None: any.
    """
    words = one_spelling(arguments)
    flag = kind_of(engine).context_flag
    given = whole_number(value_after(flag, words) or "") if flag in words else None
    if shape is None or any(each in words for each in _OVERRIDES):
        return given
    own = shape.longest_context(version)
    return (given if engine == VLLM else max(given, own)) if given else own


def too_long(workload: Workload, context: int) -> SettingError:
    """Return the error for a workload whose longest request exceeds the model's context, in tokens."""
    load = workload.longest_workload if isinstance(workload, Suite) else workload
    if isinstance(load, Traffic):
        name = max(load.sent_classes, key=lambda name: load.classes[name].longest())
        rule = (
            f"class {name!r} has requests of up to {load.longest_request} tokens, more than the model's context of "
            f"{context}"
        )
        return SettingError("workload", None, rule, "lower its lengths")
    rule = f"requests of {load.input_len} + {load.output_len} tokens exceed the model's context of {context}"
    return SettingError("input_len", None, rule, "lower {input_len} or {output_len}")
