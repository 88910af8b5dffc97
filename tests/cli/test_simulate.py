"""Simulated studies and predictions on the command line: their output, and the refused settings."""

import json
import sqlite3
from pathlib import Path

import pytest

from tests.cli.command import everything_in, ran, refused, run_apart, run_here
from tests.fakes import WITHOUT_MLFLOW

CARD = """
name: My card
compute_capability: [8, 9]
memory_gib: 22.0
bandwidth_gbs: 300
tflops: {float16: 121, bfloat16: 121, fp8: 242}
launch_us: 9
host_speed: 0.5
"""


def test_a_study_on_a_machine_without_a_gpu_is_simulated_and_marked(folder: Path) -> None:
    printed = ran(folder, "optimize", "--trials", "2", "--confirm-rounds", "1", "--plain")
    lines = printed.out.splitlines()
    assert printed.err.startswith("SIMULATED: predicted, not measured: vLLM 0.15.1 on one Tesla T4")
    assert "all figures are predicted, not measured: simulated vllm 0.15.1, Tesla T4" in lines
    assert (folder / "best_serve.sh").read_text().splitlines()[1].startswith("# Simulated, not measured")
    rows = sqlite3.connect(folder / "tuner_study" / "tuner.db").execute("SELECT DISTINCT provenance FROM tuner_trials")
    assert rows.fetchall() == [("simulated",)]
    listed = run_here(folder, "study", "trials")
    assert "(simulated)" in listed.out
    # Another card cannot continue it; without the name, it would be a study of its own.
    other_card = ("--engine", "simulated", "--gpu", "l4", "--study", "qwen2.5-0.5b-t4")
    changed = run_here(folder, "optimize", "--trials", "3", *other_card, "--plain")
    assert changed.code == 2
    assert "Tesla T4" in changed.err
    assert "NVIDIA L4" in changed.err


@pytest.mark.slow
def test_the_same_seed_gives_the_same_study_in_another_process(tmp_path: Path) -> None:
    study = ("optimize", "--trials", "6", "--seed", "4", "--engine", "simulated", "--plain", "--no-reduce")
    words = (*study, "--finalists", "1", "--confirm-rounds", "2")
    found = []
    for name in ("one", "two"):
        folder = tmp_path / name
        folder.mkdir()
        printed = run_here(folder, *words) if name == "one" else run_apart(folder, *words, **WITHOUT_MLFLOW)
        assert printed.code == 0, printed.err
        listed = json.loads(run_here(folder, "study", "trials", "--json").out)
        kept = ("number", "round", "state", "score", "config", "metrics")
        found.append([{key: each[key] for key in kept if key in each} for each in listed])
    assert found[0] == found[1]
    assert len(found[0]) > 6


@pytest.mark.slow
def test_a_study_starts_warm_from_a_source_study_of_another_card(folder: Path) -> None:
    simulated = ("optimize", "--engine", "simulated", "--confirm-rounds", "0", "--plain", "--trials")
    ran(folder, *simulated, "4", "--gpu", "l4", "--study", "l4")
    printed = ran(folder, *simulated, "3", "--learn-from", "l4", "--study", "t4")
    assert len([line for line in printed.err.splitlines() if line.startswith("warm start from ")]) == 1
    typo = run_here(folder, *simulated, "3", "--learn-from", "l5", "--study", "new")
    assert (typo.code, typo.out) == (2, "")
    assert (
        typo.err == "tuner: --learn-from 'l5': the database has no study of this name; `tuner study list` lists them\n"
    )
    assert sorted(path.name for path in (folder / "tuner_study" / "artifacts").iterdir()) == ["l4", "t4"]


def test_one_configuration_is_predicted(folder: Path) -> None:
    printed = ran(folder, "simulate", "--json", "--", "--max-num-seqs", "64")
    found = json.loads(printed.out)
    assert (found["provenance"], found["gpu"], found["vllm"]) == ("simulated", "Tesla T4", "0.15.1")
    assert {"output_throughput", "p99_ttft_ms", "median_tpot_ms", "kv_cache_tokens", "preemptions"} <= {*found}
    assert sum(found["step_shares"].values()) == pytest.approx(1.0)
    assert 0 < found["roofline"]["share"] <= 1
    assert found["roofline"]["roof"] == "memory"
    assert found["error_bands"] == {}
    assert found["no_error_band"] == "too few measured rows for 16-bit weights on one Tesla T4: no error band"
    assert everything_in(folder) == []
    text = run_here(folder, "simulate").out
    assert text.startswith("SIMULATED: predicted, not measured")
    lines = text.splitlines()
    assert [line for line in lines if line.startswith("output_throughput ") and line.endswith(" tok/s")]
    assert [line for line in lines if line.startswith("errors ") and line.endswith(found["no_error_band"])]
    measured = run_here(folder, "simulate", "--gpu", "h200", "--prompts", "20", "--users", "10").out.splitlines()
    assert [line for line in measured if line.startswith("output_throughput ") and " tok/s  within " in line]
    assert not [line for line in measured if line.startswith("errors ")]
    assert [line for line in lines if line.startswith("KV cache ") and line.endswith(" tokens")]


def test_the_same_prediction_every_time_and_another_with_noise(folder: Path) -> None:
    plain = [run_here(folder, "simulate", "--json").out for _ in range(2)]
    assert plain[0] == plain[1]
    assert run_here(folder, "simulate", "--json", "--noise").out != plain[0]


def test_a_card_of_ones_own(folder: Path) -> None:
    (folder / "card.yaml").write_text(CARD)
    printed = ran(folder, "simulate", "--gpu", "card.yaml", "--model", "Qwen/Qwen2.5-7B-Instruct", "--json")
    assert json.loads(printed.out)["gpu"] == "My card"


def test_several_gpus_are_predicted_with_their_memory_and_communication(folder: Path) -> None:
    large = ("simulate", "--gpu", "h200", "--model", "Qwen/Qwen2.5-72B-Instruct", "--prompts", "16", "--users", "8")
    split = ("--", "--tensor-parallel-size", "4")
    printed = ran(folder, *large, "--json", *split)
    found = json.loads(printed.out)
    assert (found["gpus"], found["instances"], found["error_bands"]) == (4, 1, {})
    assert found["output_throughput_per_gpu"] == pytest.approx(found["output_throughput"] / 4)
    assert found["memory_per_gpu"]["weights_gib"] == pytest.approx(33.86, abs=0.01)
    assert 0.05 < found["step_shares"]["communication"] < 0.3
    lines = run_here(folder, *large, *split).out.splitlines()
    assert lines[0].endswith("serving Qwen/Qwen2.5-72B-Instruct on 4 × NVIDIA H200")
    assert [line for line in lines if line.startswith("GPUs ") and line.endswith("4: tensor parallel 4")]
    assert [line for line in lines if line.startswith("per GPU ") and line.endswith(" tok/s")]
    assert [line for line in lines if "weights 33.9, KV cache " in line and line.endswith("of 139.8 GiB")]
    assert not [line for line in lines if "within" in line]


def test_two_servers_of_25_users_on_one_t4_are_predicted(folder: Path) -> None:
    def predicted(*argv: str) -> dict[str, float]:
        printed = ran(folder, "simulate", "--json", *argv)
        return json.loads(printed.out)  # type: ignore[no-any-return]

    one, two = predicted(), predicted("--instances", "2", "--gpus-per-trial", "1")
    assert (one["gpus"], two["gpus"], two["instances"]) == (1, 1, 2)
    assert two["kv_cache_tokens"] < one["kv_cache_tokens"] / 2
    assert two["output_throughput"] < 0.8 * one["output_throughput"]
    assert predicted("--instances", "2", "--gpus-per-trial", "2")["output_throughput"] > one["output_throughput"]


def test_traffic_is_predicted_by_class(folder: Path) -> None:
    printed = ran(folder, "simulate", "--preset", "chat", "--json")
    assert json.loads(printed.out)["chat.goodput_share"] == 1.0


def test_traffic_without_a_completed_request_has_metrics(folder: Path) -> None:
    (folder / "w.yaml").write_text(
        "arrivals: {process: poisson, rate: 2}\ntimeout_s: 0.000001\nrequests: 20\n"
        "classes:\n  chat: {input: 100, output: 50}\nslo:\n  chat: {ttft_ms: 500}\n"
    )
    printed = ran(folder, "simulate", "--workload", "w.yaml", "--json")
    found = json.loads(printed.out)
    assert (found["success_rate"], found["goodput"], found["completed"]) == (0.0, 0.0, 0)


@pytest.mark.parametrize(
    ("argv", "parts"),
    [
        (["simulate", "--gpu", "nope"], ["--gpu 'nope'", "no known hardware is called 'nope'; known: t4"]),
        (["simulate", "--gpu", "cpu"], ["this is no GPU, and only GPUs are simulated", "or a YAML file"]),
        (["simulate", "--gpu", "none.yaml"], ["--gpu 'none.yaml': the file cannot be read", "give a YAML file"]),
        (
            ["simulate", "--model", "Qwen/Qwen2.5-0.6B"],
            ["is not in the catalogue of simulated models", "did you mean Qwen/Qwen2.5-0.5B"],
        ),
        (["simulate", "--input-len", "40000"], ["exceed the model's context of 32768", "lower --input-len"]),
        (["simulate", "--vllm-version", "0.9"], ["--vllm-version '0.9'", "0.15 to 0.32 are simulated"]),
        (
            ["simulate", "--", "--max-num-sqs", "3"],
            ["--max-num-sqs 3: not simulated; did you mean --max-num-seqs?"],
        ),
        (["simulate", "--", "--max-num-seqs", "0"], ["max_num_seqs: Input should be greater than or equal to 1"]),
        (
            ["simulate", "--model", "Qwen/Qwen2.5-14B"],
            ["does not serve this configuration on Tesla T4", "CUDA out of memory"],
        ),
        (["simulate", "--", "--max-model-len", "600"], ["requests of 512 + 512 tokens", "context of 600"]),
        (
            ["optimize", "--engine", "vllm", "--gpu", "t4"],
            ["--gpu 't4': this setting is for a simulation", "--engine simulated"],
        ),
        (["optimize", "--engine", "simulated", "--learn-from", "other"], ["there is no database at", "--storage"]),
        (
            ["optimize", "--engine", "simulated", "--", "--tensor-parallel-size", "4"],
            ["the model has 14 attention heads, which 4 does not divide; choose a divisor"],
        ),
        (
            ["optimize", "--engine", "simulated", "--", "--dtype", "float32"],
            ["--dtype float32: float16 and bfloat16 are simulated"],
        ),
        (
            ["optimize", "--engine", "simulated", "--", "--speculative-config", '{"method": "eagle3"}'],
            ["--speculative-config: method 'eagle3' is not simulated"],
        ),
        (
            ["simulate", "--gpus-per-trial", "1", "--", "--tensor-parallel-size", "2"],
            [
                "--gpus-per-trial 1: World size (2) is larger than the number of available GPUs (1) in this node",
                "give --gpus-per-trial 2",
            ],
        ),
        (
            ["simulate", "--gpus-per-trial", "2", "--instances", "2", "--", "-dp", "2"],
            ["--gpus-per-trial 2: 2 servers of 2 GPUs need 4 GPUs, and there are 2; give --gpus-per-trial 4"],
        ),
        (["simulate", "--gpus-per-trial", "0"], ["--gpus-per-trial '0': at least 1 is needed"]),
    ],
)
def test_mistakes(folder: Path, monkeypatch: pytest.MonkeyPatch, argv: list[str], parts: list[str]) -> None:
    monkeypatch.delenv("TUNER_VLLM", raising=False)
    refused(run_here(folder, *argv), folder, *parts)


def test_the_time_limit_of_a_simulation_is_in_real_seconds(folder: Path) -> None:
    """The benchmarks of this study take over ten simulated minutes and a few real seconds."""
    argv = ["optimize", "--engine", "simulated", "--users", "8", "--prompts", "96", "--trials", "4", "--json"]
    printed = ran(folder, *argv, "--timeout", "10m", "--confirm-rounds", "2")
    found = json.loads(printed.out)
    assert (found["ending"], found["trials"], found["conclusion"]["confirmed"]) == ("done", 4, True)
    assert found["seconds"]["benchmark"] > 10 * 60


def test_a_time_limit_without_a_result_has_an_exit_code_of_its_own(folder: Path) -> None:
    load = ("--users", "8", "--prompts", "8", "--trials", "4")
    printed = run_here(folder, "optimize", "--engine", "simulated", *load, "--timeout", "0.001s")
    assert printed.code == 4, printed.err
    assert "--timeout ended the search before all trials; run the same command to continue" in printed.out


@pytest.mark.parametrize("rounds", ["0", "1"])
def test_a_study_in_which_nothing_meets_the_slos_has_another_exit_code(folder: Path, rounds: str) -> None:
    argv = ("optimize", "--engine", "simulated", "--users", "8", "--prompts", "8", "--trials", "2", "--study", rounds)
    printed = run_here(folder, *argv, "--slo", "p99_tpot_ms<0.1", "--confirm-rounds", rounds)
    assert printed.code == 3, printed.err


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("memory_gib: 22.0\n", "", "'memory_gib' is missing; a card has the keys name, compute_capability"),
        ("name:", "colour: red\nname:", "'colour' is not a key"),
        ("[8, 9]", "8.9", "compute_capability 8.9 is not two integers; give for example [8, 9]"),
        ("300", "fast", "bandwidth_gbs 'fast' is not a number above 0"),
        ("float16: 121, ", "", "has no float16"),
        ("name:", "link: nvlink\nname:", "link and link_gbs belong together, and link is nvlink or pcie"),
        ("name:", "link: tape\nlink_gbs: 9\nname:", "link and link_gbs belong together, and link is nvlink or pcie"),
        ("name:", "link: pcie\nlink_gbs: -9\nname:", "link_gbs -9 is not a number above 0"),
        ("fp8: 242", "fp8: -1", "tflops.fp8 -1 is not a number above 0"),
    ],
)
def test_an_invalid_card_file(folder: Path, tmp_path: Path, old: str, new: str, message: str) -> None:
    file = tmp_path / "card.yaml"
    file.write_text(CARD.replace(old, new))
    refused(run_here(folder, "simulate", "--gpu", str(file)), folder, str(file), message)
