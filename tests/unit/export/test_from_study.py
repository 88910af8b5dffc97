"""A script verifies with the workload that its trial was measured with."""

import json
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from records.trials import Provenance, Repeat, StudyRecord, TrialKind, TrialOutcome, TrialRecord
from tests.unit.export.test_serve_script import QUICK, WORDS, run, started_with
from tuner.export.from_study import deployment_of, serve_script_of
from tuner.export.serve_script import ServeScript
from tuner.workloads.spec import ClosedLoop, Suite
from tuner.workloads.traffic import Traffic, load_traffic

NOW = datetime(2026, 1, 1, tzinfo=UTC)
WORKLOAD = ClosedLoop(max_concurrency=50, num_prompts=200)


def study(**more: Any) -> StudyRecord:
    premise = {
        "model": {"name": "m", "tokenizer": "m"},
        "workload": WORKLOAD.model_dump(mode="json"),
        "objectives": ["output_throughput"],
        "slos": ["success_rate>=1"],
        "engine": {"name": "vllm", "version": "0.25.1", "devices": ["H200"]},
        **more,
    }
    return StudyRecord("s", NOW, Provenance.MEASURED, premise, {})


def record(number: int, round_: int, *values: float) -> TrialRecord:
    repeats = tuple(Repeat(i, i, 10, 10, 0, 1.0, {"output_throughput": value}) for i, value in enumerate(values))
    argv = ("vllm", "serve", "m", "--port", "1")
    outcome = TrialOutcome(NOW, NOW, Provenance.MEASURED, "w", "d", {}, "", argv=argv, repeats=repeats)
    kind = TrialKind.CONFIRM if round_ else TrialKind.SEARCH
    return TrialRecord("s", number, round_, kind, None, {}, {}, 1, NOW, outcome)


RECORDS = [record(1, 0, 100.0), record(2, 0, 500.0), record(1, 1, 210.0, 190.0, 200.0), record(1, 2, 200.0, 200.0)]


def prompts_of(argv: tuple[str, ...]) -> str:
    return argv[argv.index("--num-prompts") + 1]


def test_only_rounds_count_for_a_finalist_if_the_search_sent_fewer_requests() -> None:
    script = serve_script_of(study(search={"num_prompts": 100}), 1, RECORDS)
    assert prompts_of(script.verification.bench_argv) == "200"
    assert script.verification.repeats == 3
    assert script.verification.reference["output_throughput"].value == 200.0


def test_a_trial_without_rounds_is_verified_with_the_workload_of_the_search() -> None:
    script = serve_script_of(study(search={"num_prompts": 100}), 2, RECORDS)
    assert prompts_of(script.verification.bench_argv) == "100"
    assert script.verification.repeats == 1
    assert script.verification.reference["output_throughput"].value == 500.0


def test_the_value_is_that_of_the_rounds_also_if_the_search_sent_the_same() -> None:
    script = serve_script_of(study(), 1, [record(1, 0, 100.0), record(1, 1, 200.0)])
    assert prompts_of(script.verification.bench_argv) == "200"
    recorded = script.verification.reference["output_throughput"]
    assert recorded.value == pytest.approx(200.0)
    assert recorded.low <= 100.0  # the search still tells how much it varies


TRAFFIC = Traffic.model_validate(
    {
        "arrivals": {"process": "poisson", "rate": 8},
        "requests": 100,
        "classes": {"chat": {"input": 10, "output": 5, "priority": 2}},
        "slo": {"chat": {"p95_ttft_ms": 500}},
    }
)
MEASURED = {"goodput": 7.5, "p99_itl_ms": 20.0, "capacity": 9.0, "quality": 0.995}


def traffic_script(kind: TrialKind = TrialKind.SEARCH, **premise: Any) -> ServeScript:
    """Return the script of a trial of one benchmark, measured as `MEASURED`."""
    repeats = (Repeat(0, 0, 100, 100, 0, 1000.0, MEASURED),)
    argv = ("vllm", "serve", "m", "--port", "1")
    outcome = TrialOutcome(NOW, NOW, Provenance.MEASURED, "w", "d", {}, "", argv=argv, repeats=repeats)
    trial = TrialRecord("s", 1, 0, kind, None, {}, {"quantization": "fp8"}, 1, NOW, outcome)
    workload = TRAFFIC.model_dump(mode="json")
    return serve_script_of(study(**{"workload": workload, "objectives": ["goodput"], **premise}), 1, [trial])


def test_traffic_is_compared_in_its_objectives_and_p99_itl() -> None:
    sent = traffic_script().verification
    assert list(sent.reference) == ["goodput", "p99_itl_ms"]
    assert sent.bench_argv == ()
    assert sent.traffic is not None
    assert list(sent.traffic.workloads) == ["traffic.yaml"]
    # three times the duration of the recorded benchmark, because that is longer than a study's limit
    assert sent.load_argv[sent.load_argv.index("--timeout") + 1] == "3000s"


def test_what_no_verification_measures_is_said() -> None:
    parameters = {"quantization": {"changes_answers": True}}
    slos = ["quality>=0.99", "success_rate>=1"]
    space = {"source": {"parameters": parameters}}
    script = traffic_script(objectives=["goodput", "quality"], slos=slos, space=space)
    assert script.verification.unverified == (
        "SLO quality>=0.99: not measured by --verify; the study found 0.995",
        "answers: quality 0.995 of the unquantized model's accuracy with quantization=fp8; not measured by --verify",
    )
    assert "quality" not in script.verification.reference
    assert ("quality", "0.995 share") in script.numbers


def test_answers_that_were_compared_after_the_study_are_said_for_all_servers_with_the_same_formats() -> None:
    argv = ("vllm", "serve", "m", "--port", "1", "--max-num-seqs", "8", "--quantization", "fp8")
    repeats = (Repeat(0, 0, 10, 10, 0, 1.0, {"output_throughput": 1.0}),)
    outcome = TrialOutcome(NOW, NOW, Provenance.MEASURED, "w", "d", {}, "", argv=argv, repeats=repeats)
    trial = TrialRecord("s", 3, 0, TrialKind.SEARCH, None, {}, {"quantization": "fp8"}, 1, NOW, outcome)
    known = study(space={"source": {"parameters": {"quantization": {"changes_answers": True}}}})
    unchecked = (
        "NOT CHECKED: quantization=fp8 may change the answers; `tuner quality --study s --trial 3` compares them"
    )
    assert serve_script_of(known, 3, [trial]).answers == unchecked
    fact = {"agreement": 0.985, "kl": 0.0045, "broken": False}
    checked = replace(known, facts={"checked_answers": {"m --quantization fp8": fact, "m": {}}})
    found = "with quantization=fp8, 98.5 % of the most likely tokens agree, mean KL 0.0045 nats"
    assert serve_script_of(checked, 3, [trial]).answers == f"compared without questions: {found}"


@pytest.mark.parametrize(
    ("kind", "objectives"), [(TrialKind.SEARCH, ["capacity"]), (TrialKind.CAPACITY, ["p99_ttft_ms"])]
)
def test_a_capacity_is_verified_at_the_lower_end_of_its_interval(kind: TrialKind, objectives: list[str]) -> None:
    script = traffic_script(kind, objectives=objectives)
    sent = script.verification
    assert sent.reference == {}
    assert sent.traffic is not None
    # 10 % below 9 requests/s, for the 12.5 s that 100 requests take at 8
    assert "rate: 8.1\n" in sent.traffic.workloads["traffic.yaml"]
    assert "requests: 102\n" in sent.traffic.workloads["traffic.yaml"]
    assert sent.unverified[0] == "capacity: recorded 9 [8.1, 9.9] req/s; sent: 8.1, where every SLO must hold"
    assert ("capacity", "9 req/s") in script.numbers


def test_each_workload_of_a_suite_is_compared_in_p99_itl() -> None:
    suite = Suite(loads={"day": TRAFFIC, "night": TRAFFIC})
    repeats = (Repeat(0, 0, 10, 10, 0, 1.0, {"day.p99_itl_ms": 1.0, "night.p99_itl_ms": 2.0, "day.goodput": 3.0}),)
    outcome = TrialOutcome(NOW, NOW, Provenance.MEASURED, "w", "d", {}, "", argv=("v", "serve", "m"), repeats=repeats)
    trial = TrialRecord("s", 1, 0, TrialKind.SEARCH, None, {}, {}, 1, NOW, outcome)
    known = study(workload=suite.model_dump(mode="json"), objectives=["day.goodput"])
    reference = serve_script_of(known, 1, [trial]).verification.reference
    assert {name: each.value for name, each in reference.items()} == {
        "day.goodput": 3.0,
        "day.p99_itl_ms": 1.0,
        "night.p99_itl_ms": 2.0,
    }


@QUICK
@given(values=st.lists(WORDS, min_size=3, max_size=3), priority=st.integers(-(10**9), 10**9), name=WORDS)
def test_priority_json_flags_and_variables_round_trip(
    tmp_path: Path, values: list[str], priority: int, name: str
) -> None:
    config = json.dumps({"method": values[0], "nested": {name: [values[1], 2.5, None]}})
    flags = (
        "--speculative-config",
        config,
        f"--override-generation-config={config}",
        "--scheduling-policy",
        "priority",
    )
    argv = ("/opt/vllm", "serve", "m", *flags, "--host", "127.0.0.1", "--port", "1")
    secret = {"VLLM_API_KEY": "${MY_KEY}"}  # of the study; the other variables are the configuration's
    variables = {"VLLM_X": values[2], "PORT": values[1], **secret}
    classes = {"chat": TRAFFIC.classes["chat"].model_copy(update={"priority": priority})}
    load = TRAFFIC.model_copy(update={"classes": classes})
    known = study(workload=load.model_dump(mode="json"), server={"environment": secret})
    repeats = (Repeat(0, 0, 10, 10, 0, 1.0, {"output_throughput": 1.0}),)
    outcome = TrialOutcome(
        NOW, NOW, Provenance.MEASURED, "w", "d", {}, "", argv=argv, environment=variables, repeats=repeats
    )
    script = serve_script_of(known, 1, [TrialRecord("s", 1, 0, TrialKind.SEARCH, None, {}, {}, 1, NOW, outcome)])
    assert run(replace(script, vllm_version="0.32.0"), tmp_path, MY_KEY=values[0] or "k").returncode == 0
    seen, environment = started_with(tmp_path)
    assert seen == ["serve", "m", *flags, "--host", "127.0.0.1", "--port", "8000"]
    assert json.loads(seen[3]) == json.loads(config)
    assert (environment["VLLM_X"], environment["VLLM_API_KEY"]) == (values[2], values[0] or "k")
    assert environment["PORT"] == values[1]
    assert script.verification.traffic is not None
    (tmp_path / "traffic.yaml").write_text(script.verification.traffic.workloads["traffic.yaml"])
    assert load_traffic(tmp_path / "traffic.yaml") == load


def test_a_deployment_has_the_longest_start_of_all_rounds() -> None:
    def started(number: int, round_: int, **timings: float) -> TrialRecord:
        made = record(number, round_, 100.0)
        assert made.outcome is not None
        return replace(made, outcome=replace(made.outcome, timings=timings))

    own = [started(1, 0, launch=1.0, ready=80.0), started(1, 1, ready=95.5), started(1, 2)]
    records = [*own, started(2, 0, ready=300.0)]
    made = deployment_of(study(), 1, records)
    assert (made.startup_s, made.start_limit_s) == (95.5, 600)
    assert deployment_of(study(), 2, records).start_limit_s == 1200
    assert deployment_of(study(), 1, [started(1, 0)]).startup_s is None
    assert made.script == serve_script_of(study(), 1, records)


@pytest.mark.parametrize(
    ("executable", "shown"), [("/venv/bin/tuner-vllm-instances", "/venv/bin/tuner-vllm-instances"), ("vllm", None)]
)
def test_several_instances_are_started_by_their_launcher(tmp_path: Path, executable: str, shown: str | None) -> None:
    made = record(1, 0, 100.0)
    assert made.outcome is not None
    argv = (executable, "serve", "m", "--instances", "2", "--port", "1")
    outcome = replace(made.outcome, argv=argv, environment={"TUNER_VLLM": "/o}pt/vllm"})
    script = serve_script_of(replace(study(), facts={"gpus": 2}), 1, [replace(made, outcome=outcome)])
    assert (script.program.name, script.executable) == ("tuner-vllm-instances", shown)
    assert script.launcher_variables == {"TUNER_VLLM": "/o}pt/vllm", "CUDA_VISIBLE_DEVICES": "0,1"}
    assert run(replace(script, vllm_version="0.32.0"), tmp_path).returncode == 0
    argv_seen, environment = started_with(tmp_path)
    assert argv_seen == ["serve", "m", "--instances", "2", "--host", "127.0.0.1", "--port", "8000"]
    assert (environment["TUNER_VLLM"], environment["CUDA_VISIBLE_DEVICES"]) == ("/o}pt/vllm", "0,1")
    run(replace(script, vllm_version="0.32.0"), tmp_path, CUDA_VISIBLE_DEVICES="5,6", TUNER_VLLM="/mine")
    environment = started_with(tmp_path)[1]
    assert (environment["TUNER_VLLM"], environment["CUDA_VISIBLE_DEVICES"]) == ("/mine", "5,6")
