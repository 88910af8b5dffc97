"""The workload of a study, its objectives and SLOs, and the settings that are refused."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from tuner.errors import UserError
from tuner.settings.study import GoalSettings, WorkloadSettings
from tuner.study.specification.resolve_workload import find_goals, find_workload
from tuner.workloads.presets import Preset, load_preset, preset_names
from tuner.workloads.spec import Suite
from tuner.workloads.traffic import Traffic

BURST = load_preset("qwen2.5-0.5b-t4")
MIXED = load_preset("mixed")
PLAIN = "arrivals: {process: poisson, rate: 4}\nrequests: 10\nclasses: {a: {input: 4, output: 4}}\n"


def written(folder: Path, text: str) -> str:
    file = folder / "traffic.yaml"
    file.write_text(text)
    return str(file)


def test_slos_of_classes_become_constraints() -> None:
    goals = find_goals(MIXED, MIXED.workload, GoalSettings(), own=True)
    assert [str(slo) for slo in goals.slos] == [
        "siso.p95_ttft_ms<5000",
        "silo.p95_itl_ms<250",
        "liso.p95_ttft_ms<5000",
        "lilo.p95_itl_ms<250",
    ]
    assert [objective.metric for objective in goals.objectives][:2] == ["goodput", "worst.goodput_share"]


def test_a_file_with_slos_is_optimised_for_goodput(tmp_path: Path) -> None:
    load = find_workload(BURST, WorkloadSettings(workload=(written(tmp_path, PLAIN + "slo: {a: {ttft_p95_ms: 9}}\n"),)))
    goals = find_goals(BURST, load, GoalSettings(), own=False)
    assert [str(slo) for slo in goals.slos] == ["a.p95_ttft_ms<9"]
    assert goals.objectives[0].metric == "goodput"


def test_a_file_without_slos_is_optimised_for_throughput(tmp_path: Path) -> None:
    load = find_workload(BURST, WorkloadSettings(workload=(written(tmp_path, PLAIN),)))
    goals = find_goals(BURST, load, GoalSettings(), own=False)
    assert [str(slo) for slo in goals.slos] == ["success_rate>=1"]
    assert goals.objectives[0].metric == "output_throughput"


def test_the_given_rate_and_temperature_replace_those_of_the_file(tmp_path: Path) -> None:
    load = find_workload(BURST, WorkloadSettings(workload=(written(tmp_path, PLAIN),), rate=7.5, temperature=0.0))
    assert isinstance(load, Traffic)
    assert (load.arrivals.rate, load.temperature) == (7.5, 0.0)  # type: ignore[union-attr]


def test_the_given_users_and_requests_replace_those_of_a_closed_loop() -> None:
    preset = load_preset("conversations")
    assert isinstance(preset.workload, Traffic)
    load = find_workload(preset, WorkloadSettings(max_concurrency=8, num_prompts=32))
    assert isinstance(load, Traffic)
    assert (load.users, load.requests, load.temperature) == (8, 32, 0.0)
    assert (load.classes, load.warmup()) == (preset.workload.classes, preset.workload.warmup())
    with pytest.raises(UserError, match=r"input_len=9: .* its own lengths; give traffic of your own by workload"):
        find_workload(preset, WorkloadSettings(input_len=9))


@pytest.mark.parametrize(
    ("text", "rate", "given", "message"),
    [
        (PLAIN, None, {"max_concurrency": 5}, "max_concurrency=5: this traffic has no users"),
        (PLAIN, None, {"input_len": 5}, "input_len=5: each request class of this traffic has its own lengths; edit"),
        (PLAIN, None, {"num_prompts": 0}, "num_prompts=0: 1 to 10,000,000 are possible"),
        (
            PLAIN.replace("requests: 10", "duration_s: 9"),
            None,
            {"num_prompts": 5},
            "num_prompts=5: this traffic ends after a time",
        ),
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
def test_settings_that_do_not_fit_the_workload_are_refused(
    tmp_path: Path, text: str, rate: float | None, given: dict[str, Any], message: str
) -> None:
    with pytest.raises(UserError, match=message):
        find_workload(BURST, WorkloadSettings(workload=(written(tmp_path, text),), rate=rate, **given))


@pytest.mark.parametrize(
    ("preset", "objective", "message"),
    [
        (BURST, "goodput", "objective='goodput': this metric needs traffic; give traffic by workload"),
        (BURST, "a.p95_ttft_ms", "this metric needs traffic"),
        (MIXED, "nobody.goodput_share", "no class is called 'nobody'; classes: siso, silo, liso, lilo"),
        (MIXED, "siso.cost_per_million_output_tokens", "of the whole GPU, not of a class; give cost_per_million"),
        (MIXED, "worst.joules_per_output_token", "of the whole GPU, not of a class; give joules_per_output_token"),
        (BURST, "output_goodput", "this metric needs traffic"),
    ],
)
def test_metrics_that_the_workload_does_not_have_are_refused(preset: Preset, objective: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        find_goals(preset, preset.workload, GoalSettings(objective=(objective,)), own=True)


@pytest.mark.parametrize(
    ("objectives", "slos", "message"),
    [
        (("goodput",), (), "'goodput': no request class has an SLO; add `slo` to the traffic file"),
        (("a.goodput_share",), (), "no request class has an SLO"),
        (("output_goodput",), (), "no request class has an SLO"),
        ((), ("capacity>=4",), "capacity is an objective, not an SLO"),
    ],
)
def test_metrics_of_slos_need_slos(
    tmp_path: Path, objectives: tuple[str, ...], slos: tuple[str, ...], message: str
) -> None:
    load = find_workload(BURST, WorkloadSettings(workload=(written(tmp_path, PLAIN),)))
    with pytest.raises(UserError, match=message):
        find_goals(BURST, load, GoalSettings(objective=objectives, slo=slos), own=False)


def suite(folder: Path, night: str = PLAIN.replace("a:", "b:"), second: str = "night.yaml") -> tuple[str, ...]:
    (folder / "more").mkdir(exist_ok=True)
    (folder / "day.yaml").write_text(PLAIN + "slo: {a: {ttft_p95_ms: 9}}\n")
    (folder / second).write_text(night)
    return str(folder / "day.yaml"), str(folder / second)


def test_each_workload_of_a_suite_has_its_own_objectives(tmp_path: Path) -> None:
    load = find_workload(BURST, WorkloadSettings(workload=suite(tmp_path), temperature=0.0))
    assert isinstance(load, Suite)
    assert ([*load.loads], load.temperature) == (["day", "night"], 0.0)
    goals = find_goals(BURST, load, GoalSettings(), own=False)
    assert [str(slo) for slo in goals.slos] == ["day.a.p95_ttft_ms<9"]
    assert [objective.metric for objective in goals.objectives] == [
        *("day.goodput", "day.p99_tpot_ms", "day.p99_ttft_ms"),
        *("night.output_throughput", "night.p99_tpot_ms", "night.p99_ttft_ms"),
    ]
    named = ("goodput_share", "worst.p99_ttft_ms", "night.b.goodput", "day.client.p50_ttft_ms", "day.worst.goodput")
    assert find_goals(BURST, load, GoalSettings(objective=named, slo=("night.b.p99_tpot_ms<9",)), own=False).objectives


@pytest.mark.parametrize(
    ("objective", "message"),
    [
        ("output_throughput", "not defined over several workloads; name one: day.output_throughput"),
        ("noon.goodput", "no workload or class is called 'noon'; known: day, night, "),
        ("a.goodput", "no workload or class is called 'a'"),
        ("capacity", "one traffic file with arrivals of process poisson"),
    ],
)
def test_metrics_that_a_suite_does_not_have_are_refused(tmp_path: Path, objective: str, message: str) -> None:
    load = find_workload(BURST, WorkloadSettings(workload=suite(tmp_path)))
    with pytest.raises(UserError, match=message):
        find_goals(BURST, load, GoalSettings(objective=(objective,)), own=False)


@pytest.mark.parametrize(
    ("change", "rate", "message"),
    [
        ({}, 5.0, "rate=5: a rate is for one traffic file, and workload gives 2"),
        ({"night": PLAIN + "temperature: 0.5\n"}, None, "different temperatures, and one server has one"),
        ({"second": "more/day.yaml"}, None, "day, day are not distinct; rename"),
        ({"second": "worst.yaml"}, None, "a workload cannot be called 'worst'.*; rename the file"),
    ],
)
def test_workloads_that_do_not_fit_together_are_refused(
    tmp_path: Path, change: dict[str, str], rate: float | None, message: str
) -> None:
    with pytest.raises(UserError, match=message):
        find_workload(BURST, WorkloadSettings(workload=suite(tmp_path, **change), rate=rate))


def test_users_are_not_given_for_several_workloads(tmp_path: Path) -> None:
    with pytest.raises(
        UserError, match="max_concurrency=5: this setting is for one traffic file, and workload gives 2; edit"
    ):
        find_workload(BURST, WorkloadSettings(workload=suite(tmp_path), max_concurrency=5))


@pytest.mark.parametrize("name", preset_names())
def test_every_preset_has_objectives_and_a_schedule(name: str) -> None:
    preset = load_preset(name)
    load = find_workload(preset, WorkloadSettings())
    assert find_goals(preset, load, GoalSettings(), own=True).objectives
    assert load.longest_request > 1


def test_servers_of_different_size_are_compared_for_each_gpu() -> None:
    goals = find_goals(BURST, BURST.workload, GoalSettings(), own=True, gpus=2, one_shape=False)
    first = goals.objectives[0]
    assert (first.metric, first.weight) == ("output_throughput_per_gpu", 40.0)
    assert goals.objectives[1].metric == "p99_tpot_ms"
    same = find_goals(BURST, BURST.workload, GoalSettings(), own=True, gpus=2)
    assert same.objectives[0].metric == "output_throughput"
    given = find_goals(
        BURST, BURST.workload, GoalSettings(objective=("output_throughput",)), own=True, gpus=2, one_shape=False
    )
    assert given.objectives[0].metric == "output_throughput"


def test_a_rate_for_each_gpu_needs_several() -> None:
    for given in (
        GoalSettings(objective=("output_throughput_per_gpu",)),
        GoalSettings(slo=("output_throughput_per_gpu>5",)),
    ):
        with pytest.raises(
            UserError, match="a trial has one GPU, so this is output_throughput; give output_throughput"
        ):
            find_goals(BURST, BURST.workload, given, own=True)
        find_goals(BURST, BURST.workload, given, own=True, gpus=2)
