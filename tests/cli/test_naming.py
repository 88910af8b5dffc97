"""Names of studies that are given none, and the line about a changed premise."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.command import run_here
from tuner.settings.study import StudySettings
from tuner.study.specification.plan import default_name
from tuner.study.specification.spec import difference, summary_of
from tuner.workloads.presets import load_preset

LLAMA = "meta-llama/Llama-3.1-8B-Instruct"
FLAGS = ("--engine", "simulated", "--prompts", "8", "--users", "4", "--trials", "1", "--confirm-rounds", "0")


@pytest.mark.parametrize(
    ("settings", "card", "name"),
    [
        (StudySettings(), None, "qwen2.5-0.5b-t4"),
        (StudySettings(), "t4", "qwen2.5-0.5b-t4"),
        (StudySettings(), "h100", "qwen2.5-0.5b-h100"),
        (StudySettings(model=LLAMA), "h100", "llama-3.1-8b-instruct-h100"),
        (
            StudySettings(model=LLAMA, max_concurrency=32, input_len=1024, output_len=256),
            "t4",
            "llama-3.1-8b-instruct-users32-in1024-out256",
        ),
        (
            StudySettings(workload=("docs/day time.yaml",), rate=2.5),
            "t4",
            "qwen2.5-0.5b-t4-day-time-rate2.5",
        ),
        (StudySettings(preset="chat"), "t4", "chat"),
        (StudySettings(preset="chat", model="./My Model/"), "l4", "chat-my-model-l4"),
    ],
)
def test_the_name_has_what_the_settings_change(settings: StudySettings, card: str | None, name: str) -> None:
    assert default_name(settings, load_preset(settings.preset), card) == name


def test_two_models_in_one_folder_are_two_studies(tmp_path: Path) -> None:
    first = run_here(tmp_path, "optimize", *FLAGS)
    again = run_here(tmp_path, "optimize", *FLAGS)
    other = run_here(tmp_path, "optimize", *FLAGS, "--model", "Qwen/Qwen2.5-1.5B")
    assert [printed.code for printed in (first, again, other)] == [0, 0, 0], other.err
    assert "study qwen2.5-0.5b-t4-users4-prompts8: 1 trial (1 finished before)" in again.err
    assert "study qwen2.5-1.5b-users4-prompts8: 1 trial," in other.err


def test_a_changed_premise_is_one_short_line(tmp_path: Path) -> None:
    run_here(tmp_path, "optimize", *FLAGS, "--study", "s")
    changed = ["--model", "Qwen/Qwen2.5-1.5B", "--gpu", "h100", "--input-len", "99", "--slo", "p99_tpot_ms<9"]
    printed = run_here(tmp_path, "optimize", *FLAGS, "--study", "s", *changed)
    assert printed.code == 2
    assert printed.err == (
        "tuner: --study 's': the study of this name has another model ('Qwen/Qwen2.5-0.5B' -> 'Qwen/Qwen2.5-1.5B'), "
        "device (['Tesla T4'] -> ['NVIDIA H100 80GB HBM3']), workload (input_len: 512 -> 99) and 4 more; "
        "give the same settings, or another name\n"
    )


def test_the_order_of_differences() -> None:
    old = {"space": {"parameters": [1]}, "slos": ["a"], "workload": {"input_len": 1, "users": 1}}
    new = {"space": {"parameters": [2]}, "slos": ["b"], "workload": {"input_len": 2, "users": 2}}
    assert summary_of(difference(old, new)) == "workload (input_len: 1 -> 2), SLOs (['a'] -> ['b']), search space"


def test_a_second_study_in_a_folder_keeps_the_script_of_the_first(tmp_path: Path) -> None:
    load = ("--engine", "simulated", "--users", "2", "--prompts", "4", "--trials", "1", "--confirm-rounds", "0")
    script = tmp_path / "best_serve.sh"
    assert run_here(tmp_path, "optimize", *load, "--study", "one", "--plain").code == 0
    first = script.read_text()
    second = run_here(tmp_path, "optimize", *load, "--study", "two", "--plain")
    assert second.code == 0
    assert "best_serve.sh is a file of study 'one' and stays" in second.err
    assert script.read_text() == first
    assert "# study     two, trial 0" in (tmp_path / "best_serve-two.sh").read_text()
    refused = run_here(tmp_path, "optimize", *load, "--study", "three", "-o", "best_serve-two.sh")
    assert (refused.code, len(refused.err.splitlines())) == (2, 1)
    exported = run_here(tmp_path, "export", "--study", "two")
    assert (exported.code, script.read_text()) == (2, first)
    assert run_here(tmp_path, "export", "--study", "one").code == 0
