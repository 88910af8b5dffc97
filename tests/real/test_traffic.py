"""Traffic against a real vLLM: a low rate, an excessive rate, and the effect of the prefix cache."""

import csv
from collections.abc import Iterator
from pathlib import Path

import pytest

from records.trials import FailureKind, Repeat
from tests.real.servers import NEVER, started
from tuner.engines.vllm.engine import VllmEngine, VllmServer
from tuner.errors import TrialFailed
from tuner.loadgen.result import read_records
from tuner.study.specification.spec import Budget
from tuner.workloads.traffic import Traffic, load_traffic

MIX = """
arrivals: {process: poisson, rate: 6}
requests: 72
max_in_flight: 32
timeout_s: 10
system_prompt: 32
classes:
  siso: {input: {lognormal: {mean: 40, cv: 0.4, max: 96}}, output: 8}
  silo: {input: 40, output: {uniform: [32, 48]}, text: repetitive}
  liso: {input: 32, output: 8, prefix: {tokens: 256, documents: 3}}
  own: {text: {file: prompts.jsonl}}
slo:
  siso: {p95_ttft_ms: 1500}
  silo: {p95_itl_ms: 500}
  liso: {p95_ttft_ms: 1500}
  own: {p95_ttft_ms: 1500}
"""
OWN = """{"prompt": "the quick brown fox", "output_tokens": 5}
{"conversations": [{"from": "human", "value": "what is this"}, {"from": "gpt", "value": "an answer of some words"}]}
"""


@pytest.fixture(scope="module")
def traffic(tmp_path_factory: pytest.TempPathFactory) -> Traffic:
    folder = tmp_path_factory.mktemp("traffic")
    (folder / "prompts.jsonl").write_text(OWN)
    (folder / "mix.yaml").write_text(MIX)
    return load_traffic(folder / "mix.yaml")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("artifacts")


@pytest.fixture(scope="module")
def server(engine: VllmEngine, tiny_model: Path, traffic: Traffic, folder: Path) -> Iterator[VllmServer]:
    running = started(engine, tiny_model, traffic, folder)
    yield running
    running.stop()


def send(server: VllmServer, traffic: Traffic, index: int) -> Repeat:
    """Send traffic; if the generator was late, send it again as often as a study would."""
    for _ in range(Budget.attempts - 1):
        try:
            return server.benchmark(traffic, index, NEVER)
        except TrialFailed as error:
            if error.failure.kind is not FailureKind.LOAD_GENERATOR_LATE:
                raise
    return server.benchmark(traffic, index, NEVER)


def test_at_a_low_rate_every_slo_holds(server: VllmServer, traffic: Traffic, folder: Path) -> None:
    repeat = send(server, traffic, 0)
    assert (repeat.offered, repeat.failed) == (72, 0)
    for name in traffic.classes:
        assert (repeat.metrics[f"{name}.goodput_share"] or 0) >= 0.99
    records = read_records(folder / "requests-0.jsonl.gz")
    # lengths are exact under the model's tokenizer, and the server counts the same
    assert [r.input_tokens for r in records] == [r.planned_input for r in records]
    assert [r.output_tokens for r in records] == [r.planned_output for r in records]
    # one of the two prompts has 5 output tokens, the other's answer is as long as the recorded one
    own = {r.planned_output for r in records if r.name == "own"}
    assert len(own) == 2
    assert 5 in own
    # the system prompt and the documents come again
    assert (server.facts().prefix_hit_rate or 0) > 0.2
    rows = list(csv.DictReader((folder / "server-0.csv").open()))
    assert {"at_s", "running", "waiting", "kv_usage", "preemptions"} == set(rows[0])


def test_at_an_excessive_rate_slos_are_missed(server: VllmServer, traffic: Traffic, folder: Path) -> None:
    # five times the rate that two cores answered
    impatient = traffic.at_rate_for_same_duration(600).model_copy(update={"timeout_s": 3})
    repeat = send(server, impatient, 1)
    assert repeat.offered == 72 * 100
    assert repeat.completed < 0.9 * repeat.offered
    # requests also wait before they are sent; on a slower machine, none is answered in time
    felt, counted = repeat.metrics["p50_ttft_ms"], repeat.metrics["client.p50_ttft_ms"]
    assert felt is None or counted is None or felt > 2 * counted
    assert (repeat.metrics["goodput_share"] or 0) < 0.9
    records = read_records(folder / "requests-1.jsonl.gz")
    assert len(records) == repeat.offered
    rows = list(csv.DictReader((folder / "server-1.csv").open()))
    assert max(float(row["running"]) for row in rows) >= 1  # at a low rate, each look may find the server idle
    assert all(r.due_s is not None for r in records)
    assert max(r.sent_s - r.due_s for r in records if r.sent_s is not None and r.due_s is not None) > 1.0


@pytest.mark.release
def test_without_the_prefix_cache_there_are_no_hits(
    engine: VllmEngine, tiny_model: Path, traffic: Traffic, tmp_path: Path, server: VllmServer
) -> None:
    assert server.stop() is None  # one server at a time
    other = started(engine, tiny_model, traffic, tmp_path, "--no-enable-prefix-caching")
    try:
        repeat = send(other, traffic, 0)
        hits = other.facts().prefix_hit_rate
    finally:
        assert other.stop() is None
    assert repeat.failed == 0
    assert not hits
