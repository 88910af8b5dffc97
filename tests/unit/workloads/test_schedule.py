"""Schedules and the windows of a warm-up: the same in another process, and as the traffic states."""

import json
import statistics
import subprocess
import sys
from collections import Counter
from dataclasses import astuple, replace
from pathlib import Path
from typing import Any

import pytest

from records.trials import Repeat
from tuner.errors import UserError
from tuner.workloads.request_class import Length
from tuner.workloads.schedule import OfferedRequest, make_schedule
from tuner.workloads.spec import ClosedLoop
from tuner.workloads.traffic import Traffic
from tuner.workloads.windows import TOLERANCES, agree, window_of

ONE = {"all": {"input": 10, "output": 5}}


def schedule(seed: int = 7, **traffic: Any) -> list[OfferedRequest]:
    return make_schedule(Traffic.model_validate({"classes": ONE, **traffic}), seed)


def times(**traffic: Any) -> list[float]:
    return [offered.at_s for offered in schedule(**traffic) if offered.at_s is not None]


def input_lengths(offered_requests: list[OfferedRequest]) -> list[int]:
    lengths = []
    for offered in offered_requests:
        assert offered.input_tokens is not None
        lengths.append(offered.input_tokens)
    return lengths


def dispersion(at: list[float], window_s: float) -> float:
    """Return variance / mean of the counts in whole windows."""
    counts = [0] * int(at[-1] / window_s)
    for time in at:
        if time < len(counts) * window_s:
            counts[int(time / window_s)] += 1
    return statistics.variance(counts) / statistics.mean(counts)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_poisson_has_the_rate_and_dispersion_1(seed: int) -> None:
    at = times(seed=seed, arrivals={"process": "poisson", "rate": 50}, requests=10_000)
    assert len(at) == 10_000
    assert at == sorted(at)
    # 10,000 gaps of mean 0.02 s: the last arrival is at 200 s with a standard deviation of 2 s
    assert at[-1] == pytest.approx(200, abs=6)
    assert dispersion(at, 0.02) == pytest.approx(1.0, abs=0.05)


def test_gamma_arrivals_have_the_dispersion_of_their_burstiness() -> None:
    # in windows of many arrivals, the index tends to 1 / burstiness
    bursts = times(arrivals={"process": "gamma", "rate": 50, "burstiness": 0.25}, requests=100_000)
    even = times(arrivals={"process": "gamma", "rate": 50, "burstiness": 4}, requests=100_000)
    assert dispersion(bursts, 1.0) == pytest.approx(4.0, rel=0.15)
    assert dispersion(even, 1.0) == pytest.approx(0.25, rel=0.15)
    assert bursts[-1] == pytest.approx(2000, rel=0.03)


def test_constant_arrivals_are_exact_and_start_at_0() -> None:
    assert times(arrivals={"process": "constant", "rate": 4}, requests=5) == [0.0, 0.25, 0.5, 0.75, 1.0]
    assert times(arrivals={"process": "constant", "rate": 4}, duration_s=1) == [0.0, 0.25, 0.5, 0.75]
    assert times(arrivals={"process": "constant", "rate": 4}, duration_s=1, requests=2) == [0.0, 0.25]


@pytest.mark.parametrize(("low", "high", "first_half"), [(0, 2000, 0.25), (2000, 0, 0.75), (1000, 1000, 0.5)])
def test_a_ramp_has_as_many_arrivals_as_the_area_under_its_rate(low: float, high: float, first_half: float) -> None:
    # the area is 10 s at a mean of 1,000/s; a quarter, three quarters or half of it lies in the first half of the time
    at = times(arrivals={"process": "ramp", "start_rate": low, "end_rate": high}, duration_s=10)
    assert len(at) == pytest.approx(10_000, abs=400)
    assert at == sorted(at)
    assert at[-1] < 10
    assert sum(time < 5 for time in at) / len(at) == pytest.approx(first_half, abs=0.02)


def test_a_trace_starts_at_0_and_can_be_sped_up(tmp_path: Path) -> None:
    trace = tmp_path / "trace.txt"
    trace.write_text("100.5\n\n101.5\n101.5\n104.5\n")
    assert times(arrivals={"process": "trace", "file": trace}) == [0.0, 1.0, 1.0, 4.0]
    assert times(arrivals={"process": "trace", "file": trace, "speed": 2}) == [0.0, 0.5, 0.5, 2.0]
    assert times(arrivals={"process": "trace", "file": trace}, duration_s=4) == [0.0, 1.0, 1.0]
    assert times(arrivals={"process": "trace", "file": trace}, requests=2) == [0.0, 1.0]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("1\n3\n2\n", r"trace.txt:3: 2 s follows 3 s; sort the trace by time"),
        ("1\n\nlater\n", r"trace.txt:3: 'later' is not a time in seconds"),
        ("1\nnan\n", r"trace.txt:2: 'nan' is not a time"),
        ("\n", r"trace.txt' is empty"),
    ],
)
def test_a_bad_trace_is_an_error_with_its_line(tmp_path: Path, text: str, message: str) -> None:
    trace = tmp_path / "trace.txt"
    trace.write_text(text)
    with pytest.raises(UserError, match=message):
        times(arrivals={"process": "trace", "file": trace})


def test_a_closed_loop_has_no_times() -> None:
    offered_requests = schedule(arrivals={"process": "closed", "users": 3}, requests=4)
    assert [offered.at_s for offered in offered_requests] == [None] * 4
    assert [offered.index for offered in offered_requests] == [0, 1, 2, 3]


def test_classes_have_their_weight_and_their_lengths() -> None:
    classes = {
        "short": {"weight": 3, "input": 128, "output": 64},
        "long": {"weight": 1, "input": {"uniform": [1000, 1010]}, "output": {"uniform": [7, 7]}},
        "never": {"weight": 0, "input": 9, "output": 9},
    }
    offered_requests = schedule(classes=classes, arrivals={"process": "poisson", "rate": 9}, requests=8000)
    counts = {name: sum(offered.name == name for offered in offered_requests) for name in classes}
    # 8,000 draws at 3/4: standard deviation 39
    assert counts["short"] == pytest.approx(6000, abs=120)
    assert counts["never"] == 0
    assert {(o.input_tokens, o.output_tokens) for o in offered_requests if o.name == "short"} == {(128, 64)}
    assert {o.input_tokens for o in offered_requests if o.name == "long"} == set(range(1000, 1011))
    assert {o.output_tokens for o in offered_requests if o.name == "long"} == {7}


def test_lognormal_lengths_have_the_given_mean_and_coefficient_of_variation() -> None:
    length = {"lognormal": {"mean": 365, "cv": 0.4, "max": 100_000}}
    offered_requests = schedule(
        classes={"chat": {"input": length, "output": 1}}, arrivals={"process": "closed"}, requests=20_000
    )
    lengths = input_lengths(offered_requests)
    assert statistics.mean(lengths) == pytest.approx(365, rel=0.02)
    assert statistics.stdev(lengths) / statistics.mean(lengths) == pytest.approx(0.4, rel=0.05)


def test_lengths_out_of_bounds_are_set_to_the_bound() -> None:
    length = {"lognormal": {"mean": 100, "cv": 2, "min": 50, "max": 200}}
    offered_requests = schedule(
        classes={"a": {"input": length, "output": 1}}, arrivals={"process": "closed"}, requests=1000
    )
    lengths = input_lengths(offered_requests)
    assert (min(lengths), max(lengths)) == (50, 200)


def test_lengths_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "lengths.txt"
    file.write_text("10\n20\n\n30\n")
    classes = {"a": {"input": {"file": file}, "output": 1}}
    offered_requests = schedule(classes=classes, arrivals={"process": "closed"}, requests=200)
    assert {offered.input_tokens for offered in offered_requests} == {10, 20, 30}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("10\n0\n", r"lengths.txt:2: '0' is not a length"),
        ("ten\n", r"lengths.txt:1: 'ten' is not a length"),
        ("", "is empty"),
    ],
)
def test_a_bad_file_of_lengths_is_an_error_with_its_line(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "lengths.txt"
    file.write_text(text)
    with pytest.raises(UserError, match=message):
        schedule(classes={"a": {"input": {"file": file}, "output": 1}}, arrivals={"process": "closed"}, requests=1)


def test_documents_are_chosen_by_zipfs_law() -> None:
    prefix = {"tokens": 100, "documents": 3, "zipf": 1}
    offered_requests = schedule(
        classes={"a": {"input": 1, "output": 1, "prefix": prefix}}, arrivals={"process": "closed"}, requests=11_000
    )
    # 1 : 1/2 : 1/3 of 11,000 is 6,000, 3,000 and 2,000
    counts = [sum(offered.document == k for offered in offered_requests) for k in range(3)]
    assert counts == pytest.approx([6000, 3000, 2000], abs=200)


def test_another_length_distribution_does_not_move_arrivals() -> None:
    poisson = {"process": "poisson", "rate": 5}
    one = schedule(arrivals=poisson, requests=50)
    other = schedule(
        arrivals=poisson, requests=50, classes={"all": {"input": {"uniform": [1, 99]}, "output": {"uniform": [1, 9]}}}
    )
    assert [o.at_s for o in one] == [o.at_s for o in other]
    assert [o.text_seed for o in one] == [o.text_seed for o in other]


def test_a_seed_gives_the_same_schedule_in_another_process() -> None:
    traffic = {
        "arrivals": {"process": "gamma", "rate": 5, "burstiness": 0.5},
        "requests": 20,
        "classes": {
            "a": {"input": {"uniform": [1, 99]}, "output": 3, "prefix": {"tokens": 9, "documents": 4}},
            "b": {"input": {"lognormal": {"mean": 50, "cv": 1, "max": 500}}, "output": 8},
        },
    }
    code = (
        "import json, sys\nfrom dataclasses import astuple\n"
        "from tuner.workloads.schedule import make_schedule\nfrom tuner.workloads.traffic import Traffic\n"
        "print(json.dumps([astuple(o) for o in make_schedule(Traffic.model_validate(json.loads(sys.argv[1])), 7)]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, json.dumps(traffic)], capture_output=True, text=True, check=True, timeout=60
    )
    here = [astuple(offered) for offered in make_schedule(Traffic.model_validate(traffic), 7)]
    assert json.loads(done.stdout) == json.loads(json.dumps(here))
    assert here != [astuple(offered) for offered in make_schedule(Traffic.model_validate(traffic), 8)]


def test_a_duration_without_arrivals_is_refused() -> None:
    with pytest.raises(UserError, match=r"no request is due within 0\.001 s; raise the rate or the duration"):
        schedule(arrivals={"process": "poisson", "rate": 0.1}, duration_s=0.001)


@pytest.mark.parametrize(
    ("traffic", "reason"),
    [
        ({"arrivals": {"process": "poisson", "rate": 1e300}, "duration_s": 1e6}, "more than 1000 requests"),
        ({"arrivals": {"process": "constant", "rate": 5e-324}, "requests": 9}, "the last requests are never due"),
        ({"arrivals": {"process": "poisson", "rate": 1e-308}, "requests": 900}, "the last requests are never due"),
    ],
)
def test_requests_that_are_too_many_or_never_due_are_refused(
    traffic: dict[str, Any], reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tuner.workloads.schedule.MAX_REQUESTS", 1000)
    with pytest.raises(UserError, match=reason):
        schedule(**traffic)


def test_adapters_are_chosen_at_random_and_move_nothing_else() -> None:
    arrivals = {"process": "poisson", "rate": 50}
    one = {"all": {"input": {"uniform": [1, 99]}, "output": 5}}
    plain = schedule(arrivals=arrivals, requests=3000, classes=one)
    adapted = schedule(arrivals=arrivals, requests=3000, classes={"all": {**one["all"], "adapters": ["a", "b", "c"]}})
    assert [replace(each, adapter=None) for each in adapted] == plain
    counts = Counter(each.adapter for each in adapted)
    # 1,000 each, with a standard deviation of 26
    assert all(900 < counts[name] < 1100 for name in ("a", "b", "c"))
    assert sum(counts.values()) == 3000


CHAT = {"input": 100, "output": 200}


def window(**fields: Any) -> Traffic:
    found = window_of(Traffic.model_validate({"classes": {"chat": CHAT}, **fields}))
    assert isinstance(found, Traffic)
    return found


def poisson(rate: float) -> dict[str, Any]:
    return {"process": "poisson", "rate": rate}


def test_a_closed_loop_sends_one_short_request_for_each_user() -> None:
    load = ClosedLoop(max_concurrency=50, num_prompts=200)
    assert window_of(load) == load.warmup()


def test_a_load_without_a_warm_up_has_no_windows() -> None:
    fields = {"arrivals": poisson(1), "requests": 9, "classes": {"chat": CHAT}, "warmup_requests": 0}
    assert window_of(ClosedLoop(warmup_prompts=0)) is None
    assert window_of(Traffic.model_validate(fields)) is None


def test_an_open_loop_keeps_its_rate_and_its_lengths() -> None:
    found = window(arrivals=poisson(32), requests=1024, max_in_flight=64)
    assert (found.rate, found.requests, found.max_in_flight) == (32, 52, 64)  # 5 % of 1,024
    assert found.classes["chat"].output == Length(fixed=CHAT["output"])
    assert found.seed == 501_000


@pytest.mark.parametrize(
    ("output", "expected"),
    [
        (2000, {"fixed": 256}),
        ({"uniform": [100, 900]}, {"uniform": (100, 256)}),
        ({"uniform": [300, 900]}, {"uniform": (256, 256)}),
        (
            {"lognormal": {"mean": 400, "cv": 0.6, "max": 900}},
            {"lognormal": {"mean": 256, "cv": 0.6, "min": 1, "max": 256}},
        ),
    ],
)
def test_long_answers_of_a_window_end_early(output: Any, expected: dict[str, Any]) -> None:
    kinds = {"a": {**CHAT, "output": output}}
    found = window(arrivals=poisson(10), requests=100, classes=kinds)
    assert found.classes["a"].output == Length.model_validate(expected)
    closed = window(arrivals={"process": "closed", "users": 50}, requests=100, classes=kinds)
    assert closed.classes["a"].longest_output() == 32


def test_a_low_rate_is_raised_so_that_a_window_is_due_within_ten_seconds() -> None:
    found = window(arrivals=poisson(0.1), requests=60)
    assert found.rate == pytest.approx(1.6)
    assert found.requests == 16


def test_a_ramp_becomes_arrivals_at_its_highest_rate() -> None:
    found = window(arrivals={"process": "ramp", "start_rate": 0, "end_rate": 20}, duration_s=60)
    assert (found.rate, found.requests, found.duration_s) == (20, 16, None)


def test_a_trace_is_cut_after_ten_seconds(tmp_path: Path) -> None:
    (tmp_path / "times").write_text("\n".join(str(5 * k) for k in range(100)))
    found = window(arrivals={"process": "trace", "file": str(tmp_path / "times")})
    assert [each.at_s for each in make_schedule(found, 1)] == [0, 5]


def test_a_closed_loop_of_traffic_has_all_its_users() -> None:
    found = window(arrivals={"process": "closed", "users": 250}, requests=500)
    assert (found.users, found.requests, found.duration_s) == (250, 250, None)


@pytest.mark.parametrize("more", [{"output": 8}, {"json_schema": {"type": "object"}}])
def test_answers_that_are_short_or_must_end_with_their_json_keep_their_length(more: dict[str, Any]) -> None:
    kind = {**CHAT, **more}
    assert (
        window(arrivals=poisson(10), requests=100, classes={"a": kind}).classes["a"].longest_output() == kind["output"]
    )


def test_a_rare_class_comes_three_times_on_average_and_an_unused_one_never() -> None:
    rare, never = {**CHAT, "weight": 0.001}, {**CHAT, "weight": 0}
    found = window(arrivals=poisson(10), requests=100, classes={"chat": CHAT, "rare": rare, "never": never})
    assert set(found.classes) == {"chat", "rare"}
    # 3 / 16 of the weight of all classes, 1.001
    assert found.classes["rare"].weight == pytest.approx(0.1877, abs=1e-4)


def test_windows_have_the_same_schedule_with_other_texts() -> None:
    lengths = {"input": {"uniform": [1, 1000]}, "output": {"uniform": [1, 50]}}
    found = window(arrivals=poisson(10), requests=100, classes={"a": lengths, "b": lengths})
    first, second = make_schedule(found, found.seed, 1), make_schedule(found, found.seed, 2)
    assert [(e.at_s, e.name, e.input_tokens, e.output_tokens) for e in first] == [
        (e.at_s, e.name, e.input_tokens, e.output_tokens) for e in second
    ]
    assert not {each.text_seed for each in first} & {each.text_seed for each in second}


@pytest.mark.parametrize(
    ("e2el", "ttft", "expected"),
    [
        (119, 149, True),
        (84, 67, True),
        (121, 100, False),  # 20 % is the most for the mean latency
        (100, 151, False),  # 50 % for the p99 of the TTFT
        (82, 100, False),
        (None, 100, False),
        (100, 0.0, False),
        (95, 2.0, False),
    ],
)
def test_two_windows_agree_within_the_tolerances(e2el: float | None, ttft: float, expected: bool) -> None:
    def of(mean_e2el: float | None, p99_ttft: float) -> Repeat:
        return Repeat(0, 0, 16, 16, 0, 1.0, {"mean_e2el_ms": mean_e2el, "p99_ttft_ms": p99_ttft})

    assert agree(of(100, 100), of(e2el, ttft)) is expected


@pytest.mark.parametrize(("latency", "expected"), [(6.9, True), (7.1, False)])
def test_a_difference_of_five_milliseconds_is_noise(latency: float, expected: bool) -> None:
    short, longer = (Repeat(0, 0, 16, 16, 0, 1.0, dict.fromkeys(TOLERANCES, ms)) for ms in (2.0, latency))
    assert agree(short, longer) is expected
