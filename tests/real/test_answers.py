"""LoRA adapters, schemas, priorities and a limited queue: one server of a real vLLM that has them all."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.real.lora_adapter import make_adapter
from tests.real.servers import NEVER, started
from tuner.engines.vllm.engine import VllmEngine, VllmServer
from tuner.loadgen.result import read_records
from tuner.workloads.results import RequestStatus
from tuner.workloads.traffic import Traffic

DIGIT = {
    "type": "object",
    "properties": {"digit": {"type": "integer", "minimum": 1, "maximum": 5}},
    "required": ["digit"],
}
TRAFFIC = {
    "arrivals": {"process": "poisson", "rate": 4},
    "requests": 24,
    "warmup_requests": 4,
    "classes": {
        "adapted": {"input": 32, "output": 16, "adapters": ["red", "blue"]},
        "structured": {"input": 32, "output": 96, "json_schema": {**DIGIT, "additionalProperties": False}},
    },
}
LIMIT = 24
CROWD = {
    "arrivals": {"process": "poisson", "rate": 10_000},
    "requests": 2 * LIMIT,
    "warmup_requests": 2,
    "classes": {
        "patient": {"input": 32, "output": 32, "priority": 5},
        "urgent": {"input": 32, "output": 32, "priority": -5},
    },
}
"""All requests come at once, twice as many as the server admits."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("artifacts")


@pytest.fixture(scope="module")
def server(engine: VllmEngine, tiny_model: Path, folder: Path) -> Iterator[VllmServer]:
    modules = [f"{name}={make_adapter(folder / name, seed)}" for seed, name in enumerate(("red", "blue"))]
    adapters = ("--enable-lora", "--max-lora-rank", "8", "--lora-modules", *modules)
    queue = ("--scheduling-policy", "priority", "--max-num-seqs", "2", "--max-num-queued-reqs", str(LIMIT))
    running = started(engine, tiny_model, Traffic.model_validate(TRAFFIC), folder, *adapters, *queue)
    yield running
    running.stop()


def test_adapters_and_schemas_are_served(server: VllmServer, folder: Path) -> None:
    repeat = server.benchmark(Traffic.model_validate(TRAFFIC), 0, NEVER)
    records = read_records(folder / "requests-0.jsonl.gz")
    adapted = [record for record in records if record.name == "adapted"]
    structured = [record for record in records if record.name == "structured"]
    assert len(adapted) + len(structured) == repeat.offered == 24
    assert {(record.status, record.output_tokens) for record in adapted} == {(RequestStatus.COMPLETED, 16)}
    # a digit in its object is shorter than 96 tokens; a random model may fill some with blanks, and these are cut
    complete = [record for record in structured if record.status is RequestStatus.COMPLETED]
    assert complete
    assert all((record.output_tokens or 0) < 96 for record in complete)
    assert all("before the end of its JSON" in str(record.error) for record in structured if record not in complete)


def test_the_urgent_class_comes_first_and_the_queue_has_a_limit(server: VllmServer, folder: Path) -> None:
    traffic = Traffic.model_validate(CROWD)
    repeat = server.benchmark(traffic, 1, NEVER)
    records = read_records(folder / "requests-1.jsonl.gz")
    refused = [record for record in records if record.status is not RequestStatus.COMPLETED]
    assert repeat.failed == len(refused) > 0
    assert all("503" in str(record.error) for record in refused)
    first_tokens = {
        name: sorted(
            record.first_token_s for record in records if record.name == name and record.first_token_s is not None
        )
        for name in traffic.classes
    }
    # two requests, of any class, may have begun before the first urgent one came
    assert first_tokens["urgent"][-1] < first_tokens["patient"][2]
