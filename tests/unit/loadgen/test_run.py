"""The load generator as a program: plan, open and closed loop, files, faults of the server, and percentiles by hand."""

import asyncio
import json
import math
import os
import signal
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import pytest

from tests.some import some
from tests.unit.loadgen.loads import GOOD, Beside, Fake, asked, due, load_against, plan, replying, statuses
from tuner.loadgen import run
from tuner.loadgen.plan import PlannedRequest, RequestPlan, read_plan, write_plan
from tuner.loadgen.progress import ProgressReader, ProgressWriter
from tuner.loadgen.result import (
    GeneratorDelays,
    generator_delays,
    read_delays,
    read_records,
    write_delays,
    write_records,
)
from tuner.loadgen.run import LoopWatch, PlanResult, percentile, run_plan
from tuner.workloads.results import RequestRecord, RequestStatus

StartFake = Callable[..., Fake]

COMPLETED = RequestStatus.COMPLETED
TIMED_OUT = RequestStatus.TIMED_OUT
NOT_SENT = RequestStatus.NOT_SENT
LATE_S = 0.25
"""Seconds that a busy machine may add to a time."""


def lateness_s(record: RequestRecord) -> float:
    """Return the seconds from the scheduled time to sending."""
    return some(record.sent_s) - some(record.due_s)


def test_an_open_loop_sends_each_request_when_it_is_due() -> None:
    fake = Beside()
    times = [0.0, 0.0, 0.1, 0.15, 0.3, 0.6]
    result = load_against(fake.handler, due(*times))
    assert statuses(result.records) == {COMPLETED: 6}
    assert [record.index for record in result.records] == [0, 1, 2, 3, 4, 5]
    for record in result.records:
        assert record.due_s == times[record.index]
        assert 0.0 <= lateness_s(record) < LATE_S
    # The server's own clock shows the same.
    arrivals = fake.arrivals()
    assert [at - arrivals[0] for at in arrivals] == pytest.approx(times, abs=LATE_S)
    assert len(result.late_s) == 6
    assert 0.0 <= min(result.late_s) <= statistics.median(result.late_s) < LATE_S
    assert 0.6 < result.wall_s < 5.0
    assert result.cpu_s > 0.0
    assert result.lags_s


def test_a_slow_server_does_not_hold_up_an_open_loop() -> None:
    # No answer begins before all five requests have arrived: a loop that waits for answers would time out.
    waiting: list[int] = []
    all_here = asyncio.Event()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await asked(reader)
        waiting.append(1)
        if len(waiting) == 5:
            all_here.set()
        await all_here.wait()
        writer.write(GOOD)

    result = load_against(handle, due(0.0, 0.01, 0.02, 0.03, 0.04, tokens=1), timeout_s=5.0)
    assert statuses(result.records) == {COMPLETED: 5}


def test_a_record_has_tokens_and_times() -> None:
    fake = Beside(first_ms=100, token_ms=40)
    (record,) = load_against(fake.handler, due(0.2, tokens=5)).records
    assert (record.status, record.error, record.name) == (COMPLETED, None, "a")
    assert (record.planned_input, record.planned_output) == (3, 5)
    assert (record.input_tokens, record.output_tokens) == (3, 5)
    assert record.first_token_s is not None
    assert 0.1 - 0.01 <= record.first_token_s - some(record.sent_s) < 0.1 + LATE_S
    assert len(record.gaps_s) == 4
    assert sum(record.gaps_s) == pytest.approx(4 * 0.04, abs=LATE_S)
    assert some(record.end_s) - record.first_token_s == pytest.approx(sum(record.gaps_s))


def test_an_answer_of_many_tokens_is_whole() -> None:
    fake = Beside(first_ms=0, token_ms=0)
    (record,) = load_against(fake.handler, due(None, tokens=5000), users=1).records
    assert (record.status, record.output_tokens, len(record.gaps_s)) == (COMPLETED, 5000, 4999)
    assert min(record.gaps_s) >= 0.0


def test_a_request_that_waited_for_a_place_counts_from_when_it_was_due() -> None:
    fake = Beside(first_ms=300, token_ms=0)
    result = load_against(fake.handler, due(0.0, 0.0, 0.05), max_in_flight=1)
    assert statuses(result.records) == {COMPLETED: 3}
    _, second, third = result.records
    assert lateness_s(second) > 0.29
    assert second.latencies_ms()["ttft"] > 590
    assert lateness_s(third) > 0.54
    # The server caused the delay: the generator sent each request as soon as there was a place.
    assert len(result.late_s) == 3
    assert max(result.late_s) < LATE_S
    # One after another, so that no two of the server's arrivals are nearer than an answer takes.
    first, middle, last = fake.arrivals()
    assert min(middle - first, last - middle) > 0.29


@pytest.mark.parametrize("full", [1, 3])
@pytest.mark.parametrize(("limit", "times"), [("max_in_flight", [0.0] * 9), ("users", [None] * 9)])
def test_as_many_are_in_flight_as_the_loop_allows(limit: str, times: list[float | None], full: int) -> None:
    result, peak = _peak(due(*times, tokens=1), full, **{limit: full})
    assert statuses(result.records) == {COMPLETED: 9}
    assert peak == full


def _peak(requests: list[PlannedRequest], full: int, **changes: int) -> tuple[PlanResult, int]:
    """Run a plan on a server that sends no answer before it is full; return the most requests in flight."""
    now = Counter[str]()
    has_been_full = asyncio.Event()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            await asked(reader)
            now["in flight"] += 1
            now["peak"] = max(now["peak"], now["in flight"])
            if now["in flight"] >= full:
                has_been_full.set()
            await has_been_full.wait()
            for _ in range(20):  # time for one request too many to arrive
                await asyncio.sleep(0)
            now["in flight"] -= 1
            writer.write(GOOD)

    return load_against(handle, requests, **changes), now["peak"]


def test_a_closed_loop_sends_each_request_once_and_nothing_is_late() -> None:
    fake = Beside()
    result = load_against(fake.handler, due(*[None] * 20), users=3)
    assert [record.index for record in result.records] == list(range(20))
    assert statuses(result.records) == {COMPLETED: 20}
    assert len(fake.arrivals()) == 20
    assert {record.due_s for record in result.records} == {None}
    assert result.late_s == []
    for record in result.records:
        assert some(record.sent_s) >= 0.0


def test_more_users_than_requests() -> None:
    fake = Beside()
    assert statuses(load_against(fake.handler, due(None, None), users=9).records) == {COMPLETED: 2}


@pytest.mark.parametrize("users", [None, 3])
def test_a_plan_without_requests(users: int | None, nowhere: str) -> None:
    assert run_plan(plan(nowhere, users=users, max_in_flight=users), []).records == []


def test_an_open_loop_is_cut_off_at_its_limit() -> None:
    fake = Beside(faults={"1": "stall", "2": "stall"})
    result = load_against(fake.handler, due(0.0, 0.3, 0.4, 50.0, 51.0), limit_s=0.8)
    assert [record.status for record in result.records] == [COMPLETED, *[TIMED_OUT] * 2, *[NOT_SENT] * 2]
    _, stalled, _, unsent, _ = result.records
    assert stalled.error == "the run was ended before its last token"
    assert stalled.first_token_s is not None
    assert stalled.sent_s is not None
    assert stalled.end_s == pytest.approx(0.8, abs=LATE_S)
    assert (unsent.due_s, unsent.sent_s, unsent.end_s) == (50.0, None, None)
    assert unsent.error == "the run ended before it was sent"
    assert 0.8 <= result.wall_s < 0.8 + LATE_S
    # Requests that were cut off had been sent, and their lateness is recorded.
    assert len(result.late_s) == 3


def test_a_request_that_waits_for_a_place_at_the_limit_was_not_sent() -> None:
    fake = Beside(faults={"0": "stall"})
    result = load_against(fake.handler, due(0.0, 0.0, 0.0), limit_s=0.4, max_in_flight=1)
    assert [record.status for record in result.records] == [TIMED_OUT, NOT_SENT, NOT_SENT]
    assert len(fake.arrivals()) == 1


def test_a_closed_loop_is_cut_off_at_its_limit() -> None:
    fake = Beside(faults={"2": "stall", "3": "stall"})
    result = load_against(fake.handler, due(*[None] * 7), limit_s=0.8, users=2)
    assert statuses(result.records) == {COMPLETED: 2, TIMED_OUT: 2, NOT_SENT: 3}
    assert [record.status for record in result.records[4:]] == [NOT_SENT] * 3
    assert 0.8 <= result.wall_s < 0.8 + LATE_S
    assert len(fake.arrivals()) == 4


@pytest.mark.parametrize(("keep_alive_s", "connections"), [(60.0, 1), (0.1, 3)])
def test_an_idle_connection_is_used_again_only_for_so_long(
    keep_alive_s: float, connections: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "KEEP_ALIVE_S", keep_alive_s)
    monkeypatch.setattr("aiohttp.connector.monotonic", lambda: asyncio.get_running_loop().time())
    made: list[int] = []

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        made.append(1)
        while True:
            await asked(reader)
            writer.write(GOOD)

    result = load_against(handle, due(0.0, 0.25, 0.5, tokens=1))
    assert statuses(result.records) == {COMPLETED: 3}
    assert len(made) == connections


def test_an_idle_connection_is_closed_before_the_server_closes_it() -> None:
    # vLLM's VLLM_HTTP_TIMEOUT_KEEP_ALIVE is 5 s; a request that meets the end of a connection would be lost.
    assert 0.0 < run.KEEP_ALIVE_S < 5.0


def test_a_connection_that_the_server_closed_between_two_requests_fails_neither() -> None:
    result = load_against(replying(GOOD), due(0.0, 0.25, 0.5, tokens=1))
    assert statuses(result.records) == {COMPLETED: 3}


REQUEST = PlannedRequest(3, "chat", 0.1 + 0.2, 'a "b"\nc é \u2028 \U0001f600 \ud800', 12, 34)


def test_a_plan_is_read_back_unchanged(tmp_path: Path) -> None:
    file = tmp_path / "plan.jsonl"
    answered = PlannedRequest(5, "rag", None, "", 0, 1, adapter="sql", json_schema={"type": "object"})
    of_tokens = PlannedRequest(0, "all", None, [5, 6, 7], 3, 4)
    requests = [REQUEST, PlannedRequest(4, "rag", None, "", 0, 1), answered, of_tokens]
    for known in (
        plan("http://h:1/v1"),
        RequestPlan("u", "m", 5, None, 1.5, 1e9),
        RequestPlan("u", "m", None, 7, 0.1, 2.0, reuse_connections=False),
    ):
        write_plan(file, known, iter(requests))
        assert read_plan(file) == (known, requests)


def test_the_body_requests_a_stream_of_exactly_max_tokens_with_usage() -> None:
    body = {
        "model": "the model",
        "prompt": REQUEST.prompt,
        "max_tokens": 34,
        "stream": True,
        "stream_options": {"include_usage": True},
        "ignore_eos": True,
    }
    for changes, differs in (
        ({}, {}),
        ({"prompt": [5, 6, 7]}, {"prompt": [5, 6, 7]}),
        ({"priority": -2}, {"priority": -2}),
        ({"adapter": "sql"}, {"model": "sql"}),  # it answers in the place of the model
    ):
        assert json.loads(plan("u", model="the model").body(replace(REQUEST, **changes))) == body | differs


def test_an_answer_that_fits_a_schema_may_end_before_its_length() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "boolean"}}}
    body = json.loads(plan("u").body(replace(REQUEST, prompt="a", json_schema=schema)))
    assert "ignore_eos" not in body
    assert body["max_tokens"] == 34
    assert body["response_format"] == {"type": "json_schema", "json_schema": {"name": "chat", "schema": schema}}


ROOT = Path(__file__).parents[3]


class Program:
    """The program on a plan, with its results in a folder."""

    def __init__(self, folder: Path, known: RequestPlan, requests: list[PlannedRequest], *before: str) -> None:
        self.result = folder / "result"
        write_plan(folder / "plan.jsonl", known, requests)
        argv = [*before, sys.executable, "-m", "tuner.loadgen", str(folder / "plan.jsonl"), str(self.result)]
        self.process = subprocess.Popen(argv, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def records(self) -> list[RequestRecord]:
        """Wait until it ends with exit code 0 and no output, and return its records."""
        printed = self.process.communicate(timeout=60)
        assert (self.process.returncode, *printed) == (0, "", "")
        return read_records(self.result.with_suffix(".jsonl.gz"))


StartProgram = Callable[..., Program]


@pytest.fixture
def start_program(tmp_path: Path) -> Iterator[StartProgram]:
    """Start the program on a plan and its requests, with words before the command."""
    started: list[Program] = []

    def start(known: RequestPlan, requests: list[PlannedRequest], *before: str) -> Program:
        started.append(Program(tmp_path, known, requests, *before))
        return started[-1]

    yield start
    for program in started:
        program.process.kill()
        program.process.communicate()


def wait_for_arrivals(fake: Fake, count: int, program: Program) -> None:
    """Wait until the server has had so many requests."""
    while len(fake.arrivals()) < count:
        assert program.process.poll() is None
        time.sleep(0.005)


def test_it_writes_records_and_delays(start_fake: StartFake, start_program: StartProgram) -> None:
    fake = start_fake(faults={"1": "429"})
    program = start_program(plan(fake.url), due(0.0, 0.2, 0.4))
    records = program.records()
    assert [record.status for record in records] == [COMPLETED, RequestStatus.REFUSED, COMPLETED]
    assert [record.due_s for record in records] == [0.0, 0.2, 0.4]
    delays = read_delays(program.result.with_suffix(".json"))
    assert delays.late_max_s is not None
    assert delays.lag_p99_s is not None
    assert 0.4 < delays.wall_s < 10.0
    assert delays.cpu_s > 0.0
    assert {path.name for path in program.result.parent.glob("result*")} == {"result.jsonl.gz", "result.json"}


def test_each_request_in_flight_has_a_connection_whatever_the_shell_allows(
    start_fake: StartFake, start_program: StartProgram
) -> None:
    fake = start_fake(first_ms=500)
    few = ("sh", "-c", 'ulimit -S -n 48 && exec "$@"', "sh")
    program = start_program(plan(fake.url), due(*[0.0] * 80), *few)
    assert statuses(program.records()) == {COMPLETED: 80}


def test_a_server_that_dies_in_the_middle(start_fake: StartFake, start_program: StartProgram) -> None:
    # Two requests of 20 s each are running when it dies; the others find no listener.
    fake = start_fake(token_ms=100)
    program = start_program(plan(fake.url, users=2), due(*[None] * 6, tokens=200))
    wait_for_arrivals(fake, 2, program)
    os.kill(fake.process.pid, signal.SIGKILL)
    records = program.records()
    assert [record.index for record in records] == list(range(6))
    assert statuses(records) == {RequestStatus.CONNECTION_LOST: 6}
    assert len(fake.arrivals()) == 2
    for record in records:
        assert some(record.end_s) < 15.0


def test_it_ends_with_the_process_that_started_it(start_fake: StartFake, start_program: StartProgram) -> None:
    fake = start_fake(faults={"0": "stall"})
    shell = ("sh", "-c", '"$@" & wait', "sh")
    program = start_program(plan(fake.url), due(0.0), *shell)
    wait_for_arrivals(fake, 1, program)
    program.process.kill()
    # Its end of the pipe is closed when it has ended, long before the request's deadline.
    assert program.process.communicate(timeout=20) == ("", "")
    assert not list(program.result.parent.glob("result*"))


WHOLE = RequestRecord(
    index=7,
    name="chat é",
    status=RequestStatus.COMPLETED,
    planned_input=10,
    planned_output=3,
    due_s=0.1 + 0.2,
    sent_s=0.31,
    first_token_s=0.5,
    end_s=0.9,
    input_tokens=11,
    output_tokens=3,
    gaps_s=(0.1, 0.30000000000000004),
    error=None,
)
BARE = RequestRecord(8, "", RequestStatus.NOT_SENT, error="the run ended\x00 before \u2028 it")
ZEROS = RequestRecord(9, "a", RequestStatus.INCOMPLETE, 0, 0, 0.0, 0.0, 0.0, 0.0, 0, 0, (0.0,), "")


def test_records_are_read_back_unchanged(tmp_path: Path) -> None:
    others = [RequestRecord(index, "a", status) for index, status in enumerate(RequestStatus)]
    records = [WHOLE, BARE, ZEROS, *others]
    write_records(tmp_path / "r.jsonl.gz", records)
    assert read_records(tmp_path / "r.jsonl.gz") == records


@pytest.mark.parametrize(
    "delays",
    [
        GeneratorDelays(0.1, 0.2, 0.3, 0.0, 0.1 + 0.2, 1e-9, 4.5, 60.0),
        GeneratorDelays(None, None, None, None, None, None, 0, 0),
    ],
)
def test_delays_are_read_back_unchanged(tmp_path: Path, delays: GeneratorDelays) -> None:
    write_delays(tmp_path / "d.json", delays)
    assert read_delays(tmp_path / "d.json") == delays
    assert [path.name for path in tmp_path.iterdir()] == ["d.json"]


def test_own_delays_are_percentiles_of_each_kind() -> None:
    late = [float(value) for value in range(200, 0, -1)]
    found = generator_delays(PlanResult([], late, [5.0, 1.0, 3.0], 7.5, 60.0))
    assert found == GeneratorDelays(100.0, 198.0, 200.0, 3.0, 5.0, 5.0, 7.5, 60.0)
    assert generator_delays(PlanResult([])) == GeneratorDelays(None, None, None, None, None, None, 0.0, 0.0)


@pytest.mark.parametrize(
    ("values", "share", "expected"),
    [
        ([], 0.5, None),
        ([4.0], 0.0, 4.0),
        ([4.0], 0.99, 4.0),
        # Half of four values is two of them, half of five is two and a half: the third has to be in.
        ([4.0, 1.0, 3.0, 2.0], 0.5, 2.0),
        ([5.0, 4.0, 1.0, 3.0, 2.0], 0.5, 3.0),
        ([5.0, 4.0, 1.0, 3.0, 2.0], 1.0, 5.0),
        ([5.0, 4.0, 1.0, 3.0, 2.0], 0.2, 1.0),
        ([5.0, 4.0, 1.0, 3.0, 2.0], 0.21, 2.0),
        ([2.0, 2.0, 2.0, 9.0], 0.75, 2.0),
        ([2.0, 2.0, 2.0, 9.0], 0.76, 9.0),
        # 99 % of 100 values is 99 of them, of 101 values 99.99: the hundredth has to be in.
        ([float(value) for value in range(1, 101)], 0.99, 99.0),
        ([float(value) for value in range(1, 102)], 0.99, 100.0),
    ],
)
def test_a_percentile_is_the_smallest_value_that_the_share_does_not_exceed(
    values: list[float], share: float, expected: float | None
) -> None:
    assert percentile(values, share) == expected


@pytest.mark.parametrize("share", [Fraction(1, 2), Fraction(99, 100), Fraction(1)])
def test_the_shares_in_use_are_exact_for_any_number_of_values(share: Fraction) -> None:
    for count in range(1, 2000):
        assert percentile(range(1, count + 1), float(share)) == math.ceil(share * count), count


def test_a_busy_event_loop_has_a_measured_lag() -> None:
    async def busy() -> list[float]:
        watch = LoopWatch()
        watching = asyncio.create_task(watch.run())
        while not watch.lags_s:
            await asyncio.sleep(0)
        time.sleep(0.2)
        known = len(watch.lags_s)
        while len(watch.lags_s) == known:
            await asyncio.sleep(0)
        watching.cancel()
        return watch.lags_s

    lags = asyncio.run(busy())
    assert min(lags) >= 0.0
    assert lags[-1] > 0.19


LOST = RequestStatus.CONNECTION_LOST
REFUSED = RequestStatus.REFUSED

ENDS = {
    "reset": LOST,
    "half": LOST,
    "short": RequestStatus.INCOMPLETE,
    "malformed": RequestStatus.MALFORMED,
    "429": REFUSED,
    "500": REFUSED,
    "stall": TIMED_OUT,
}


def test_each_fault_has_its_status_and_affects_no_other_request() -> None:
    # One user: the order of arrival is that of the plan. Each fault is followed by a request without one.
    fake = Beside(faults={str(2 * place): fault for place, fault in enumerate(ENDS)})
    result = load_against(fake.handler, due(*[None] * (2 * len(ENDS)), tokens=6), users=1, timeout_s=1.2)
    found = [record.status for record in result.records]
    assert found == [status for fault in ENDS for status in (ENDS[fault], COMPLETED)]
    assert len(fake.arrivals()) == 2 * len(ENDS)
    by_fault = dict(zip(ENDS, result.records[::2], strict=True))
    for fault in ("reset", "half", "stall"):
        # Half of the six tokens arrived: their times are recorded, and there is no usage.
        assert len(by_fault[fault].gaps_s) == 2, fault
        assert by_fault[fault].first_token_s is not None
        assert (by_fault[fault].input_tokens, by_fault[fault].output_tokens) == (None, None)
    assert (by_fault["short"].output_tokens, by_fault["short"].error) == (3, "3 of 6 tokens")
    assert (by_fault["malformed"].error or "").startswith('an event that is no JSON: b\'{"choices"')
    assert (by_fault["429"].error or "").startswith('HTTP 429: {"error": {"message": "refused with 429"')
    assert by_fault["429"].first_token_s is None
    stalled = by_fault["stall"]
    assert 1.2 <= some(stalled.end_s) - some(stalled.sent_s) < 2.2
    assert stalled.error == "its deadline passed before its last token"


def test_a_deadline_counts_from_when_the_request_was_due() -> None:
    fake = Beside(faults={"0": "stall", "1": "stall"})
    first, second = load_against(fake.handler, due(0.0, 0.5), timeout_s=0.8, max_in_flight=1).records
    assert (first.status, second.status) == (TIMED_OUT, TIMED_OUT)
    assert first.end_s == pytest.approx(0.8, abs=0.3)
    # It had a place from 0.8 s on, and timed out at 1.3 s, not at 1.6 s.
    assert second.sent_s == pytest.approx(0.8, abs=0.3)
    assert second.end_s == pytest.approx(1.3, abs=0.25)


def test_a_request_without_a_place_in_flight_is_not_sent() -> None:
    fake = Beside(faults={"0": "stall"})
    result = load_against(fake.handler, due(0.0, 0.0, 0.0, 0.0, 2.5), timeout_s=1.5, max_in_flight=1)
    assert [record.status for record in result.records] == [TIMED_OUT] * 4 + [COMPLETED]
    assert [record.sent_s is None for record in result.records] == [False, True, True, True, False]
    assert {record.end_s for record in result.records[1:4]} == {None}
    assert {record.error for record in result.records[1:4]} == {"no place in flight became free in time"}
    # The server received only two, and the generator sent both on time.
    assert len(fake.arrivals()) == 2
    assert len(result.late_s) == 2
    assert max(result.late_s) < 1.0


def test_places_in_flight_are_freed_after_every_fault() -> None:
    # Two places and fourteen requests, half of them with a fault: a place that is not freed stops the rest.
    faults = [fault for fault in ENDS if fault != "stall"] * 2
    fake = Beside(faults={str(place): fault for place, fault in enumerate(faults)})
    result = load_against(fake.handler, due(*[0.0] * 20), max_in_flight=2)
    assert statuses(result.records)[COMPLETED] == 8
    assert statuses(result.records)[LOST] == 4
    assert len(fake.arrivals()) == 20


@pytest.mark.parametrize("changes", [{"users": 2}, {"users": None}, {"users": None, "max_in_flight": 1}])
def test_a_server_that_does_not_exist(nowhere: str, changes: dict[str, int | None]) -> None:
    times = [None] * 6 if changes["users"] else [0.0, 0.0, 0.0, 0.1, 0.1, 0.2]
    result = run_plan(plan(nowhere, **changes), due(*times))
    assert statuses(result.records) == {LOST: 6}
    for record in result.records:
        assert (record.error or "").startswith("ClientConnectorError: ")
        assert record.sent_s is not None
        assert record.first_token_s is None
    assert result.wall_s < 5.0


def test_the_progress_of_a_run_can_be_read_while_it_lasts(tmp_path: Path) -> None:
    fake = Beside(faults={"1": "stall"})
    requests, file = due(0.0, 0.1, 5.0), tmp_path / "progress.jsonl"
    reader = ProgressReader(file)
    assert not reader.advance()
    writer = ProgressWriter(file, requests)
    assert not reader.advance()
    assert [record.due_s for record in reader.records] == [0.0, 0.1, 5.0]
    result = load_against(fake.handler, requests, writer, limit_s=1.5)
    assert reader.advance()
    assert not reader.advance()
    first, second, third = reader.records
    assert replace(result.records[0], gaps_s=(), input_tokens=None) == first
    assert (second.status, second.end_s) == (NOT_SENT, None)
    assert second.first_token_s is not None
    assert (third.sent_s, third.planned_output) == (None, requests[2].max_tokens)
    assert reader.at_s == pytest.approx(1.0, abs=LATE_S)


def test_half_a_line_of_progress_is_left_for_the_next_look(tmp_path: Path) -> None:
    file = tmp_path / "progress.jsonl"
    ProgressWriter(file, due(0.0)).add(1.0, [], [(0, 0.25, None)])
    whole = file.read_bytes()
    file.write_bytes(whole[:-3])
    reader = ProgressReader(file)
    assert not reader.advance()
    file.write_bytes(whole)
    assert reader.advance()
    assert [record.sent_s for record in reader.records] == [0.25]
