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
    assert lines[0].endswith(": vLLM 0.25.1 on 2 × NVIDIA H200; use --engine vllm without --gpu to measure")
    assert "`tuner space --gpu h200 --vllm-version 0.25.1 --gpus-per-trial 2` lists them with the reasons" in lines[2]


def test_the_first_lines_have_the_goals_and_warn_of_an_slo_that_can_hardly_be_met(tmp_path: Path) -> None:
    load = ("--users", "2", "--prompts", "4", "--trials", "1", "--confirm-rounds", "0", "--baseline-repeats", "1")
    goals = ("--slo", "p99_ttft_ms<1", "--objective", "output_throughput")
    done = run_here(tmp_path, "optimize", "--engine", "simulated", *load, *goals, "--plain")
    lines = done.err.splitlines()
    assert "SLOs: p99_ttft_ms<1" in lines
    assert "score weights: output_throughput 40, success_rate 10" in lines
    warning = next(index for index, line in enumerate(lines) if line.startswith("SLO p99_ttft_ms<1 can hardly be met"))
    assert warning < next(index for index, line in enumerate(lines) if line.startswith("[1/1]"))
