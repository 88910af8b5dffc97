"""`tuner recheck`."""

import json
import shlex
import shutil
import sys
import xml.etree.ElementTree as ET
from contextlib import closing
from pathlib import Path

import pytest

from storage import open_store
from tests.cli.command import CommandOutput, one_line, ran, refused, run_here
from tests.cli.conftest import inline
from tests.fakes import install_fake_vllm
from tests.unit.deploy.test_action import Runner
from tuner.engines.base import EngineInfo
from tuner.use_cases import optimize as optimize_run
from tuner.use_cases.recheck import today

LOAD = ("--users", "20", "--prompts", "40", "--input-len", "128", "--output-len", "64")
ROUNDS = ("--confirm-rounds", "3", "--baseline-repeats", "1", "--plain")
SEARCH = ("--trials", "3", "--baseline", "--max-num-seqs 8", "--enqueue", '{"max_num_seqs": 16}', *ROUNDS)
GOALS = ("--objective", "output_throughput", "--slo", "success_rate>=1")


@pytest.fixture(scope="module")
def fake(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return install_fake_vllm(tmp_path_factory.mktemp("bin"), noise=0.003)


@pytest.fixture(scope="module")
def study(home: Path, model: Path, fake: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a study whose winner is the defaults, beside a baseline of few sequences."""
    folder = tmp_path_factory.mktemp("study")
    start = ("optimize", "--vllm", str(fake), "--model", str(model), "--study", "mine", *SEARCH, *LOAD, *GOALS)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(optimize_run, "_executor", inline)
        printed = run_here(folder, *start, "--", "--max-model-len", "1024")
    assert printed.code == 0, printed.err
    return folder


def rechecked(folder: Path, *argv: str) -> CommandOutput:
    return run_here(folder, "recheck", *argv)


@pytest.fixture(scope="module")
def same(study: Path, fake: Path) -> CommandOutput:
    """A recheck on the study's own installation, which also writes `recheck.yaml`."""
    return rechecked(study, "mine", "--vllm", str(fake), "--save", "recheck.yaml")


def test_the_same_installation_holds_and_the_study_keeps_the_result(study: Path, same: CommandOutput) -> None:
    assert same.code == 0, same.out + same.err
    first, *rest = same.out.splitlines()
    assert first == "vLLM 0.32.0+fake on cpu, as in the study"
    assert [line for line in rest if line.startswith("mine: HOLDS after ")]
    assert [
        line for line in rest if line.startswith("record: output_throughput: measured ") and line.endswith("within")
    ]
    with closing(open_store(str(study / "tuner_study" / "tuner.db"))) as store:
        record = store.study("mine")
    assert record is not None
    held = [each["versions"] for each in record.facts["rechecks"] if each["verdict"] == "holds"]
    assert held == [["0.32.0+fake", "0.32.0+fake"]]


def test_a_slower_version_is_found_beside_the_other(study: Path, fake: Path, tmp_path: Path) -> None:
    slow = install_fake_vllm(tmp_path / "bin", noise=0.003, slower=1.1)
    printed = rechecked(study, "mine", "--vllm", str(fake), "--vllm", str(slow), "--rounds", "2", "--json")
    found = json.loads(printed.out)
    assert (printed.code, found["verdict"], found["record"]) == (6, "worse", None)
    (server,) = found["servers"]
    assert server["score"]["high"] < 1
    assert server["score"]["ratio"] == pytest.approx(1 / 1.1, rel=0.02)
    assert f"{fake}: vLLM 0.32.0+fake on cpu, as in the study" in printed.err


@pytest.mark.slow
def test_two_rounds_cannot_tell_and_the_next_step_asks_for_more(study: Path, fake: Path, tmp_path: Path) -> None:
    other = install_fake_vllm(tmp_path / "bin", noise=0.2, slower=1.001)
    printed = rechecked(study, "mine", "--vllm", str(fake), "--vllm", str(other), "--rounds", "2")
    assert printed.code == 5, printed.out + printed.err
    assert printed.out.splitlines()[-1] == f"next: tuner recheck mine --vllm {fake} --vllm {other} --rounds 4"


def test_a_slower_machine_is_told_from_a_lost_gain(study: Path, tmp_path: Path) -> None:
    slow = install_fake_vllm(tmp_path / "bin", noise=0.003, slower=1.5)
    printed = rechecked(study, "mine", "--vllm", str(slow), "--rounds", "2")
    assert printed.code == 6, printed.err
    lines = printed.out.splitlines()
    assert [line for line in lines if line.startswith("trial 0 relative to the baseline") and line.endswith("holds")]
    assert [line for line in lines if line.startswith("record: output_throughput") and line.endswith("WORSE")]
    assert "the gain is not lost: the machine or the engine is slower, not the configuration" in lines
    assert lines[-1].startswith("next: tuner recheck mine --vllm BEFORE --vllm TODAY")


def test_a_lost_gain_names_the_command_that_tunes_again(
    study: Path, fake: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost = {"when": {"max_num_seqs": None}, "slower": 2.0}  # the winner has no flag, the baseline has this one
    slow = install_fake_vllm(tmp_path / "bin", noise=0.003, fail_when=[lost])
    printed = rechecked(study, "mine", "--vllm", str(slow), "--rounds", "2")
    assert printed.code == 6, printed.err
    following = printed.out.splitlines()[-1]
    assert following.startswith("next: tuner optimize --study mine-0.32.0+fake --learn-from mine ")
    monkeypatch.setattr(optimize_run, "_executor", inline)
    words = shlex.split(following.removeprefix("next: tuner "))
    place = words.index("--")
    more = ("--trials", "1", "--confirm-rounds", "0", "--vllm", str(slow), "--plain")
    ran(study, *words[:place], *more, *words[place:])


def test_a_server_that_no_longer_starts_is_worse_at_once(study: Path, tmp_path: Path) -> None:
    broken = install_fake_vllm(tmp_path / "bin", fail_when=[{"when": {"max_num_seqs": None}, "fail": "crash"}])
    printed = rechecked(study, "mine", "--vllm", str(broken))
    assert printed.code == 6, printed.err
    assert "mine: WORSE after 1 round" in printed.out
    assert "trial 0: failed: engine_crash: " in printed.out


def test_a_saved_file_is_a_gate_without_a_database(
    study: Path, same: CommandOutput, fake: Path, tmp_path: Path
) -> None:
    assert same.code == 0
    saved = shutil.copy(study / "recheck.yaml", tmp_path)
    slow = install_fake_vllm(tmp_path / "bin", noise=0.003, slower=1.5)
    files = ("--junit", "junit.xml", "--summary", "summary.md")
    for program, code, failures in ((fake, 0, "0"), (slow, 6, "2")):
        printed = rechecked(tmp_path, str(saved), "--vllm", str(program), *files)
        assert printed.code == code, printed.out + printed.err
        suite = ET.parse(tmp_path / "junit.xml").getroot()
        assert (suite.tag, suite.get("failures")) == ("testsuite", failures)
        assert {case.get("name") for case in suite} >= {"output_throughput", "SLO success_rate>=1"}
    summary = (tmp_path / "summary.md").read_text()
    assert [line for line in summary.splitlines() if line.startswith("###")] == ["### mine: holds", "### mine: worse"]
    assert "| output_throughput |" in summary


@pytest.mark.slow
def test_the_action_of_ci_fails_for_a_slower_server(study: Path, same: CommandOutput, tmp_path: Path) -> None:
    """The exit codes are tested in tests/unit/deploy."""
    assert same.code == 0
    shutil.copy(study / "recheck.yaml", tmp_path)
    (tmp_path / "bin").mkdir()
    program = tmp_path / "bin" / "tuner"
    program.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m tuner.cli.main "$@"\n')
    program.chmod(0o755)
    slow = install_fake_vllm(tmp_path / "slow", noise=0.003, slower=1.5)
    runner = Runner(tmp_path, vllm=str(slow))
    assert runner.run() == 6
    assert runner.outputs["recheck"]["verdict"] == "worse"
    headings = [line for line in (tmp_path / "summary.md").read_text().splitlines() if line.startswith("### mine: ")]
    assert headings == ["### mine: worse"]


def test_a_lost_flag_is_said_before_anything_runs(
    study: Path, fake: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    find = today.find_installation

    def without_flag(*given: object) -> today.Installation:
        found = find(*given)  # type: ignore[arg-type]
        flags = frozenset({"--max-model-size", "--max-num-seqs", "--override-generation-config"})
        info = EngineInfo("vllm", "0.99.0", found.info.executable, flags, found.info.provenance)
        return today.Installation(found.engine, info, found.devices)

    monkeypatch.setattr("tuner.use_cases.recheck.recheck.find_installation", without_flag)
    output = tmp_path / "logs"
    printed = rechecked(study, "mine", "--vllm", str(fake), "-o", str(output))
    assert printed.code == 2, printed.err
    assert printed.out.splitlines()[0] == "vLLM: 0.32.0+fake -> 0.99.0"
    (line,) = printed.err.splitlines()
    assert "server argument '--max-model-len': vllm 0.99.0 has no such flag" in line
    assert "the baseline of study 'mine' has it; did you mean --max-model-size?; tune again: " in line
    assert "tuner optimize --study mine-0.99.0 --learn-from mine " in line
    assert not output.exists()


@pytest.mark.parametrize(
    ("argv", "parts"),
    [
        (("nosuch",), ("no database", "tuner optimize")),
        (("nosuch.yaml",), ("'nosuch.yaml'", "cannot be read")),
        (("--rounds", "1"), ("--rounds", "2")),
        (("--save", "base.json"), ("--save 'base.json'", "end the name with .yaml")),
        (("--junit", "no/such/junit.xml"), ("--junit 'no/such/junit.xml'", "its folder does not exist")),
    ],
)
def test_mistakes_are_one_line(folder: Path, argv: tuple[str, ...], parts: tuple[str, ...]) -> None:
    refused(rechecked(folder, *argv), folder, *parts)


@pytest.mark.parametrize(
    ("content", "part"),
    [
        ("a: 1", "this is no file of a recheck in format 1"),
        ("tuner_recheck: 1\nstudy: s", "the file is damaged"),
        ("[1", "damaged.yaml:1"),
    ],
)
def test_a_file_that_is_none_is_refused(tmp_path: Path, content: str, part: str) -> None:
    (tmp_path / "damaged.yaml").write_text(content)
    printed = rechecked(tmp_path, "damaged.yaml")
    one_line(printed, part)


def test_a_study_that_keeps_its_reference_has_no_gain(home: Path, tmp_path: Path) -> None:
    start = ("optimize", "--engine", "simulated", "--prompts", "8", "--users", "4", "--trials", "1", "--study", "kept")
    ran(tmp_path, *start)
    printed = rechecked(tmp_path, "kept")
    one_line(printed, "it keeps the reference")
    assert "give --vllm PATH twice" in printed.err
