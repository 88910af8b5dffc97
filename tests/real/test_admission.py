"""Priorities of request classes and a limit of the queue, on a real vLLM."""

from pathlib import Path

from tests.real.servers import NEVER, started
from tuner.engines.vllm.engine import VllmEngine
from tuner.loadgen.result import read_records
from tuner.workloads.results import RequestStatus
from tuner.workloads.traffic import Traffic

LIMIT = 24
TRAFFIC = {
    "arrivals": {"process": "poisson", "rate": 10_000},
    "requests": 2 * LIMIT,
    "warmup_requests": 2,
    "classes": {
        "patient": {"input": 32, "output": 32, "priority": 5},
        "urgent": {"input": 32, "output": 32, "priority": -5},
    },
}
"""All requests come at once, twice as many as the server admits."""


def test_the_urgent_class_comes_first_and_the_queue_has_a_limit(
    engine: VllmEngine, tiny_model: Path, tmp_path: Path
) -> None:
    traffic = Traffic.model_validate(TRAFFIC)
    flags = ("--scheduling-policy", "priority", "--max-num-seqs", "2", "--max-num-queued-reqs", str(LIMIT))
    server = started(engine, tiny_model, traffic, tmp_path, *flags)
    try:
        repeat = server.benchmark(traffic, 0, NEVER)
    finally:
        server.stop()
    records = read_records(tmp_path / "requests-0.jsonl.gz")
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
