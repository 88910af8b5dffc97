"""Requests for LoRA adapters, and requests with a schema, against a real vLLM."""

from pathlib import Path

from tests.real.lora_adapter import make_adapter
from tests.real.servers import NEVER, started
from tuner.engines.vllm.engine import VllmEngine
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


def test_adapters_and_schemas_are_served(engine: VllmEngine, tiny_model: Path, tmp_path: Path) -> None:
    traffic = Traffic.model_validate(TRAFFIC)
    folders = {name: make_adapter(tmp_path / name, seed) for seed, name in enumerate(("red", "blue"))}
    modules = [f"{name}={folder}" for name, folder in folders.items()]
    flags = ("--enable-lora", "--max-lora-rank", "8", "--lora-modules", *modules)
    server = started(engine, tiny_model, traffic, tmp_path, *flags)
    try:
        repeat = server.benchmark(traffic, 0, NEVER)
    finally:
        server.stop()
    records = read_records(tmp_path / "requests-0.jsonl.gz")
    adapted = [record for record in records if record.name == "adapted"]
    structured = [record for record in records if record.name == "structured"]
    assert len(adapted) + len(structured) == repeat.offered == 24
    assert {(record.status, record.output_tokens) for record in adapted} == {(RequestStatus.COMPLETED, 16)}
    # a digit in its object is shorter than 96 tokens; a random model may fill some with blanks, and these are cut
    complete = [record for record in structured if record.status is RequestStatus.COMPLETED]
    assert complete
    assert all((record.output_tokens or 0) < 96 for record in complete)
    assert all("before the end of its JSON" in str(record.error) for record in structured if record not in complete)
