"""Describe the engine `openai`: a user's command, any program that serves an OpenAI-compatible API."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tuner.engines.base import Engine, EngineSettings
from tuner.engines.kind import EngineKind, Feature, Found, ModelForm
from tuner.engines.user_command import read_command


def _build(settings: EngineSettings) -> Engine:
    from tuner.engines.openai.engine import OpenAiEngine

    return OpenAiEngine(settings)


def _find(given: str | None) -> Found:
    from tuner.engines.openai.engine import find_program

    return Found(find_program(read_command(given or "")[0]))


def _facts(found: Found, home: Path) -> Iterator[tuple[str, Any]]:
    from tuner.engines.openai.engine import version_of

    yield "version", version_of(found.executable)


OPENAI = EngineKind(
    name="openai",
    title="a command",
    build=_build,
    find=_find,
    facts=_facts,
    setting="server_command",
    features=frozenset({Feature.SCHEMA, Feature.ADAPTERS, Feature.SEVERAL_GPUS}),
    model_form=ModelForm.ANY,
    no_sampling=(
        "the flag of the temperature is not known for a command",
        "leave it out here and in the workload, and set it there",
    ),
)
