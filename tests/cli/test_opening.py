"""The first lines of a study of several GPUs."""

from __future__ import annotations

from pathlib import Path

from tests.cli.command import run_here


def test_the_first_lines_name_the_gpus_of_a_trial(tmp_path: Path) -> None:
    load = ("--users", "2", "--prompts", "4", "--trials", "1", "--confirm-rounds", "0", "--baseline-repeats", "1")
    engine = ("--engine", "simulated", "--gpu", "h200", "--gpus-per-trial", "2", "--vllm-version", "0.25.1")
    done = run_here(tmp_path, "optimize", *engine, *load, "--plain")
    assert done.code == 0, done.err
    lines = done.err.splitlines()
    assert lines[0].endswith(": vLLM 0.25.1 on 2 × NVIDIA H200; use --engine vllm to measure")
    assert "`tuner space --gpu h200 --vllm-version 0.25.1 --gpus-per-trial 2` lists them with the reasons" in lines[2]
