"""Requests for LoRA adapters, and requests with a schema: which engines answer them."""

from __future__ import annotations

from typing import Any

import pytest

from tuner.engines.simulator.client import workload_client
from tuner.errors import SettingError
from tuner.study.specification.resolve_workload import check_requests
from tuner.workloads.traffic import Traffic

MODULES = ("--enable-lora", "--lora-modules", "sql=/adapters/sql", "chat=/adapters/chat")
AS_JSON = ("--lora-modules", '{"name": "sql", "path": "/adapters/sql"}')
SCHEMA = {"type": "object", "properties": {"answer": {"type": "boolean"}}}


def traffic(**fields: Any) -> Traffic:
    ask = {"input": 10, "output": 5, **fields}
    return Traffic.model_validate(
        {"arrivals": {"process": "poisson", "rate": 1}, "requests": 3, "classes": {"ask": ask}}
    )


def test_requests_without_either_are_for_every_engine() -> None:
    for engine in ("vllm", "sglang", "llama.cpp", "tensorrt-llm", "openai"):
        check_requests(traffic(), engine, ())


@pytest.mark.parametrize("engine", ["vllm", "sglang", "openai"])
def test_a_schema_is_for_engines_that_enforce_it(engine: str) -> None:
    check_requests(traffic(json_schema=SCHEMA), engine, ())


@pytest.mark.parametrize("engine", ["llama.cpp", "tensorrt-llm"])
def test_a_schema_that_an_engine_would_ignore_is_refused(engine: str) -> None:
    with pytest.raises(SettingError, match=f"structured output is not offered for {engine}"):
        check_requests(traffic(json_schema=SCHEMA), engine, ())


@pytest.mark.parametrize("arguments", [MODULES, AS_JSON])
def test_adapters_that_the_server_names(arguments: tuple[str, ...]) -> None:
    check_requests(traffic(adapters=["sql"]), "vllm", arguments)


def test_an_adapter_that_the_server_does_not_name_is_refused() -> None:
    with pytest.raises(SettingError, match=r"adapters: law.*add -- --enable-lora --lora-modules law=FOLDER"):
        check_requests(traffic(adapters=["sql", "law"]), "vllm", MODULES)


def test_the_adapters_of_a_command_are_its_own_matter() -> None:
    check_requests(traffic(adapters=["sql"]), "openai", ())


@pytest.mark.parametrize("engine", ["sglang", "llama.cpp", "tensorrt-llm"])
def test_adapters_are_refused_for_other_engines(engine: str) -> None:
    with pytest.raises(SettingError, match=f"LoRA adapters are not offered for {engine}"):
        check_requests(traffic(adapters=["sql"]), engine, MODULES)


@pytest.mark.parametrize(
    ("fields", "said"),
    [({"adapters": ["sql"]}, "LoRA adapters are"), ({"json_schema": SCHEMA}, "structured output is")],
)
def test_neither_is_simulated(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(SettingError, match=f"{said} not simulated; measure with"):
        workload_client(traffic(**fields), 0, caching=True, pause_s=0.0)


@pytest.mark.parametrize("schema", [{}, {"a": float("nan")}, {"a": {1, 2}}, {"a": "x" * 70_000}])
def test_what_is_no_schema_is_refused(schema: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"a schema has 1 key or more|it is no JSON"):
        traffic(json_schema=schema)


def test_a_workload_without_either_is_stored_as_before() -> None:
    stored = traffic().model_dump()["classes"]["ask"]
    assert not {"adapters", "json_schema", "priority", "trace"} & set(stored)
    both = traffic(adapters=["sql"], json_schema=SCHEMA)
    assert Traffic.model_validate_json(both.model_dump_json()) == both
