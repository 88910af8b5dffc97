"""The statistics of a run, from records made by hand."""

from __future__ import annotations

from typing import Any

import pytest

from tuner.workloads.results import RequestRecord, RequestSlo, RequestStatus, Window, stable_middle, summarise_run
from tuner.workloads.run_metrics import run_metrics

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
    assert record.lateness_s == pytest.approx(0.5)
    assert record.latencies_ms() == pytest.approx({"ttft": 1500.0, "tpot": 100.0, "e2el": 1900.0})
    assert record.latencies_ms(since_sent=True) == pytest.approx({"ttft": 1000.0, "tpot": 100.0, "e2el": 1400.0})


def test_in_a_closed_loop_latencies_count_from_sending() -> None:
    record = request(3, due_s=None)
    assert record.lateness_s is None
    assert record.latencies_ms()["ttft"] == pytest.approx(1000.0)


def test_latencies_without_their_events_are_absent() -> None:
    assert request(0, status=FAILED, end_s=9.0).latencies_ms() == pytest.approx({"ttft": 1500.0})
    assert request(0, status=FAILED, first_token_s=None).latencies_ms() == {}
    assert "tpot" not in request(0, output_tokens=1, gaps_s=()).latencies_ms()
    assert request(0, status=RequestStatus.NOT_SENT, sent_s=None).lateness_s is None


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
    summary = summarise_run(records, ["a", "b", "c"], {"a": RequestSlo({"ttft": 2000})})
    assert (summary.overall.offered, summary.overall.completed, summary.overall.good) == (4, 2, 2)
    assert summary.overall.success_rate == 0.5
    assert summary.overall.statuses["timed_out"] == 2
    assert summary.classes["a"].goodput_share == pytest.approx(2 / 3)
    assert summary.classes["b"].goodput_share == 0.0
    assert summary.classes["b"].latencies["p99_ttft_ms"] is None
    assert (summary.classes["c"].offered, summary.classes["c"].success_rate) == (0, None)
    # the last answer ends 4.9 s after the start
    assert summary.overall.goodput == pytest.approx(2 / 4.9)


def test_tokens_of_requests_within_their_slo_are_counted() -> None:
    # a misses: its first token takes 1.5 s. The two requests of b, which has no SLO, have 20 + 8 tokens, in 4.9 s
    records = [request(0), request(1, name="b"), request(2, name="b", output_tokens=3), request(3, status=FAILED)]
    summary = summarise_run(records, ["a", "b"], {"a": RequestSlo({"ttft": 1400})})
    assert (summary.overall.good, summary.overall.good_input_tokens, summary.overall.good_output_tokens) == (2, 20, 8)
    metrics = run_metrics(summary, records)
    duration = summary.overall.duration_s
    assert duration == pytest.approx(4.9)
    assert metrics["output_goodput"] == pytest.approx(8 / 4.9)
    assert metrics["total_token_goodput"] == pytest.approx(28 / 4.9)
    assert metrics["output_throughput"] == pytest.approx(13 / 4.9)
    assert metrics["a.output_goodput"] == 0.0
    assert metrics["b.output_goodput"] == pytest.approx(8 / 4.9)


def test_without_slos_or_token_counts_there_is_no_token_goodput() -> None:
    plain = [request(0)]
    assert run_metrics(summarise_run(plain, ["a"]), plain)["output_goodput"] is None
    unknown = [request(0, output_tokens=None)]
    statistics = summarise_run(unknown, ["a"], {"a": RequestSlo()}).overall
    assert (statistics.good, statistics.good_output_tokens) == (1, None)


def test_without_slos_there_is_no_goodput() -> None:
    statistics = summarise_run([request(0)], ["a"]).overall
    assert (statistics.good, statistics.goodput, statistics.goodput_share) == (None, None, None)


def test_percentiles_are_over_completed_requests_of_the_stable_middle() -> None:
    # the TTFT of request i is 1500 + i ms. Requests 10 to 90 count, without 50, which failed: 80 values, whose median
    # lies between those of 49 and 51
    records = [request(i, first_token_s=i + 1.5 + i / 1000, status=FAILED if i == 50 else DONE) for i in range(101)]
    statistics = summarise_run(records, ["a"]).overall
    assert statistics.latencies["p50_ttft_ms"] == pytest.approx(1550.0)
    assert statistics.client_latencies["p50_ttft_ms"] == pytest.approx(1050.0)
    assert statistics.latencies["p99_itl_ms"] == pytest.approx(100.0)
    assert statistics.latencies["mean_e2el_ms"] == pytest.approx(1900.0)


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
