"""The serve script: its words, ranks on nodes, and the winner of a study."""

import json
import os
import stat
import subprocess
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from records.trials import Config, Provenance, Repeat, StudyRecord, TrialKind, TrialOutcome, TrialRecord
from tuner.errors import SettingError
from tuner.export.deployment import Deployment
from tuner.export.formats.registry import FORMATS, write_deployment
from tuner.export.from_study import deployment_of
from tuner.export.quoting import PORT_PLACEHOLDER, RESULTS_PLACEHOLDER
from tuner.export.references import Reference
from tuner.export.render import render_serve_script, write_serve_script
from tuner.export.words import without_trial_settings
from tuner.testing.exporter import NASTY, a_script, deployment
from tuner.workloads.spec import ClosedLoop, Suite
from tuner.workloads.traffic import Traffic, load_traffic

WORDS = st.one_of(st.sampled_from(NASTY), st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=20))
KEPT = WORDS.filter(lambda word: without_trial_settings([word]) == (word,))
"""Words that are no settings of the trial, which the script leaves out."""
STUB = """#!/bin/sh
if [ "$1" = --version ]; then echo 0.32.0; exit; fi
printf '%s\\0' "$@" >"$RECORD/argv"
cat /proc/$$/environ >"$RECORD/env"
"""
QUICK = settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def run(script: Deployment, folder: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    stub, path = folder / "stub", folder / "best_serve.sh"
    stub.write_text(STUB)
    stub.chmod(0o755)
    write_serve_script(script, path)
    inherited = {"PATH": os.environ["PATH"], "VLLM": str(stub), "RECORD": str(folder), "LANG": "C.UTF-8"}
    return subprocess.run(
        [path, *arguments], env=inherited | environment, cwd=folder, capture_output=True, text=True, timeout=60
    )


def started_with(folder: Path) -> tuple[list[str], dict[str, str]]:
    """Return the argv and the environment that the stub saw."""
    argv = (folder / "argv").read_bytes().decode().split("\0")[:-1]
    pairs = (folder / "env").read_bytes().decode().split("\0")[:-1]
    return argv, {name: value for name, _, value in (pair.partition("=") for pair in pairs)}


@QUICK
@given(model=WORDS, argv=st.lists(KEPT, max_size=4), value=WORDS, study=WORDS, extra=st.lists(WORDS, max_size=2))
def test_every_word_reaches_the_server_unchanged(
    tmp_path: Path, model: str, argv: list[str], value: str, study: str, extra: list[str]
) -> None:
    script = a_script(
        model=model, served_name=study, argv=tuple(argv), environment={"VLLM_X": value}, study=study, verdict=value,
        numbers=((study, value),), device=value, vllm_version="0.32.0",
    )  # fmt: skip
    name = [] if study == model else ["--served-model-name", study]
    expected = ["serve", model, *name, *argv, "--host", "127.0.0.1", "--port", "8000", *extra]
    if extra and extra[0] in ("--help", "-h", "--verify"):
        extra, expected = [], expected[: len(expected) - len(extra)]

    done = run(script, tmp_path, *extra)

    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    argv_seen, environment = started_with(tmp_path)
    assert argv_seen == expected
    assert environment["VLLM_X"] == value
    assert sorted(file.name for file in tmp_path.iterdir()) == ["argv", "best_serve.sh", "env", "stub"]


@pytest.mark.program("shellcheck")
@settings(QUICK, max_examples=6)
@given(words=st.lists(WORDS, min_size=4, max_size=8), simulated=st.booleans())
@example(words=["a=b", "a,b", "=", "two words"], simulated=False)
def test_clean_under_shellcheck(tmp_path: Path, words: list[str], simulated: bool) -> None:
    script = a_script(
        study=words[0], model=words[1], argv=tuple(words), environment={"VLLM_X": words[2]}, verdict=words[3],
        provenance=Provenance.SIMULATED if simulated else Provenance.MEASURED,
        bench_argv=("bench", *words, f"{words[0]}{PORT_PLACEHOLDER}{words[1]}"),
        warmup_argv=(*words, RESULTS_PLACEHOLDER), flag_effects=(words[0], words[3]),
    )  # fmt: skip
    path = tmp_path / "best_serve.sh"
    write_serve_script(script, path)
    done = subprocess.run(["shellcheck", path], capture_output=True, text=True, env={**os.environ, "LANG": "C.UTF-8"})
    assert (done.returncode, done.stdout) == (0, "")


def test_host_port_and_further_arguments_can_be_given(tmp_path: Path) -> None:
    done = run(a_script(), tmp_path, "--api-key", "a b", HOST="0.0.0.0", PORT="9000")
    assert done.returncode == 0
    assert started_with(tmp_path)[0] == [
        "serve", "org/model", "--max-num-seqs", "64", "--enforce-eager",
        "--host", "0.0.0.0", "--port", "9000", "--api-key", "a b",
    ]  # fmt: skip


def test_the_vllm_of_the_study_is_used_without_one_on_the_path(tmp_path: Path) -> None:
    own = tmp_path / "studys own" / "vllm"
    own.parent.mkdir()
    own.write_text(STUB)
    own.chmod(0o755)
    done = run(a_script(executable=str(own)), tmp_path, VLLM="", PATH="/usr/bin:/bin")
    assert (done.returncode, done.stderr) == (0, "")
    assert started_with(tmp_path)[0][:2] == ["serve", "org/model"]


NAMES = (
    *(
        "PORT",
        "HOST",
        "VLLM",
        "TUNER",
        "PYTHON",
        "server_words",
        "recorded_gpu",
        "port",
        "key",
        "work",
        "word",
        "name",
        "UID",
        "IFS",
    ),
    *("SECONDS", "RANDOM", "BASH_ENV", "SHELLOPTS", "PPID", "LANG", "LC_ALL", "a-b", "two words", "ünï", "1st", "env"),
)


@QUICK
@given(variables=st.dictionaries(st.sampled_from(NAMES), WORDS, max_size=6))
@example(variables=dict.fromkeys(NAMES, "$(touch pwned) it's \n"))
def test_every_variable_reaches_the_server_whatever_its_name(tmp_path: Path, variables: dict[str, str]) -> None:
    done = run(a_script(environment=variables), tmp_path, PORT="9000")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    argv, environment = started_with(tmp_path)
    assert argv[-4:] == ["--host", "127.0.0.1", "--port", "9000"]
    assert variables.items() <= environment.items()


def test_without_a_vllm_the_error_names_the_variable(tmp_path: Path) -> None:
    done = run(a_script(executable=str(tmp_path / "gone")), tmp_path, VLLM="", PATH="/usr/bin:/bin")
    assert done.returncode == 127
    assert done.stderr == "best_serve.sh: no executable vllm; set VLLM=/path/to/vllm (the study ran 0.32.0)\n"


def test_the_trials_own_settings_are_left_out(tmp_path: Path) -> None:
    script = a_script(
        argv=("--port", "1234", "--max-num-seqs", "8", "--host=127.0.0.9", "--disable-uvicorn-access-log"),
        environment={"VLLM_CACHE_ROOT": "/trial/cache", "VLLM_LOGGING_LEVEL": "DEBUG", "CUDA_VISIBLE_DEVICES": "3"},
    )
    run(script, tmp_path)
    argv, environment = started_with(tmp_path)
    assert argv == ["serve", "org/model", "--max-num-seqs", "8", "--host", "127.0.0.1", "--port", "8000"]
    assert not environment.keys() & {"VLLM_CACHE_ROOT", "VLLM_LOGGING_LEVEL", "CUDA_VISIBLE_DEVICES"}


def test_a_removed_flag_may_lack_its_value() -> None:
    assert without_trial_settings(["--a", "--port"]) == ("--a",)


def test_the_header_lists_the_measurements() -> None:
    lines = render_serve_script(a_script(study="a\nb")).splitlines()
    assert lines[:12] == [
        "#!/usr/bin/env bash",
        "# Starts the vLLM server of a tuner study. --help shows the usage, --verify measures the server again.",
        "#",
        "# study     a\\nb, trial 12",
        "# verdict   beats the defaults by 29 %",
        "# model     org/model",
        "# measured  output throughput: 4300 tok/s",
        "# SLO       p99_tpot_ms<50",
        "# vLLM      0.32.0 (/opt/vllm/bin/vllm)",
        "# GPU       Tesla T4",
        "# date      2026-11-20",
        "#",
    ]


def test_flag_effects_stay_a_comment(tmp_path: Path) -> None:
    script = a_script(flag_effects=("flag effects:", "max_num_seqs=64\n$(touch caught) : score ×1.20 [1.10, 1.30]"))
    lines = render_serve_script(script).splitlines()
    assert lines[lines.index("# SLO       p99_tpot_ms<50") + 1 :][:2] == [
        "# flags     flag effects:",
        "# flags     max_num_seqs=64\\n$(touch caught) : score ×1.20 [1.10, 1.30]",
    ]
    assert run(script, tmp_path).returncode == 0
    assert not (tmp_path / "caught").exists()


def test_a_simulated_result_is_marked_in_the_first_lines() -> None:
    lines = render_serve_script(a_script(provenance=Provenance.SIMULATED)).splitlines()
    assert lines[1].startswith("# Simulated, not measured")
    assert "# simulated output throughput: 4300 tok/s" in lines


def test_another_version_gives_a_warning(tmp_path: Path) -> None:
    done = run(a_script(vllm_version="0.25.1"), tmp_path)
    assert done.returncode == 0
    assert done.stderr == "best_serve.sh: warning: vLLM 0.32.0 is installed, the study ran 0.25.1\n"


def test_another_build_of_the_same_version_gives_no_warning(tmp_path: Path) -> None:
    assert run(a_script(vllm_version="0.32.0+cpu"), tmp_path).stderr == ""


def test_help_starts_nothing(tmp_path: Path) -> None:
    done = run(a_script(), tmp_path, "--help")
    assert done.returncode == 0
    assert "--verify" in done.stdout
    assert not (tmp_path / "argv").exists()


@pytest.mark.parametrize(("arguments", "code"), [((), 127), (("--verify",), 2)])
def test_a_missing_executable_gives_one_line(tmp_path: Path, arguments: tuple[str, ...], code: int) -> None:
    done = run(a_script(), tmp_path, *arguments, VLLM="no-such-vllm")
    assert done.returncode == code
    assert done.stderr == ("best_serve.sh: no executable no-such-vllm; set VLLM=/path/to/vllm (the study ran 0.32.0)\n")


def test_the_file_is_executable_and_replaces_another(tmp_path: Path) -> None:
    path = tmp_path / "best_serve.sh"
    path.write_text("old")
    write_serve_script(a_script(), path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o700
    assert path.read_text() == render_serve_script(a_script())
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    "changes",
    [
        {"environment": {"a=b": "x"}},
        {"environment": {"": "x"}},
        {"environment": {"X": "a\0b"}},
        {"model": "a\0b"},
        {"argv": ("\0",)},
    ],
)
def test_words_and_variables_that_a_script_cannot_hold_are_refused(changes: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"NUL|can be called"):
        a_script(**changes)


def test_the_interval_of_a_reference_contains_its_value() -> None:
    with pytest.raises(ValueError, match="low <= value <= high"):
        Reference(5.0, 6.0, 7.0)


def test_the_reference_is_json_in_the_script() -> None:
    text = render_serve_script(a_script(reference={"p99_tpot_ms": Reference(1.5, 1.0, 2.0)}))
    line = next(line for line in text.splitlines() if line.strip().startswith('"$1" - '))
    found = json.loads(line.split("'")[1])
    recorded = {"value": 1.5, "low": 1.0, "high": 2.0, "tells": True, "unit": "", "up": False}
    assert found["metrics"] == {"p99_tpot_ms": recorded}
    assert found["slos"] == [["p99_tpot_ms", "<", 50.0]]


RANKED = (
    *("--pipeline-parallel-size", "2", "--nnodes", "2", "--node-rank", "0"),
    *("--master-addr", "10.0.0.7", "--master-port", "31000", "--data-parallel-rpc-port", "31001"),
)
OWN = ["serve", "org/model", "--pipeline-parallel-size", "2", "--nnodes", "2", "--node-rank"]
LISTENS = ["--host", "127.0.0.1", "--port", "8000"]


@pytest.mark.parametrize(
    ("rank", "given", "meets"),
    [
        ("0", {}, ["0", "--master-addr", "10.1.0.1", "--master-port", "29501"]),
        ("1", {"MASTER_PORT": "4000"}, ["1", "--master-addr", "10.1.0.1", "--master-port", "4000", "--headless"]),
    ],
)
def test_each_node_starts_its_rank(rank: str, given: dict[str, str], meets: list[str], tmp_path: Path) -> None:
    done = run(a_script(argv=RANKED), tmp_path, NODE_RANK=rank, MASTER_ADDR="10.1.0.1", **given)
    assert done.returncode == 0, done.stderr
    assert started_with(tmp_path)[0] == [*OWN, *meets, *LISTENS]


@pytest.mark.parametrize("flag", [("--api-server-count", "2"), ("--api-server-count=2",)])
def test_a_rank_without_an_api_server_gets_no_flags_of_one(flag: tuple[str, ...], tmp_path: Path) -> None:
    script = a_script(argv=(*flag, *RANKED, "--max-num-seqs", "a b"))
    for rank, expected in (("0", flag), ("1", ())):
        done = run(script, tmp_path, NODE_RANK=rank, MASTER_ADDR="10.1.0.1")
        assert done.returncode == 0, done.stderr
        words = ["serve", "org/model", *expected, "--pipeline-parallel-size", "2", "--max-num-seqs", "a b"]
        assert started_with(tmp_path)[0][: len(words)] == words


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"NODE_RANK": "0"},
        {"MASTER_ADDR": "10.1.0.1"},
        {"NODE_RANK": "2", "MASTER_ADDR": "10.1.0.1"},
        {"NODE_RANK": "a[1]", "MASTER_ADDR": "10.1.0.1"},
    ],
)
def test_a_start_without_a_rank_is_refused(given: dict[str, str], tmp_path: Path) -> None:
    done = run(a_script(argv=RANKED), tmp_path, **given)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        "best_serve.sh: the server runs on 2 nodes; start this on each, with NODE_RANK=0 to 1, "
        "and MASTER_ADDR=address of rank 0\n"
    )


def test_only_rank_0_verifies(tmp_path: Path) -> None:
    done = run(a_script(argv=RANKED), tmp_path, "--verify", NODE_RANK="1", MASTER_ADDR="10.1.0.1")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "--verify runs on the node of rank 0" in done.stderr


def test_the_usage_needs_no_rank(tmp_path: Path) -> None:
    assert run(a_script(argv=RANKED), tmp_path, "--help").returncode == 0


@pytest.mark.parametrize("name", FORMATS)
def test_other_formats_refuse_several_nodes(name: str, tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="for one machine only, and the server of this trial ran on 2"):
        write_deployment(FORMATS[name], deployment(argv=RANKED), tmp_path / "file")
    assert list(tmp_path.iterdir()) == []


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


ARGV = ("vllm", "serve", "m", "--port", "1")


def record(
    number: int,
    round_: int,
    *values: float | Repeat,
    kind: TrialKind | None = None,
    config: Config | None = None,
    **facts: Any,
) -> TrialRecord:
    """A trial with a benchmark for each throughput or repeat; the facts are fields of its outcome."""
    repeats = tuple(
        value if isinstance(value, Repeat) else Repeat(i, i, 10, 10, 0, 1.0, {"output_throughput": value})
        for i, value in enumerate(values)
    )
    given = {"argv": ARGV, "repeats": repeats, **facts}
    outcome = TrialOutcome(NOW, NOW, Provenance.MEASURED, "w", "d", **{"timings": {}, "artifacts": "", **given})
    chosen = kind or (TrialKind.CONFIRM if round_ else TrialKind.SEARCH)
    return TrialRecord("s", number, round_, chosen, None, {}, config or {}, 1, NOW, outcome)


RECORDS = [record(1, 0, 100.0), record(2, 0, 500.0), record(1, 1, 210.0, 190.0, 200.0), record(1, 2, 200.0, 200.0)]


def prompts_of(argv: tuple[str, ...]) -> str:
    return argv[argv.index("--num-prompts") + 1]


@pytest.mark.parametrize(
    ("number", "prompts", "repeats", "value"), [(1, "200", 3, 200.0), (2, "100", 1, 500.0)], ids=["rounds", "search"]
)
def test_only_rounds_count_for_a_finalist_if_the_search_sent_fewer_requests(
    number: int, prompts: str, repeats: int, value: float
) -> None:
    script = deployment_of(study(search={"num_prompts": 100}), number, RECORDS)
    assert prompts_of(script.verification.bench_argv) == prompts
    assert script.verification.repeats == repeats
    assert script.verification.reference["output_throughput"].value == value


def test_the_value_is_that_of_the_rounds_also_if_the_search_sent_the_same() -> None:
    script = deployment_of(study(), 1, [record(1, 0, 100.0), record(1, 1, 200.0)])
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


def traffic_script(kind: TrialKind = TrialKind.SEARCH, **premise: Any) -> Deployment:
    """Return the script of a trial of one benchmark, measured as `MEASURED`."""
    trial = record(1, 0, Repeat(0, 0, 100, 100, 0, 1000.0, MEASURED), kind=kind, config={"quantization": "fp8"})
    workload = TRAFFIC.model_dump(mode="json")
    return deployment_of(study(**{"workload": workload, "objectives": ["goodput"], **premise}), 1, [trial])


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
    space = {"parameters": parameters}
    script = traffic_script(objectives=["goodput", "quality"], slos=slos, space=space)
    assert script.verification.unverified == (
        "SLO quality>=0.99: not measured by --verify; the study found 0.995",
        "answers: quality 0.995 of the unquantized model's accuracy with quantization=fp8; not measured by --verify",
    )
    assert "quality" not in script.verification.reference
    assert ("quality", "0.995") in script.numbers


def test_answers_that_were_compared_after_the_study_are_said_for_all_servers_with_the_same_formats() -> None:
    argv = (*ARGV, "--max-num-seqs", "8", "--quantization", "fp8")
    trial = record(3, 0, 1.0, argv=argv, config={"quantization": "fp8"})
    known = study(space={"parameters": {"quantization": {"changes_answers": True}}})
    unchecked = (
        "NOT CHECKED: quantization=fp8 may change the answers; `tuner quality --study s --trial 3` compares them"
    )
    assert deployment_of(known, 3, [trial]).answers == unchecked
    fact = {"agreement": 0.985, "kl": 0.0045, "broken": False}
    checked = replace(known, facts={"checked_answers": {"m --quantization fp8": fact, "m": {}}})
    found = "with quantization=fp8, 98.5 % of the most likely tokens agree, mean KL 0.0045 nats"
    assert deployment_of(checked, 3, [trial]).answers == f"compared without questions: {found}"


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
    metrics = {"day.p99_itl_ms": 1.0, "night.p99_itl_ms": 2.0, "day.goodput": 3.0}
    trial = record(1, 0, Repeat(0, 0, 10, 10, 0, 1.0, metrics))
    known = study(workload=suite.model_dump(mode="json"), objectives=["day.goodput"])
    reference = deployment_of(known, 1, [trial]).verification.reference
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
    script = deployment_of(known, 1, [record(1, 0, 1.0, argv=argv, environment=variables)])
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
        return record(number, round_, 100.0, timings=timings)

    own = [started(1, 0, launch=1.0, ready=80.0), started(1, 1, ready=95.5), started(1, 2)]
    records = [*own, started(2, 0, ready=300.0)]
    made = deployment_of(study(), 1, records)
    assert (made.startup_s, made.start_limit_s) == (95.5, 600)
    assert deployment_of(study(), 2, records).start_limit_s == 1200
    assert deployment_of(study(), 1, [started(1, 0)]).startup_s is None


@pytest.mark.parametrize(
    ("executable", "shown"), [("/venv/bin/tuner-vllm-instances", "/venv/bin/tuner-vllm-instances"), ("vllm", None)]
)
def test_several_instances_are_started_by_their_launcher(tmp_path: Path, executable: str, shown: str | None) -> None:
    argv = (executable, "serve", "m", "--instances", "2", "--port", "1")
    trial = record(1, 0, 100.0, argv=argv, environment={"TUNER_VLLM": "/o}pt/vllm"})
    script = deployment_of(replace(study(), facts={"gpus": 2}), 1, [trial])
    assert (script.program.name, script.executable) == ("tuner-vllm-instances", shown)
    assert script.launcher_variables == {"TUNER_VLLM": "/o}pt/vllm", "CUDA_VISIBLE_DEVICES": "0,1"}
    assert run(replace(script, vllm_version="0.32.0"), tmp_path).returncode == 0
    argv_seen, environment = started_with(tmp_path)
    assert argv_seen == ["serve", "m", "--instances", "2", "--host", "127.0.0.1", "--port", "8000"]
    assert (environment["TUNER_VLLM"], environment["CUDA_VISIBLE_DEVICES"]) == ("/o}pt/vllm", "0,1")
    run(replace(script, vllm_version="0.32.0"), tmp_path, CUDA_VISIBLE_DEVICES="5,6", TUNER_VLLM="/mine")
    environment = started_with(tmp_path)[1]
    assert (environment["TUNER_VLLM"], environment["CUDA_VISIBLE_DEVICES"]) == ("/mine", "5,6")
