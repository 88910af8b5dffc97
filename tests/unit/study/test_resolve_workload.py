"""The load of a study and its judge: which objectives and SLOs traffic brings, and what is refused."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from tuner.errors import UserError
from tuner.study.resolve_workload import find_judge, find_workload
from tuner.workloads.presets import Preset, load_preset, preset_names
from tuner.workloads.suite import Suite
from tuner.workloads.traffic import Traffic

BURST = load_preset("qwen2.5-0.5b-t4")
MIXED = load_preset("mixed")
PLAIN = "arrivals: {process: poisson, rate: 4}\nrequests: 10\nclasses: {a: {input: 4, output: 4}}\n"


def written(folder: Path, text: str) -> str:
    file = folder / "traffic.yaml"
    file.write_text(text)
    return str(file)


def test_promises_become_constraints_of_their_class() -> None:
    judge = find_judge(MIXED, MIXED.workload, (), (), own=True)
    assert [str(slo) for slo in judge.slos] == [
        "siso.p95_ttft_ms<5000",
        "silo.p95_itl_ms<250",
        "liso.p95_ttft_ms<5000",
        "lilo.p95_itl_ms<250",
    ]
    assert [objective.metric for objective in judge.objectives][:2] == ["goodput", "worst.goodput_share"]


def test_a_file_with_promises_is_judged_by_its_goodput(tmp_path: Path) -> None:
    load = find_workload(BURST, [written(tmp_path, PLAIN + "slo: {a: {ttft_p95_ms: 9}}\n")], None, {})
    judge = find_judge(BURST, load, (), (), own=False)
    assert [str(slo) for slo in judge.slos] == ["a.p95_ttft_ms<9"]
    assert judge.objectives[0].metric == "goodput"


def test_a_file_without_promises_is_judged_by_throughput(tmp_path: Path) -> None:
    load = find_workload(BURST, [written(tmp_path, PLAIN)], None, {})
    judge = find_judge(BURST, load, (), (), own=False)
    assert [str(slo) for slo in judge.slos] == ["success_rate>=1"]
    assert judge.objectives[0].metric == "output_throughput"


def test_the_rate_and_the_temperature_are_the_users(tmp_path: Path) -> None:
    load = find_workload(BURST, [written(tmp_path, PLAIN)], 7.5, {"temperature": 0.0})
    assert isinstance(load, Traffic)
    assert (load.arrivals.rate, load.temperature) == (7.5, 0.0)  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("text", "rate", "given", "message"),
    [
        (PLAIN, None, {"max_concurrency": 5}, "--users is for the closed loop of fixed lengths"),
        (PLAIN.replace("poisson, rate: 4", "closed"), 5.0, {}, "arrivals of process 'closed' have no single rate"),
        (PLAIN, 0.0, {}, "a rate of 0 requests/s is not possible; give a number above 0"),
        (PLAIN, math.nan, {}, "a rate of nan requests/s"),
        (
            PLAIN.replace("rate: 4", "rate: 0.001").replace("requests: 10", "duration_s: 1"),
            None,
            {},
            "no request is due within",
        ),
    ],
)
def test_what_does_not_fit_is_refused(
    tmp_path: Path, text: str, rate: float | None, given: dict[str, int], message: str
) -> None:
    with pytest.raises(UserError, match=message):
        find_workload(BURST, [written(tmp_path, text)], rate, given)


@pytest.mark.parametrize(
    ("preset", "objective", "message"),
    [
        (BURST, "goodput", "goodput is a metric of traffic; give --workload"),
        (BURST, "a.p95_ttft_ms", "is a metric of traffic"),
        (MIXED, "nobody.goodput_share", "there is no class 'nobody'; classes: siso, silo, liso, lilo"),
    ],
)
def test_what_the_load_cannot_measure_is_refused(preset: Preset, objective: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        find_judge(preset, preset.workload, (objective,), (), own=True)


@pytest.mark.parametrize(
    ("objectives", "slos", "message"),
    [
        (("goodput",), (), "goodput: no class was promised anything; give `slo` in the traffic"),
        (("a.goodput_share",), (), "no class was promised anything"),
        ((), ("capacity>=4",), "capacity is an objective, not an SLO"),
    ],
)
def test_what_promises_nothing_cannot_be_judged_by_promises(
    tmp_path: Path, objectives: tuple[str, ...], slos: tuple[str, ...], message: str
) -> None:
    load = find_workload(BURST, [written(tmp_path, PLAIN)], None, {})
    with pytest.raises(UserError, match=message):
        find_judge(BURST, load, objectives, slos, own=False)


def suite(folder: Path, night: str = PLAIN.replace("a:", "b:"), second: str = "night.yaml") -> list[str]:
    (folder / "more").mkdir(exist_ok=True)
    (folder / "day.yaml").write_text(PLAIN + "slo: {a: {ttft_p95_ms: 9}}\n")
    (folder / second).write_text(night)
    return [str(folder / "day.yaml"), str(folder / second)]


def test_several_loads_are_judged_each_by_its_own(tmp_path: Path) -> None:
    load = find_workload(BURST, suite(tmp_path), None, {"temperature": 0.0})
    assert isinstance(load, Suite)
    assert ([*load.loads], load.temperature) == (["day", "night"], 0.0)
    judge = find_judge(BURST, load, (), (), own=False)
    assert [str(slo) for slo in judge.slos] == ["day.a.p95_ttft_ms<9"]
    assert [objective.metric for objective in judge.objectives] == [
        *("day.goodput", "day.p99_tpot_ms", "day.p99_ttft_ms"),
        *("night.output_throughput", "night.p99_tpot_ms", "night.p99_ttft_ms"),
    ]
    named = ("goodput_share", "worst.p99_ttft_ms", "night.b.goodput", "day.client.p50_ttft_ms", "day.worst.goodput")
    assert find_judge(BURST, load, named, ("night.b.p99_tpot_ms<9",), own=False).objectives


@pytest.mark.parametrize(
    ("objective", "message"),
    [
        ("output_throughput", "has no meaning over several loads; name one: day.output_throughput"),
        ("noon.goodput", "there is no load or class 'noon'; known: day, night, "),
        ("a.goodput", "there is no load or class 'a'"),
        ("capacity", "give one traffic of process poisson"),
    ],
)
def test_what_several_loads_do_not_give_is_refused(tmp_path: Path, objective: str, message: str) -> None:
    load = find_workload(BURST, suite(tmp_path), None, {})
    with pytest.raises(UserError, match=message):
        find_judge(BURST, load, (objective,), (), own=False)


@pytest.mark.parametrize(
    ("change", "rate", "message"),
    [
        ({}, 5.0, "--rate 5 is for one load, and --workload gives 2"),
        ({"night": PLAIN + "temperature: 0.5\n"}, None, "different temperatures of one server"),
        ({"second": "more/day.yaml"}, None, "day, day are not distinct; rename"),
        ({"second": "worst.yaml"}, None, "a workload cannot be called 'worst'.*; rename the file"),
    ],
)
def test_loads_that_do_not_go_together_are_refused(
    tmp_path: Path, change: dict[str, str], rate: float | None, message: str
) -> None:
    with pytest.raises(UserError, match=message):
        find_workload(BURST, suite(tmp_path, **change), rate, {})


@pytest.mark.parametrize("name", preset_names())
def test_every_preset_can_be_judged_and_scheduled(name: str) -> None:
    preset = load_preset(name)
    load = find_workload(preset, [], None, {})
    assert find_judge(preset, load, (), (), own=True).objectives
    assert load.longest_request > 1
