"""Turns and pauses of recorded sessions, and their replay, by hand."""

import json
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from tests.unit.workloads.traces import samples
from tuner.errors import UserError
from tuner.use_cases.traffic import ImportSettings, cut_traffic, import_traffic
from tuner.workloads.schedule import OfferedRequest, file_notes, make_schedule
from tuner.workloads.traces.formats import read_as
from tuner.workloads.traces.recording import RecordedRequest, with_turns
from tuner.workloads.traces.source import ReadOptions
from tuner.workloads.traces.turns import recorded_sessions
from tuner.workloads.traffic import Traffic, load_traffic

AGENT = (
    (10.0, 100, 20, 12.0),  # the first turn ends after 2 s
    (15.0, 150, 10, 16.0),  # 3 s later, two requests at once: the second one begins before the first has ended
    (15.5, 140, 10, 19.0),
    (20.0, 50, 10, 21.0),  # 1 s after the later end; the prompt is shorter than what was said
)
"""Time, tokens of prompt and answer, and end of the requests of a session."""


def recording_file(folder: Path, rows: Any = AGENT) -> Path:
    """Write a table of a session and a request in none, which arrives at 11 s."""
    file = folder / "table.jsonl"
    lines = [
        {"timestamp_s": at, "input_tokens": prompt, "output_tokens": answer, "session_id": "s", "end_time": end}
        for at, prompt, answer, end in rows
    ]
    lines.append({"timestamp_s": 11.0, "input_tokens": 7, "output_tokens": 3, "session_id": None, "end_time": 11.5})
    file.write_text("".join(json.dumps(each) + "\n" for each in lines))
    return file


def imported(folder: Path, **changes: Any) -> Traffic:
    """Import the recording, and let later turns wait for answers."""
    import_traffic(recording_file(folder), folder / "traffic.yaml", ImportSettings())
    text = (folder / "traffic.yaml").read_text().replace("requests.jsonl}}", "requests.jsonl, when: answered}}")
    (folder / "answered.yaml").write_text(
        text.replace("trace:\n      file", "trace:\n      when: answered\n      file")
    )
    return load_traffic(folder / "answered.yaml").model_copy(update=changes)


def of(offered: list[OfferedRequest], *names: str) -> list[tuple[Any, ...]]:
    return [tuple(getattr(each, name) for name in names) for each in offered]


DELAYS = """{"timestamp": 1000, "input_length": 100, "output_length": 20, "session_id": "s"}
{"timestamp": 1500, "input_length": 7, "output_length": 3, "session_id": "t"}
{"delay": 2000, "input_length": 150, "output_length": 10, "session_id": "s"}
{"timestamp": null, "delay": 500, "input_length": 170, "output_length": 10, "session_id": "s"}
{"timestamp": 9000, "delay": 250, "input_length": 20, "output_length": 3, "session_id": "t"}
"""
"""What AIPerf replays: later turns have a delay in ms after the answer before them, with or without a time."""


def test_delays_of_aiperf_are_the_pauses_between_turns(tmp_path: Path) -> None:
    file = tmp_path / "trace.jsonl"
    file.write_text(DELAYS)
    found = read_as(file, None, ReadOptions())
    assert found.times_s("ms") == [1.0, 1.5, 3.0, 3.5, 9.0]
    assert [(each.session, each.turn) for each in found.requests] == [(0, 0), (1, 0), (0, 1), (0, 2), (1, 1)]
    assert found.pauses_s("ms") == [None, None, 2.0, 0.5, 0.25]
    rule = "turns with a delay after the answer before: 3; their times count no answers, their pauses are exact"
    assert rule in found.remarks


@pytest.mark.parametrize(
    "row",
    [
        '{"delay": 2000, "input_length": 150, "output_length": 10, "session_id": "new"}',
        '{"delay": 2000, "input_length": 150, "output_length": 10}',
        '{"delay": -1, "input_length": 150, "output_length": 10, "session_id": "s"}',
        '{"input_length": 150, "output_length": 10, "session_id": "s"}',
    ],
)
def test_a_turn_without_a_time_and_a_turn_before_it_is_refused(tmp_path: Path, row: str) -> None:
    file = tmp_path / "trace.jsonl"
    file.write_text(f"{DELAYS}{row}\n")
    with pytest.raises(UserError, match=r"trace\.jsonl:6: "):
        read_as(file, None, ReadOptions())


def test_requests_before_the_end_of_a_turn_belong_to_it() -> None:
    requests = [RecordedRequest(at, prompt, answer, (), 0) for at, prompt, answer, _ in AGENT]
    found = with_turns(requests, [end for _, _, _, end in AGENT])
    assert [(each.turn, each.pause) for each in found] == [(0, None), (1, 3.0), (1, None), (2, 1.0)]


def test_a_pause_is_not_known_where_one_answer_of_a_fan_out_has_no_end() -> None:
    requests = [RecordedRequest(at, 1, 1, (), 0) for at in (0.0, 1.0, 9.0)]
    found = with_turns(requests, [5.0, None, 10.0])
    assert [(each.turn, each.pause) for each in found] == [(0, None), (0, None), (1, None)]


def test_without_ends_each_request_is_a_turn_whose_pause_is_not_known() -> None:
    requests = [RecordedRequest(at, 1, 1, (), 0) for at in (0.0, 1.0)] + [RecordedRequest(2.0, 1, 1)]
    found = with_turns(requests, [None] * 3)
    assert [(each.turn, each.pause) for each in found] == [(0, None), (1, None), (0, None)]


def test_dynamos_trace_has_ends(tmp_path: Path) -> None:
    # received 2,500 ms after the first one, which ended after 500 ms
    file = tmp_path / "trace"
    file.write_text(samples.DYNAMO)
    second = read_as(file, None, ReadOptions()).requests[1]
    assert (second.turn, second.pause) == (1, 2000.0)


def test_a_replay_sends_sessions_and_waits_for_their_answers(tmp_path: Path) -> None:
    offered = make_schedule(imported(tmp_path), 1)
    assert of(offered, "session", "turn", "at_s", "pause_s") == [
        (0, 0, 0.0, 0.0),
        (0, 1, None, 3.0),
        (0, 1, None, 3.0),
        (0, 2, None, 1.0),
        (1, 0, 1.0, 0.0),
    ]
    # turn 2 goes on after 100 + 20 tokens; the last prompt is too short for 150 + 10 and begins afresh
    assert of(offered, "input_tokens", "context_tokens", "afresh") == [
        (100, 0, False),
        (30, 120, False),
        (20, 120, False),
        (50, 0, True),
        (7, 0, False),
    ]


def test_the_notes_of_a_replay_count_arrivals(tmp_path: Path) -> None:
    notes = file_notes(imported(tmp_path))
    assert notes[0] == "trace traffic.requests.jsonl: 2 arrivals in 1 s, 1 arrivals/s"
    assert notes[1].startswith("sessions: 2.5 requests for each arrival")


def test_rates_of_a_replay_count_requests(tmp_path: Path) -> None:
    load = imported(tmp_path)
    assert load.has_sessions
    assert load.requests_per_arrival == 2.5
    assert [each.at_s for each in make_schedule(load.at_rate(2 * (load.mean_rate or 0)), 1) if each.turn == 0] == [
        0.0,
        0.5,
    ]
    # a pause is the user's, whatever the rate
    assert make_schedule(load.at_rate(9), 1)[1].pause_s == 3.0


def test_a_recorded_replay_has_no_sessions(tmp_path: Path) -> None:
    import_traffic(recording_file(tmp_path), tmp_path / "traffic.yaml", ImportSettings())
    load = load_traffic(tmp_path / "traffic.yaml")
    offered = make_schedule(load, 1)
    assert not load.has_sessions
    assert of(offered, "at_s", "session", "turn") == [(at, None, 0) for at in (0.0, 1.0, 5.0, 5.5, 10.0)]


def test_unknown_pauses_are_asked_for(tmp_path: Path) -> None:
    file = recording_file(tmp_path, [(at, prompt, answer, None) for at, prompt, answer, _ in AGENT])
    trace = {"file": str(file), "when": "answered"}
    kinds = {"classes": {"a": {"trace": trace}}, "arrivals": {"process": "poisson", "rate": 1}, "requests": 9}
    with pytest.raises(UserError, match=r"lacks the ends of answers.*give `pause_ms`"):
        make_schedule(Traffic.model_validate(kinds), 1)
    stated = {**kinds, "classes": {"a": {"trace": {**trace, "pause_ms": 1500}}}}
    offered = make_schedule(Traffic.model_validate(stated), 1)
    assert [each.pause_s for each in offered[:4]] == [0.0, 1.5, 1.5, 1.5]
    assert recorded_sessions(file).lacks_pauses


def test_blocks_decide_whether_a_prompt_goes_on(tmp_path: Path) -> None:
    rows = [
        {"timestamp": 0, "input_length": 40, "output_length": 8, "hash_ids": [1, 2, 3], "session_id": "s"},
        {"timestamp": 9, "input_length": 80, "output_length": 8, "hash_ids": [1, 2, 3, 4, 5], "session_id": "s"},
        {"timestamp": 9, "input_length": 60, "output_length": 8, "hash_ids": [1, 9, 3, 4], "session_id": "t"},
        {"timestamp": 20, "input_length": 90, "output_length": 8, "hash_ids": [7, 9, 3, 4, 5, 6], "session_id": "t"},
    ]
    file = tmp_path / "blocks.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    import_traffic(file, tmp_path / "t.yaml", ImportSettings(unit="s", block_tokens=16))
    kind = {"trace": {"file": str(tmp_path / "t.requests.jsonl"), "when": "answered", "pause_ms": 100}}
    load = Traffic.model_validate(
        {"arrivals": {"process": "constant", "rate": 1}, "requests": 4, "classes": {"a": kind}}
    )
    offered = make_schedule(load, 1)
    assert of(offered, "turn", "afresh", "context_tokens") == [
        (0, False, 0),
        (1, False, 48),
        (0, False, 0),
        (1, True, 0),
    ]
    # what two first prompts have in common is shared, too: block 1
    assert [sum(each.tokens for each in offered[place].segments) for place in (0, 2)] == [39, 16]


def test_a_cut_keeps_turns_and_pauses(tmp_path: Path) -> None:
    import_traffic(recording_file(tmp_path), tmp_path / "traffic.yaml", ImportSettings())
    cut_traffic(tmp_path / "traffic.yaml", 4, tmp_path / "short.yaml", None)
    lines = [json.loads(line) for line in (tmp_path / "short.requests.jsonl").read_text().splitlines()[1:]]
    assert {each["turn"]: each.get("pause_s") for each in lines if each.get("pause_s") is not None}.items() <= {
        1: 3.0,
        2: 1.0,
    }.items()
    assert any("pause_s" in each for each in lines)


def test_times_of_another_file_are_refused(tmp_path: Path) -> None:
    kind = {"trace": {"file": str(recording_file(tmp_path)), "when": "answered"}}
    arrivals = {"process": "trace", "file": str(tmp_path / "other.txt")}
    with pytest.raises(ValidationError, match="needs times of the same file and one class"):
        Traffic.model_validate({"arrivals": arrivals, "classes": {"a": kind}})
