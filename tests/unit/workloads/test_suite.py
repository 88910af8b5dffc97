"""Suites of loads, and summaries by class."""

import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from records.trials import Repeat
from tests.contracts.executor_contract import spec as make_spec
from tests.fakes.stub_engine import StubEngine, StubServer
from tuner.cancellation import CancelToken
from tuner.specs import Limits, TrialSpec
from tuner.trial.pipeline import run_trial
from tuner.workloads.results import RequestRecord, RequestSlo, RequestStatus, Window, stable_middle
from tuner.workloads.run_metrics import run_metrics
from tuner.workloads.spec import SingleWorkload, Suite, merge_repeats, read_workload
from tuner.workloads.traffic import Traffic


def traffic(name: str, requests: int, **changes: Any) -> dict[str, Any]:
    arrivals = {"process": "poisson", "rate": 4}
    fields = {"arrivals": arrivals, "requests": requests, "classes": {name: {"input": 30, "output": 10}}}
    return {**fields, "slo": {name: {"p95_ttft_ms": 100}}, **changes}


def suite(**changes: Any) -> Suite:
    day = traffic("chat", 30, classes={"chat": {"input": 30, "output": 10}, "docs": {"input": 70, "output": 5}})
    return Suite.model_validate({"loads": {"day": day, "night": traffic("batch", 10, max_in_flight=3)}, **changes})


def test_class_names_have_the_workloads_name_as_a_prefix() -> None:
    made = suite(temperature=0.0, seed=7)
    assert made.sent_classes == ["day.chat", "day.docs", "night.batch"]
    assert [*made.slos] == ["day.chat", "night.batch"]
    assert {(part.seed, part.temperature) for part in made.parts().values()} == {(7, 0.0)}


def test_lengths_and_concurrency_are_those_of_the_largest_workload() -> None:
    made = suite()
    assert (made.longest_request, made.output_len, made.input_len) == (75, 10, 65)
    assert made.longest_workload.sent_classes.keys() == {"day.chat", "day.docs"}
    assert made.max_concurrency is None
    limits = {"day": 35, "night": 15}
    bounded = {name: part.model_copy(update={"max_in_flight": limits[name]}) for name, part in made.loads.items()}
    assert made.model_copy(update={"loads": bounded}).max_concurrency == 35


def test_every_run_has_its_own_index() -> None:
    assert [suite().run_index(repeat, part) for repeat in range(3) for part in range(2)] == [0, 1, 2, 3, 4, 5]


def test_a_suite_survives_a_dump() -> None:
    made = suite(seed=9)
    assert read_workload(made.model_dump(mode="json")) == made


@pytest.mark.parametrize("name", ["a.b", "worst", "client", "", "1"])
def test_a_workload_name_must_be_a_valid_metric_prefix(name: str) -> None:
    with pytest.raises(ValidationError, match="a workload cannot be called"):
        Suite.model_validate({"loads": {"day": traffic("a", 1), name: traffic("a", 1)}})


def repeat(offered: int, completed: int, duration_s: float, **metrics: float | None) -> Repeat:
    named = {key.replace("__", "."): value for key, value in metrics.items()}
    return Repeat(4, 11, offered, completed, offered - completed, duration_s, named)


def test_shares_count_all_requests_and_the_worst_class_is_over_all_workloads() -> None:
    day = repeat(
        30, 30, 5.0, goodput=3.0, goodput_share=0.5, p95_ttft_ms=80.0, worst__p95_ttft_ms=90.0, day__chat__goodput=2.0
    )
    night = repeat(10, 5, 2.0, goodput=1.0, goodput_share=0.1, p95_ttft_ms=None, worst__p95_ttft_ms=40.0)
    merged = merge_repeats(2, [("day", day), ("night", night)])
    assert (merged.index, merged.seed, merged.offered, merged.completed, merged.failed, merged.duration_s) == (
        *(2, 11, 40, 35, 5),
        7.0,
    )
    # (0.5 · 30 + 0.1 · 10) / 40 and 35 / 40
    assert merged.metrics == {
        "day.goodput": 3.0,
        "day.goodput_share": 0.5,
        "day.p95_ttft_ms": 80.0,
        "day.worst.p95_ttft_ms": 90.0,
        "day.chat.goodput": 2.0,
        "night.goodput": 1.0,
        "night.goodput_share": 0.1,
        "night.p95_ttft_ms": None,
        "night.worst.p95_ttft_ms": 40.0,
        "success_rate": 0.875,
        "goodput_share": 0.4,
        "worst.p95_ttft_ms": 90.0,
    }


def test_one_workload_without_slos_leaves_no_share_over_all() -> None:
    merged = merge_repeats(
        0, [("a", repeat(1, 1, 1.0, goodput_share=1.0)), ("b", repeat(1, 1, 1.0, goodput_share=None))]
    )
    assert merged.metrics["goodput_share"] is None


class RecordingServer(StubServer):
    sent: list[tuple[str, int | None, int]]

    def warm_up(self, workload: SingleWorkload, cancelled: CancelToken) -> None:
        assert isinstance(workload, Traffic)
        self.sent.append(("warm", workload.requests, -1))

    def benchmark(self, workload: SingleWorkload, index: int, cancelled: CancelToken) -> Repeat:
        assert isinstance(workload, Traffic)
        (name,) = workload.classes
        self.sent.append((name, workload.requests, index))
        return Repeat(index, workload.repeat_seed(index), 10, 10, 0, 1.0, {"goodput": float(index)})


class RecordingEngine(StubEngine):
    sent: list[tuple[str, int | None, int]]

    def launch(self, spec: TrialSpec, limits: Limits) -> StubServer:
        made = RecordingServer(spec, lambda *_: {}, None)
        self.sent = made.sent = []
        return made


def test_a_trial_sends_every_workload_to_the_same_server(tmp_path: Path) -> None:
    engine = RecordingEngine(lambda *_: {})
    loads = {"day": traffic("a", 30), "night": traffic("b", 10)}
    spec = replace(make_spec(tmp_path, 2), workload=Suite.model_validate({"loads": loads, "seed": 100}))
    outcome = run_trial(engine, spec, threading.Event(), worker="w0", device="cpu")
    assert outcome.failure is None
    assert engine.sent == [
        ("warm", 30, -1),
        ("warm", 10, -1),
        ("day.a", 30, 0),
        ("night.b", 10, 1),
        ("day.a", 30, 2),
        ("night.b", 10, 3),
    ]
    assert [(each.index, each.seed, each.offered) for each in outcome.repeats] == [(0, 100, 20), (1, 102, 20)]
    # medians over the two repeats
    assert (outcome.metric("day.goodput"), outcome.metric("night.goodput")) == (1.0, 2.0)


FAILED = RequestStatus.TIMED_OUT
DONE = RequestStatus.COMPLETED


def request(index: int, **fields: Any) -> RequestRecord:
    """Return a request due at `index` s, sent 0.5 s late, with its first token 1 s later and 5 tokens 0.1 s apart."""
    defaults = {
        "name": "a",
        "status": DONE,
        "due_s": float(index),
        "sent_s": index + 0.5,
        "first_token_s": index + 1.5,
        "end_s": index + 1.9,
        "input_tokens": 10,
        "output_tokens": 5,
        "gaps_s": (0.1, 0.1, 0.1, 0.1),
    }
    return RequestRecord(index, **{**defaults, **fields})


def test_latencies_count_from_the_scheduled_time() -> None:
    record = request(3)
    assert record.latencies_ms() == pytest.approx({"ttft": 1500.0, "tpot": 100.0, "e2el": 1900.0})
    assert record.latencies_ms(since_sent=True) == pytest.approx({"ttft": 1000.0, "tpot": 100.0, "e2el": 1400.0})


def test_in_a_closed_loop_latencies_count_from_sending() -> None:
    record = request(3, due_s=None)
    assert record.latencies_ms()["ttft"] == pytest.approx(1000.0)


def test_latencies_without_their_events_are_absent() -> None:
    assert request(0, status=FAILED, end_s=9.0).latencies_ms() == pytest.approx({"ttft": 1500.0})
    assert request(0, status=FAILED, first_token_s=None).latencies_ms() == {}
    assert "tpot" not in request(0, output_tokens=1, gaps_s=()).latencies_ms()


def test_the_stable_middle_of_an_open_loop_leaves_out_a_tenth_at_each_end() -> None:
    records = [request(index) for index in range(101)]
    window = stable_middle(records, None)
    assert window == Window(10.0, 90.0)
    assert sum(window.holds(record) for record in records) == 81


def test_the_stable_middle_of_a_closed_loop_has_every_user_busy() -> None:
    # three users: the third one is busy from 2.5 s on; the last request is sent at 39.5 s
    records = [request(index, due_s=None) for index in range(40)]
    assert stable_middle(records, 3) == Window(2.5, 39.5)


def test_a_short_run_has_no_stable_middle() -> None:
    assert stable_middle([request(index) for index in range(20)], None) is None
    assert stable_middle([], None) is None
    assert stable_middle([request(0, status=RequestStatus.NOT_SENT, due_s=None, sent_s=None)], 1) is None


def test_every_offered_request_counts() -> None:
    records = [request(0), request(1), request(2, status=FAILED, end_s=None), request(3, name="b", status=FAILED)]
    metrics = run_metrics(records, ["a", "b", "c"], {"a": RequestSlo({"ttft": 2000})})
    assert metrics["success_rate"] == 0.5
    assert metrics["goodput_share"] == 0.5
    assert metrics["a.goodput_share"] == pytest.approx(2 / 3)
    assert metrics["b.goodput_share"] == 0.0
    assert metrics["b.p99_ttft_ms"] is None
    assert metrics["c.success_rate"] is None
    assert metrics["worst.success_rate"] == 0.0  # of b; c has no request
    # the last answer ends 4.9 s after the start
    assert metrics["goodput"] == pytest.approx(2 / 4.9)


def test_tokens_of_requests_within_their_slo_are_counted() -> None:
    # a misses: its first token takes 1.5 s. The two requests of b, which has no SLO, have 20 + 8 tokens, in 4.9 s
    records = [request(0), request(1, name="b"), request(2, name="b", output_tokens=3), request(3, status=FAILED)]
    metrics = run_metrics(records, ["a", "b"], {"a": RequestSlo({"ttft": 1400})})
    assert metrics["goodput_share"] == 0.5
    assert metrics["output_goodput"] == pytest.approx(8 / 4.9)
    assert metrics["total_token_goodput"] == pytest.approx(28 / 4.9)
    assert metrics["output_throughput"] == pytest.approx(13 / 4.9)
    assert metrics["a.output_goodput"] == 0.0
    assert metrics["b.output_goodput"] == pytest.approx(8 / 4.9)


def test_without_slos_or_token_counts_there_is_no_token_goodput() -> None:
    assert run_metrics([request(0)], ["a"])["output_goodput"] is None
    metrics = run_metrics([request(0, output_tokens=None)], ["a"], {"a": RequestSlo()})
    assert (metrics["goodput_share"], metrics["output_goodput"], metrics["total_token_goodput"]) == (1.0, None, None)


def test_without_slos_there_is_no_goodput() -> None:
    metrics = run_metrics([request(0)], ["a"])
    assert (metrics["goodput"], metrics["goodput_share"]) == (None, None)


def test_percentiles_are_over_completed_requests_of_the_stable_middle() -> None:
    # the TTFT of request i is 1500 + i ms. Requests 10 to 90 count, without 50, which failed: 80 values, whose median
    # lies between those of 49 and 51
    records = [request(i, first_token_s=i + 1.5 + i / 1000, status=FAILED if i == 50 else DONE) for i in range(101)]
    metrics = run_metrics(records, ["a"])
    assert metrics["p50_ttft_ms"] == pytest.approx(1550.0)
    assert metrics["client.p50_ttft_ms"] == pytest.approx(1050.0)
    assert metrics["p99_itl_ms"] == pytest.approx(100.0)
    assert metrics["mean_e2el_ms"] == pytest.approx(1900.0)


@pytest.mark.parametrize(
    ("slo", "met"),
    [
        (RequestSlo(), True),
        (RequestSlo({"ttft": 1501}), True),
        (RequestSlo({"ttft": 1499}), False),
        (RequestSlo({"tpot": 99}), False),
        (RequestSlo({"e2el": 1901}), True),
        (RequestSlo({"itl": 101}), True),
        (RequestSlo({"itl": 99}), False),
    ],
)
def test_a_request_meets_its_slo(slo: RequestSlo, met: bool) -> None:
    assert slo.met(request(0)) is met
    assert not slo.met(request(0, status=FAILED))


def test_one_long_gap_among_many_meets_a_p95_bound() -> None:
    # 39 gaps of 10 ms and one of 1 s: the 95th percentile is 10 ms
    gaps = (0.01,) * 39 + (1.0,)
    assert RequestSlo({"itl": 11}).met(request(0, gaps_s=gaps))
    assert RequestSlo({"itl": 11}).met(request(0, gaps_s=(), output_tokens=1))


def test_a_missing_latency_misses_its_bound() -> None:
    assert not RequestSlo({"ttft": 9e9}).met(request(0, first_token_s=None))
    assert not RequestSlo({"e2el": 9e9}).met(request(0, end_s=None))
    assert not RequestSlo({"tpot": 9e9}).met(request(0, output_tokens=None))
    assert RequestSlo({"tpot": 1}).met(request(0, gaps_s=(), output_tokens=1))
