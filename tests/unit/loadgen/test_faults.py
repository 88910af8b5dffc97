"""Every fault of the fake server: each request has exactly one record, the right one, in time."""

from collections import Counter
from collections.abc import Callable

import pytest

from tests.unit.loadgen.loads import Fake, due, plan, statuses
from tuner.loadgen.run import run_plan
from tuner.workloads.results import RequestStatus

StartFake = Callable[..., Fake]

COMPLETED = RequestStatus.COMPLETED
LOST = RequestStatus.CONNECTION_LOST
REFUSED = RequestStatus.REFUSED
TIMED_OUT = RequestStatus.TIMED_OUT

ENDS = {
    "reset": LOST,
    "half": LOST,
    "short": RequestStatus.INCOMPLETE,
    "malformed": RequestStatus.MALFORMED,
    "429": REFUSED,
    "500": REFUSED,
    "stall": TIMED_OUT,
}


def test_each_fault_has_its_status_and_affects_no_other_request(start_fake: StartFake) -> None:
    # One user: the order of arrival is that of the plan. Each fault is followed by a request without one.
    fake = start_fake(faults={str(2 * place): fault for place, fault in enumerate(ENDS)})
    result = run_plan(plan(fake.url, users=1, timeout_s=1.2), due(*[None] * (2 * len(ENDS)), tokens=6))
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
    assert stalled.sent_s is not None
    assert stalled.end_s is not None
    assert 1.2 <= stalled.end_s - stalled.sent_s < 2.2
    assert stalled.error == "its deadline passed before its last token"


def test_every_fault_at_once_in_an_open_loop(start_fake: StartFake) -> None:
    fake = start_fake(faults={str(place): fault for place, fault in enumerate(ENDS)})
    result = run_plan(plan(fake.url, timeout_s=1.2), due(*[0.0] * (len(ENDS) + 3)))
    assert statuses(result.records) == Counter([*ENDS.values(), *[COMPLETED] * 3])
    assert [record.index for record in result.records] == list(range(len(ENDS) + 3))
    assert all(record.sent_s is not None and record.end_s is not None for record in result.records)
    assert result.wall_s < 4.0


def test_a_deadline_counts_from_when_the_request_was_due(start_fake: StartFake) -> None:
    fake = start_fake(faults={"0": "stall", "1": "stall"})
    first, second = run_plan(plan(fake.url, timeout_s=0.8, max_in_flight=1), due(0.0, 0.5)).records
    assert (first.status, second.status) == (TIMED_OUT, TIMED_OUT)
    assert first.end_s == pytest.approx(0.8, abs=0.3)
    # It had a place from 0.8 s on, and timed out at 1.3 s, not at 1.6 s.
    assert second.sent_s == pytest.approx(0.8, abs=0.3)
    assert second.end_s == pytest.approx(1.3, abs=0.25)


def test_a_request_without_a_place_in_flight_is_not_sent(start_fake: StartFake) -> None:
    fake = start_fake(faults={"0": "stall"})
    result = run_plan(plan(fake.url, timeout_s=1.5, max_in_flight=1), due(0.0, 0.0, 0.0, 0.0, 2.5))
    assert [record.status for record in result.records] == [TIMED_OUT] * 4 + [COMPLETED]
    assert [record.sent_s is None for record in result.records] == [False, True, True, True, False]
    assert {record.end_s for record in result.records[1:4]} == {None}
    assert {record.error for record in result.records[1:4]} == {"no place in flight became free in time"}
    # The server received only two, and the generator sent both on time.
    assert len(fake.arrivals()) == 2
    assert len(result.late_s) == 2
    assert max(result.late_s) < 1.0


def test_places_in_flight_are_freed_after_every_fault(start_fake: StartFake) -> None:
    # Two places and fourteen requests, half of them with a fault: a place that is not freed stops the rest.
    faults = [fault for fault in ENDS if fault != "stall"] * 2
    fake = start_fake(faults={str(place): fault for place, fault in enumerate(faults)})
    result = run_plan(plan(fake.url, max_in_flight=2), due(*[0.0] * 20))
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
