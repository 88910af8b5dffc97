"""Levers: what is predicted to help a study that keeps its reference, and the commands that measure it."""

from __future__ import annotations

import shlex
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from search_spaces import hardware_named
from storage.records import Provenance
from tuner.cli.command_line import command_of
from tuner.cli.commands.run import optimize as optimize_command
from tuner.cli.main import main
from tuner.engines.factory import EngineFactory
from tuner.settings.study import StudySettings
from tuner.study.specification.builder import build_spec, plan_study
from tuner.use_cases.levers.candidates import bigger_cards
from tuner.use_cases.levers.find import LEAST_GAIN, SHOWN, Kept, find_levers, given_settings
from tuner.use_cases.simulated_engine import simulated_engine

SMALL = StudySettings(max_concurrency=20, num_prompts=40, input_len=128, output_len=256)


def kept(settings: StudySettings, gpu: str | None = None, base: dict[str, Any] | None = None) -> Kept:
    """Return a simulated study that keeps its reference."""
    settings = replace(settings, engine="simulated", gpu=gpu, search_load=1.0)
    engine_settings, devices = simulated_engine(gpu, None, settings.preset, 1)
    engine = EngineFactory(engine_settings)(0).info()
    plan = plan_study(settings, simulated=True, card=devices.profile.key)
    spec = build_spec(plan, engine, devices.profile, Path("artifacts"))
    return Kept(plan, spec, engine, devices.profile, base or {})


def test_the_default_study_could_gain_twice_the_throughput_by_greedy_decoding_with_speculation() -> None:
    found = find_levers(kept(StudySettings()))
    assert found[0].name == "greedy decoding with suffix speculation"
    # The simulator is fitted to 3,332 and 7,800 tok/s: x2.3.
    assert found[0].metrics["output_throughput"] == pytest.approx(2.24, abs=0.15)
    assert found[0].changes_answers
    assert [lever.name for lever in found[-2:]] == ["one NVIDIA L40S", "one NVIDIA A10G"]
    assert len(found) <= SHOWN
    assert min(lever.score for lever in found) > LEAST_GAIN
    assert found[0].within == {}  # no table of a T4 was left out of a fit


def test_what_the_study_could_try_is_no_lever() -> None:
    names = [lever.name for lever in find_levers(kept(StudySettings(temperature=0.0)))]
    assert [name for name in names if "speculation" in name or "greedy" in name] == []
    only = StudySettings(temperature=0.0, only=("max_num_seqs",))
    lever = find_levers(kept(only))[0]
    assert (lever.name, lever.changes_answers) == ("suffix speculation", False)
    assert "--only max_num_seqs --only speculative --only suffix_tokens" in command_of(lever.settings)


def test_formats_that_keep_answers_forbade_are_levers() -> None:
    allowed = replace(SMALL, model="Qwen/Qwen2.5-14B-Instruct")
    forbidden = replace(allowed, keep_answers=True)
    names = [[lever.name for lever in find_levers(kept(each, "h100"))] for each in (allowed, forbidden)]
    assert "FP8 weights" not in names[0]
    assert "FP8 weights" in names[1]
    commands = {lever.name: command_of(lever.settings) for lever in find_levers(kept(forbidden, "h100"))}
    assert "--keep-answers" not in commands["FP8 weights"]
    assert "--keep-answers" in commands["one NVIDIA H200"]


def test_a_lever_may_not_miss_an_slo_that_the_reference_meets() -> None:
    slos = ("p99_ttft_ms<1250",)  # predicted: 1,181 ms, greedy with suffix drafts 1,322
    names = [lever.name for lever in find_levers(kept(StudySettings(slo=slos)))]
    assert "greedy decoding" in names
    assert [name for name in names if "speculation" in name] == []


def test_the_baseline_keeps_its_flags_in_a_lever() -> None:
    given = StudySettings(baseline='{"max_num_seqs": 40}')
    lever = find_levers(kept(given, base={"max_num_seqs": 40}))[0]
    assert '"max_num_seqs": 40, "speculative": "suffix"' in command_of(lever.settings)
    assert "--trials 3" in command_of(lever.settings)  # the defaults, the baseline and the lever


def test_bigger_cards_are_the_next_ones_that_lack_nothing() -> None:
    assert [card.key for card in bigger_cards(hardware_named("t4"))] == ["a10g", "l40s"]  # an L4 has less bandwidth
    assert [card.key for card in bigger_cards(hardware_named("h100"))] == ["h200"]
    assert bigger_cards(hardware_named("h200")) == []
    assert bigger_cards(hardware_named("cpu")) == []


LARGE = "Qwen/Qwen2.5-7B-Instruct"


def test_a_measured_study_has_levers_for_its_machine_and_needs_another_one_for_another_card() -> None:
    given = kept(StudySettings(model=LARGE), "l40s")
    engine = replace(given.engine, provenance=Provenance.MEASURED)
    settings = replace(given.plan.settings, engine="auto", gpu=None, vllm="/opt/vllm")
    measured = replace(given, engine=engine, plan=replace(given.plan, settings=settings))
    levers = {lever.name: lever for lever in find_levers(measured)}
    assert levers["greedy decoding with suffix speculation"].needs is None
    assert levers["one NVIDIA H100 80GB HBM3"].needs == "a machine with one NVIDIA H100 80GB HBM3"
    commands = [command_of(lever.settings) for lever in levers.values()]
    assert [command for command in commands if "--gpu" in command or "--vllm /opt/vllm" not in command] == []


def test_a_placeholder_stands_for_a_checkpoint_that_the_user_has_to_provide() -> None:
    lever = next(lever for lever in find_levers(kept(StudySettings(model=LARGE), "h200")) if "AWQ" in lever.name)
    assert "--checkpoint awq=CHECKPOINT" in command_of(lever.settings)
    assert lever.needs == "an AWQ checkpoint of the model: its folder or hub name in place of CHECKPOINT"
    quantized = StudySettings(preset="llama2-7b-awq-t4")
    assert [lever.name for lever in find_levers(kept(quantized)) if "AWQ" in lever.name] == []


def test_several_workloads_are_not_predicted(tmp_path: Path) -> None:
    files = []
    for name in ("one", "two"):
        file = tmp_path / f"{name}.yaml"
        file.write_text("arrivals: {process: poisson, rate: 2}\nrequests: 4\nclasses: {a: {input: 8, output: 8}}\n")
        files.append(str(file))
    assert find_levers(kept(StudySettings(workload=tuple(files)))) == ()


def parsed(command: str, monkeypatch: pytest.MonkeyPatch) -> StudySettings:
    """Return the settings that the command line reads from a command."""
    found: list[StudySettings] = []

    def keep(settings: StudySettings, **_: object) -> int:
        found.append(settings)
        return 0

    monkeypatch.setattr(optimize_command, "_run", keep)
    monkeypatch.setattr(sys, "argv", shlex.split(command))
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 0
    return found[0]


def test_every_lever_of_the_default_study_has_a_command_that_the_command_line_reads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for lever in find_levers(kept(StudySettings())):
        read = parsed(command_of(lever.settings), monkeypatch)
        assert read.study == lever.settings["study"]
        assert read.output == f"{read.study}.sh"


def test_a_command_has_all_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    given = StudySettings(
        preset="chat",
        study="a name",
        model="M",
        tokenizer="T",
        checkpoint={"awq": "C"},
        draft_model="D",
        workload=("a.yaml", "b.yaml"),
        rate=0.1,
        max_concurrency=3,
        num_prompts=4,
        input_len=5,
        output_len=6,
        temperature=0.3,
        search_load=0.25,
        objective=("p99_ttft_ms:3",),
        slo=("p99_ttft_ms<5", "quality>=0.9"),
        quality_task="q.jsonl",
        space="cpu",
        only=("a", "b"),
        keep_answers=True,
        enqueue=('{"a": "b c"}',),
        bunched_tokens=True,
        baseline="--max-num-seqs 8",
        seed=7,
        sampler="tpe",
        learn_from=("source",),
        repeats=2,
        finalists=1,
        confirm_rounds=2,
        baseline_repeats=4,
        reduce=True,
        server_arguments=("--api-key", "${KEY}"),
        env={"A": "b c"},
        secret=("S",),
        startup_timeout="70s",
        engine="vllm",
        vllm="/v",
        gpu="g.yaml",
        vllm_version="0.25.1",
        workers=2,
        warm_start=False,
        ray_address="h:1",
        trials=5,
        storage="a.db",
        output="o.sh",
    )
    assert parsed(command_of(given_settings(given)), monkeypatch) == given


def test_a_command_has_no_password() -> None:
    command = command_of(given_settings(StudySettings(storage="postgresql://me:hidden@host/db")))
    assert "hidden" not in command
