"""Describe the engine `openai`: a user's command, any program that serves an OpenAI-compatible API."""

from __future__ import annotations

from tuner.engines.kind import EngineKind, Feature, ModelForm, at_first_use

OPENAI = EngineKind(
    name="openai",
    title="a command",
    build=at_first_use("tuner.engines.openai.engine", "OpenAiEngine"),
    find=at_first_use("tuner.engines.openai.engine", "find"),
    facts=at_first_use("tuner.engines.openai.engine", "facts"),
    setting="server_command",
    features=frozenset({Feature.SCHEMA, Feature.ADAPTERS, Feature.SESSIONS, Feature.SEVERAL_GPUS}),
    model_form=ModelForm.ANY,
    no_sampling=(
        "the flag of the temperature is not known for a command",
        "leave it out here and in the workload, and set it there",
    ),
)
