"""The statistics of a run, in values that a person worked out."""

import pytest

from tuner.workloads.results import RequestRecord, RequestStatus, latency_statistics


def completed(index: int, ttft_s: float) -> RequestRecord:
    """Return a request of 11 tokens, the last of them 0.1 s after the first: a TPOT of 10 ms."""
    return RequestRecord(
        index,
        "chat",
        RequestStatus.COMPLETED,
        due_s=1.0,
        sent_s=1.0,
        first_token_s=1.0 + ttft_s,
        end_s=1.1 + ttft_s,
        output_tokens=11,
        gaps_s=(0.01,) * 10,
    )


def failed(status: RequestStatus, end_s: float | None, first_token_s: float | None = None) -> RequestRecord:
    return RequestRecord(3, "chat", status, due_s=1.0, sent_s=1.0, first_token_s=first_token_s, end_s=end_s)


@pytest.mark.parametrize(
    ("record", "ttft", "e2el"),
    [
        # the 99th percentile of four lies 0.97 of the way from the third to the fourth
        (failed(RequestStatus.TIMED_OUT, 61.0), 30 + 0.97 * 59_970, 130 + 0.97 * 59_870),  # waited 60 s
        (failed(RequestStatus.REFUSED, 1.002), 30, 130),  # fails at once: as slow as the slowest
        (failed(RequestStatus.NOT_SENT, None), 30, 130),
        (failed(RequestStatus.TIMED_OUT, 61.0, 1.04), 30 + 0.97 * 10, 130 + 0.97 * 59_870),  # its TTFT is known
    ],
)
def test_a_failed_request_counts_in_percentiles_and_in_no_mean(record: RequestRecord, ttft: float, e2el: float) -> None:
    records = [*(completed(index, ttft_s) for index, ttft_s in enumerate((0.01, 0.02, 0.03))), record]
    found = latency_statistics(records, None)
    assert found["mean_ttft_ms"] == pytest.approx(20)
    assert found["p99_ttft_ms"] == pytest.approx(ttft)
    assert found["p99_e2el_ms"] == pytest.approx(e2el)
    assert found["p99_tpot_ms"] == pytest.approx(10)
    assert found["p99_itl_ms"] == pytest.approx(10)


def test_without_a_completed_request_there_is_no_latency() -> None:
    found = latency_statistics([failed(RequestStatus.TIMED_OUT, 61.0)], None)
    assert set(found.values()) == {None}
