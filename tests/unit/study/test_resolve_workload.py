"""A study's workload: presets, requests, and the checks of its SLOs."""

import math
from pathlib import Path
from typing import Any

import pytest

from tuner.engines.simulator.client import workload_client
from tuner.errors import SettingError, UserError
from tuner.scoring.goals import Slo
from tuner.settings.study import GoalSettings, WorkloadSettings
from tuner.study.specification.resolve_workload import check_requests, check_slo, find_goals, find_workload
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


@pytest.mark.parametrize(
    ("slo", "bound", "objective"),
    [
        ("slo: {a: {ttft_p95_ms: 9}}\n", "a.p95_ttft_ms<9", "goodput"),
        ("", "success_rate>=1", "output_throughput"),
    ],
)
def test_a_file_with_slos_is_optimised_for_goodput(tmp_path: Path, slo: str, bound: str, objective: str) -> None:
    load = find_workload(BURST, WorkloadSettings(workload=(written(tmp_path, PLAIN + slo),)))
    goals = find_goals(BURST, load, GoalSettings(), own=False)
    assert [str(each) for each in goals.slos] == [bound]
    assert goals.objectives[0].metric == objective


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
        (("session_goodput_share",), (), "no measured request class has sessions; add `session` to a class"),
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


def test_a_share_of_sessions_is_of_a_class_that_has_them(tmp_path: Path) -> None:
    kinds = "  a: {input: 4, output: 4}\n  b: {input: 4, output: 4, session: {turns: 2}}\n"
    text = f"arrivals: {{process: poisson, rate: 4}}\nrequests: 10\nclasses:\n{kinds}slo:\n  "

    def slos(name: str) -> list[str]:
        file = written(tmp_path, f"{text}{name}: {{session_goodput_share: 0.9}}\n")
        load = find_workload(BURST, WorkloadSettings(workload=(file,)))
        return [str(slo) for slo in find_goals(BURST, load, GoalSettings(), own=False).slos]

    assert slos("b") == ["b.session_goodput_share>=0.9"]
    with pytest.raises(UserError, match=r"'a\.session_goodput_share': no measured request class has sessions"):
        slos("a")


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


MODULES = ("--enable-lora", "--lora-modules", "sql=/adapters/sql", "chat=/adapters/chat")
AS_JSON = ("--lora-modules", '{"name": "sql", "path": "/adapters/sql"}')
SCHEMA = {"type": "object", "properties": {"answer": {"type": "boolean"}}}


def traffic(**fields: Any) -> Traffic:
    ask = {"input": 10, "output": 5, **fields}
    return Traffic.model_validate(
        {"arrivals": {"process": "poisson", "rate": 1}, "requests": 3, "classes": {"ask": ask}}
    )


def test_requests_without_either_are_for_every_engine() -> None:
    for engine in ("vllm", "sglang", "llama.cpp", "tensorrt-llm", "openai"):
        check_requests(traffic(), engine, ())


@pytest.mark.parametrize("engine", ["vllm", "sglang", "openai"])
def test_a_schema_is_for_engines_that_enforce_it(engine: str) -> None:
    check_requests(traffic(json_schema=SCHEMA), engine, ())


@pytest.mark.parametrize("engine", ["llama.cpp", "tensorrt-llm"])
def test_a_schema_that_an_engine_would_ignore_is_refused(engine: str) -> None:
    with pytest.raises(SettingError, match=f"structured output is not offered for {engine}"):
        check_requests(traffic(json_schema=SCHEMA), engine, ())


@pytest.mark.parametrize("arguments", [MODULES, AS_JSON])
def test_adapters_that_the_server_names(arguments: tuple[str, ...]) -> None:
    check_requests(traffic(adapters=["sql"]), "vllm", arguments)


def test_an_adapter_that_the_server_does_not_name_is_refused() -> None:
    with pytest.raises(SettingError, match=r"adapters: law.*add -- --enable-lora --lora-modules law=FOLDER"):
        check_requests(traffic(adapters=["sql", "law"]), "vllm", MODULES)


def test_the_adapters_of_a_command_are_its_own_matter() -> None:
    check_requests(traffic(adapters=["sql"]), "openai", ())


@pytest.mark.parametrize("engine", ["sglang", "llama.cpp", "tensorrt-llm"])
def test_adapters_are_refused_for_other_engines(engine: str) -> None:
    with pytest.raises(SettingError, match=f"LoRA adapters are not offered for {engine}"):
        check_requests(traffic(adapters=["sql"]), engine, MODULES)


def test_sessions_are_for_engines_whose_answers_can_be_in_a_prompt() -> None:
    load = traffic(session={"turns": 2})
    for engine in ("vllm", "openai", "simulated"):
        check_requests(load, engine, ())
    for engine in ("sglang", "llama.cpp", "tensorrt-llm"):
        with pytest.raises(SettingError, match=f"sessions are not offered for {engine}: it sends no token ids"):
            check_requests(load, engine, ())


@pytest.mark.parametrize(
    ("fields", "said"),
    [({"adapters": ["sql"]}, "LoRA adapters are"), ({"json_schema": SCHEMA}, "structured output is")],
)
def test_neither_is_simulated(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(SettingError, match=f"{said} not simulated; measure with"):
        workload_client(traffic(**fields), 0, caching=True, pause_s=0.0)


@pytest.mark.parametrize("schema", [{}, {"a": float("nan")}, {"a": {1, 2}}, {"a": "x" * 70_000}])
def test_what_is_no_schema_is_refused(schema: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"a schema has 1 key or more|it is no JSON"):
        traffic(json_schema=schema)


def test_adapters_and_a_schema_are_stored() -> None:
    both = traffic(adapters=["sql"], json_schema=SCHEMA)
    assert Traffic.model_validate_json(both.model_dump_json()) == both


@pytest.mark.parametrize(
    ("text", "remedy"),
    [
        ("output_throughput<500", "give 'output_throughput>=500'"),
        ("chat.goodput<=3", "give 'chat.goodput>=3'"),
        ("quality<0.99", "give 'quality>=0.99'"),
        ("p99_ttft_ms>1500", "give 'p99_ttft_ms<1500'"),
        ("client.mean_tpot_ms>=20", "give 'client.mean_tpot_ms<20'"),
        ("cost_per_million_output_tokens>1", "give 'cost_per_million_output_tokens<1'"),
        ("p99_ttft_ms<=0", "give a bound above 0"),
        ("success_rate>1", "give 'success_rate>=1'"),
        ("chat.goodput_share>=1.2", "give 'chat.goodput_share>=1'"),
    ],
)
def test_a_reversed_or_impossible_slo_is_refused(text: str, remedy: str) -> None:
    with pytest.raises(SettingError, match=remedy) as caught:
        check_slo(text)
    assert caught.value.exit_code == 2


@pytest.mark.parametrize(
    ("text", "slo"),
    [
        ("success_rate>=1", Slo("success_rate", ">=", 1.0)),
        ("p99_itl_ms<0.5", Slo("p99_itl_ms", "<", 0.5)),
        ("quality>=1.01", Slo("quality", ">=", 1.01)),
        ("output_throughput>500", Slo("output_throughput", ">", 500.0)),
    ],
)
def test_an_slo_that_can_be_met_is_read(text: str, slo: Slo) -> None:
    assert check_slo(text) == slo
