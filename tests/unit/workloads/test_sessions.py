"""Sessions in schedules, rates and statistics, by hand."""

import statistics
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from tuner.workloads.request_class import Length, Lognormal
from tuner.workloads.results import SESSION_ENDED, RequestRecord, RequestSlo, RequestStatus
from tuner.workloads.run_metrics import run_metrics
from tuner.workloads.schedule import OfferedRequest, make_schedule
from tuner.workloads.sessions import sessions_of
from tuner.workloads.traffic import Traffic
from tuner.workloads.windows import window_of

AGENT = {"input": 10, "output": 5, "session": {"turns": 3, "pause_ms": 2000, "fan_out": 2}}


def traffic(**fields: Any) -> Traffic:
    known = {"arrivals": {"process": "constant", "rate": 0.5}, "requests": 12, "classes": {"agent": AGENT}}
    return Traffic.model_validate({**known, **fields})


def test_a_session_arrives_once_and_has_all_its_turns() -> None:
    offered = make_schedule(traffic(), 1)
    assert [each.index for each in offered] == list(range(12))
    # two sessions of three turns with two requests each: 2 s between arrivals, at half a session a second
    assert [each.at_s for each in offered] == [0.0, 0.0, None, None, None, None, 2.0, 2.0, None, None, None, None]
    assert [each.session for each in offered] == [0] * 6 + [1] * 6
    assert [each.turn for each in offered] == [0, 0, 1, 1, 2, 2] * 2
    assert [each.pause_s for each in offered[:6]] == [0.0, 0.0, 2.0, 2.0, 2.0, 2.0]
    # a turn begins with the first request's prompt and answer of each turn before: 15 tokens a turn
    assert [each.context_tokens for each in offered[:6]] == [0, 0, 15, 15, 30, 30]
    assert len({each.text_seed for each in offered}) == 12


def test_the_session_that_reaches_the_number_of_requests_is_whole() -> None:
    assert len(make_schedule(traffic(requests=7), 1)) == 12
    assert len(make_schedule(traffic(requests=6), 1)) == 6
    assert len(make_schedule(traffic(requests=None, duration_s=5), 1)) == 18  # at 0, 2 and 4 s


def test_the_first_turns_are_those_without_sessions() -> None:
    alone = {
        "a": {"input": {"uniform": [1, 99]}, "output": {"uniform": [1, 9]}, "prefix": {"tokens": 5, "documents": 9}}
    }
    with_turns = {"a": {**alone["a"], "session": {"turns": {"uniform": [1, 5]}}}}
    arrivals = {"process": "poisson", "rate": 5}
    plain = make_schedule(traffic(arrivals=arrivals, classes=alone, requests=40), 3)
    firsts = [
        turns[0][0]
        for turns in sessions_of(make_schedule(traffic(arrivals=arrivals, classes=with_turns, requests=100), 3))
    ]
    assert [(each.at_s, each.input_tokens, each.document) for each in firsts[:20]] == [
        (each.at_s, each.input_tokens, each.document) for each in plain[:20]
    ]


def test_another_seed_of_texts_leaves_turns_pauses_and_lengths() -> None:
    session = {"turns": {"uniform": [1, 6]}, "pause_ms": {"uniform": [100, 900]}, "fan_out": {"uniform": [1, 3]}}
    kind = {"input": {"uniform": [1, 99]}, "output": {"uniform": [1, 9]}, "session": session}
    load = traffic(classes={"a": kind}, requests=100)

    def shapes(offered: list[OfferedRequest]) -> list[tuple[object, ...]]:
        return [(o.session, o.turn, o.pause_s, o.input_tokens, o.output_tokens, o.context_tokens) for o in offered]

    one, other = make_schedule(load, 1), make_schedule(load, 1, text_seed=2)
    assert shapes(one) == shapes(other)
    assert [o.text_seed for o in one] != [o.text_seed for o in other]


def test_rates_count_requests_and_arrivals_count_sessions() -> None:
    load = traffic()
    assert load.requests_per_arrival == 6.0
    assert (load.rate, load.mean_rate) == (3.0, 3.0)
    faster = load.at_rate(12)
    assert (faster.rate, faster.arrivals.model_dump()["rate"]) == (12.0, 2.0)
    assert load.at_rate_for_same_duration(12).requests == 48
    # one of four arrivals is a session of six: (3 + 6) / 4
    mixed = traffic(classes={"agent": AGENT, "chat": {"weight": 3, "input": 1, "output": 1}})
    assert mixed.requests_per_arrival == 2.25
    assert traffic(classes={"chat": {"input": 1, "output": 1}}).requests_per_arrival == 1.0


def test_means_are_those_of_what_is_drawn() -> None:
    assert Length(uniform=(2, 5)).mean() == 3.5
    tail = Lognormal(mean=10, cv=1.5, min=2, max=30)
    drawn = tail.draw(np.random.default_rng(0), 100_000)
    assert tail.bounded_mean() == pytest.approx(statistics.mean(drawn), rel=0.01)


def test_the_longest_request_is_the_last_turn() -> None:
    kind = {**AGENT, "prefix": {"tokens": 100}}
    load = traffic(classes={"agent": kind}, system_prompt=7)
    # system prompt, document, and three turns of 15 tokens
    assert load.longest_request == 7 + 100 + 45
    assert load.classes["agent"].longest_prefix() == 100 + 30


def test_warm_ups_have_no_pauses() -> None:
    load = traffic()
    warmup, window = load.warmup(), window_of(load)
    assert warmup is not None
    assert isinstance(window, Traffic)
    for each in (warmup, window):
        assert {offered.pause_s for offered in make_schedule(each, 1)} == {0.0}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"session": {"turns": 200, "fan_out": 100}}, "a session of up to 20,000 requests"),
        ({"session": {"turns": 0}}, "greater than or equal to 1"),
        ({"session": {"turns": 2, "pause": 3}}, "Extra inputs are not permitted"),
        ({"session": {"turns": 2}, "text": {"file": "x.jsonl"}, "input": None}, "sessions have generated prompts"),
        (
            {"session": None, "trace": {"file": "x", "pause_ms": 5}},
            "requests at their recorded times have no `pause_ms`",
        ),
    ],
)
def test_a_mistake_in_a_session_is_named(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        traffic(classes={"agent": {**AGENT, **changes}})


def test_numbers_of_turns_pauses_and_fan_outs_are_files_of_the_traffic(tmp_path: Path) -> None:
    files = [tmp_path / name for name in ("turns.txt", "pauses.txt", "calls.txt")]
    for file in files:
        file.write_text("2\n")
    session = {name: {"file": file} for name, file in zip(("turns", "pause_ms", "fan_out"), files, strict=True)}
    assert traffic(classes={"agent": {**AGENT, "session": session}}).files() == files
    answered = {"trace": {"file": tmp_path / "trace", "when": "answered", "pause_ms": {"file": files[1]}}}
    assert traffic(classes={"agent": answered}).files() == [files[1], tmp_path / "trace"]


def test_a_session_is_good_if_all_its_requests_are() -> None:
    def record(index: int, session: int | None, turn: int, end_s: float | None) -> RequestRecord:
        sent, status = (0.0, RequestStatus.COMPLETED) if end_s else (None, RequestStatus.NOT_SENT)
        error = None if end_s else SESSION_ENDED
        return RequestRecord(index, "a", status, 1, 1, 0.0, sent, end_s, end_s, 1, 1, (), error, session, turn)

    records = [
        *(record(0, 0, 0, 0.1), record(1, 0, 1, 0.2)),  # good
        *(record(2, 1, 0, 0.1), record(3, 1, 1, 2.0)),  # its second turn is slow
        *(record(4, 2, 0, 0.1), record(5, 2, 1, None)),  # its second turn was not sent
        record(6, None, 0, 0.1),
    ]
    found = run_metrics(records, ["a"], {"a": RequestSlo({"e2el": 1000.0})})
    assert found["goodput_share"] == pytest.approx(5 / 7)
    assert found["session_goodput_share"] == pytest.approx(1 / 3)
    assert run_metrics(records, ["a"])["session_goodput_share"] is None
    assert run_metrics(records[6:], ["a"], {"a": RequestSlo()})["session_goodput_share"] is None
