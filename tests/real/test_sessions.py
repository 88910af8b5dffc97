"""Sessions against a real vLLM: what its prefix cache finds beside the simulator's, and when turns are sent."""

import contextlib
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from records.trials import Repeat
from tests.real.servers import NEVER, started
from tests.unit.engines.simulator.helpers import server as simulated_server
from tuner.engines.server.metrics import scrape
from tuner.engines.server.running_server import HOST
from tuner.engines.simulator.client import workload_client
from tuner.engines.vllm.engine import VllmEngine, VllmServer
from tuner.engines.vllm.texts import METRICS
from tuner.errors import TrialFailed
from tuner.loadgen.result import read_records
from tuner.study.specification.spec import Budget
from tuner.workloads.results import RequestRecord
from tuner.workloads.schedule import make_schedule
from tuner.workloads.sessions import sessions_of
from tuner.workloads.traffic import Traffic, load_traffic

BLOCK = 32
FLAGS = ("--block-size", str(BLOCK))
SESSIONS = """
arrivals: {process: poisson, rate: 2}
requests: 60
timeout_s: 60
system_prompt: 48
classes:
  chat:
    input: {uniform: [20, 60]}
    output: {uniform: [8, 24]}
    session: {turns: {uniform: [2, 5]}, pause_ms: {uniform: [200, 1500]}}
  agent:
    input: 40
    output: 16
    session: {turns: 3, pause_ms: 300, fan_out: {uniform: [1, 3]}}
slo:
  chat: {ttft_ms: 20000}
  agent: {ttft_ms: 20000}
"""
LATE_S = 1.0
"""Seconds that a busy machine may add to a time."""


@pytest.fixture(scope="module")
def traffic(tmp_path_factory: pytest.TempPathFactory) -> Traffic:
    file = tmp_path_factory.mktemp("sessions") / "sessions.yaml"
    file.write_text(SESSIONS)
    return load_traffic(file)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("artifacts")


@pytest.fixture(scope="module")
def server(engine: VllmEngine, tiny_model: Path, traffic: Traffic, folder: Path) -> Iterator[VllmServer]:
    running = started(engine, tiny_model, traffic, folder, *FLAGS)
    yield running
    running.stop()


@pytest.fixture(scope="module")
def repeat(server: VllmServer, traffic: Traffic) -> tuple[Repeat, int]:
    """A valid repeat, and the prompt tokens that the cache found in it; each attempt has prompts of its own."""
    for index in range(Budget.attempts):
        before = found_tokens(server)
        with contextlib.suppress(TrialFailed):
            found = server.benchmark(traffic, index, NEVER)
            return found, found_tokens(server) - before
    pytest.fail("the generator was late in every attempt")


def found_tokens(server: VllmServer) -> int:
    """Return the prompt tokens that the prefix cache has found since the server started."""
    page = scrape(HOST, server.port, METRICS)
    assert page is not None
    assert METRICS.prefix_hits is not None
    return round(page[METRICS.prefix_hits])


@pytest.fixture(scope="module")
def records(repeat: tuple[Repeat, int], folder: Path) -> list[RequestRecord]:
    return read_records(folder / f"requests-{repeat[0].index}.jsonl.gz")


def test_every_turn_has_the_tokens_that_the_workload_plans(
    repeat: tuple[Repeat, int], records: list[RequestRecord]
) -> None:
    sent, _ = repeat
    assert sent.failed == 0
    assert [record.input_tokens for record in records] == [record.planned_input for record in records]
    assert [record.output_tokens for record in records] == [record.planned_output for record in records]
    assert (sent.metrics["goodput_share"], sent.metrics["session_goodput_share"]) == (1.0, 1.0)


def test_a_turn_is_sent_when_the_answers_have_ended_and_its_pause_is_over(
    traffic: Traffic, repeat: tuple[Repeat, int], records: list[RequestRecord]
) -> None:
    pauses = {each.index: each.pause_s for each in make_schedule(traffic, repeat[0].seed)}
    for turns in sessions_of(records):
        for before, after in pairwise(turns):
            ended = max(record.end_s or 0.0 for record in before)
            for record in after:
                assert record.due_s == pytest.approx(ended + pauses[record.index])
                assert 0.0 <= (record.sent_s or 0.0) - (record.due_s or 0.0) < LATE_S


def test_the_prefix_cache_finds_what_the_simulator_says(
    traffic: Traffic, repeat: tuple[Repeat, int], records: list[RequestRecord]
) -> None:
    client = workload_client(traffic, repeat[0].seed, True, 0.0)
    predicted = simulated_server(*FLAGS).run(client, 1, noise=False).counts
    queried = sum(record.input_tokens or 0 for record in records)
    assert predicted.queried_tokens == queried
    # the warm-up has left the system prompt's whole block, which the first request of the simulator does not find
    assert repeat[1] == predicted.hit_tokens + BLOCK
