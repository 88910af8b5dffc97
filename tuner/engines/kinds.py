"""The engines by name: those of the tuner, and those that installed packages register as `tuner.engines`."""

from __future__ import annotations

from functools import cache

from records.plugins import plugins, unusable
from tuner.engines.kind import EngineKind, Feature
from tuner.engines.llama_cpp.kind import LLAMA_CPP
from tuner.engines.openai.kind import OPENAI
from tuner.engines.sglang.kind import SGLANG
from tuner.engines.tensorrt_llm.kind import TENSORRT_LLM
from tuner.engines.vllm.kind import VLLM
from tuner.errors import SettingError

GROUP = "tuner.engines"
"""The entry point group: each entry is an `EngineKind`."""

SIMULATED = "simulated"
"""What a user gives for a simulated vLLM."""

_OF_VLLM = frozenset({"auto", SIMULATED, "simulated vllm"})
"""Names of vLLM and its simulation; the last one is in studies."""


@cache
def kinds() -> dict[str, EngineKind]:
    """Return every engine that can be measured, by its name.

    Raises:
        PluginError: for a registered engine that cannot be loaded, or has the name of another one.
    """
    found = {each.name: each for each in (VLLM, LLAMA_CPP, OPENAI, SGLANG, TENSORRT_LLM)}
    for entry, kind in plugins(GROUP, EngineKind):
        if kind.name in found:
            raise unusable(entry, f"has the name of another engine, {kind.name!r}")
        found[kind.name] = kind
    return found


def names() -> tuple[str, ...]:
    """Return the names that a user may give: those of `kinds`, `simulated`, and `auto` for vLLM or its simulation."""
    return ("auto", *kinds(), SIMULATED)


def kind_of(name: str) -> EngineKind:
    """Return an engine by its name; a simulated one is vLLM.

    Raises:
        SettingError: if there is none of that name.
    """
    if name in _OF_VLLM:
        return VLLM
    found = kinds().get(name)
    if found is None:
        rule = f"no engine has this name; engines: {', '.join(names())}"
        raise SettingError("engine", name, rule, "install the package that offers it, or give one of these")
    return found


def with_feature(feature: Feature) -> tuple[str, ...]:
    """Return the names of the engines that have a feature."""
    return tuple(name for name, each in kinds().items() if each.can(feature))
