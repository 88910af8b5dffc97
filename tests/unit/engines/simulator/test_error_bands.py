"""A band belongs to the regime whose rows it comes from; other regimes have none, and say so."""

import pytest

from tests.unit.engines.simulator.helpers import config
from tuner.engines.simulator import parameters
from tuner.engines.simulator.parameters import LEAST_ROWS, documented_bands, find_error_bands

LARGE, AWQ = "Qwen/Qwen2.5-7B-Instruct", "TheBloke/Llama-2-7B-AWQ"
NGRAM = '{"method": "ngram", "num_speculative_tokens": 4}'


@pytest.mark.parametrize("argv", [(), ("--max-num-seqs", "8"), ("--enforce-eager",), ("--quantization", "fp8")])
def test_an_h200_has_bands(argv: tuple[str, ...]) -> None:
    found = find_error_bands(config(*argv, card="h200", model=LARGE, version=(0, 25, 1)))
    assert found.reason is None
    assert set(found.errors) == {"output_throughput", "mean_tpot_ms", "p99_tpot_ms", "mean_ttft_ms", "p99_ttft_ms"}
    assert all(0 < value < 1 for value in found.errors.values())


@pytest.mark.parametrize(
    ("card", "model", "argv", "what"),
    [
        ("t4", "Qwen/Qwen2.5-0.5B", (), "16-bit weights on one Tesla T4"),
        ("t4", AWQ, (), "AWQ weights on one Tesla T4"),
        ("t4", AWQ, ("--quantization", "awq"), "AWQ weights on one Tesla T4"),
        ("l4", LARGE, (), "16-bit weights on one NVIDIA L4"),
        ("l4", LARGE, ("--quantization", "fp8"), "FP8 weights on one NVIDIA L4"),
        ("rtx6000ada", LARGE, (), "16-bit weights on one NVIDIA RTX 6000 Ada Generation"),
        ("h100", LARGE, (), "16-bit weights on one NVIDIA H100 80GB HBM3"),
        ("h200", LARGE, ("--quantization", "fp8_per_block"), "FP8 (by blocks) weights on one NVIDIA H200"),
        ("h200", AWQ, (), "AWQ weights on one NVIDIA H200"),
        ("h200", "Qwen/Qwen3-30B-A3B-FP8", (), "FP8 (by blocks) weights with experts on one NVIDIA H200"),
        ("h200", "google/gemma-3-12b-it", (), "16-bit weights with windows on one NVIDIA H200"),
        ("h200", LARGE, ("--speculative-config", NGRAM), "drafts on one NVIDIA H200"),
    ],
)
def test_another_regime_has_none_and_says_so(card: str, model: str, argv: tuple[str, ...], what: str) -> None:
    version = (0, 15, 1) if card == "t4" else (0, 25, 1)
    found = find_error_bands(config(*argv, card=card, model=model, version=version))
    assert (found.errors, found.reason) == ({}, f"too few measured rows for {what}: no error band")


@pytest.mark.parametrize("argv", [(), ("--quantization", "fp8")])
def test_experts_have_those_of_their_own_rows(argv: tuple[str, ...]) -> None:
    found = find_error_bands(config(*argv, card="h200", model="Qwen/Qwen3-30B-A3B", version=(0, 25, 1)))
    dense = find_error_bands(config(card="h200", model=LARGE, version=(0, 25, 1)))
    assert found.reason is None
    assert found.errors["p99_ttft_ms"] > dense.errors["p99_ttft_ms"]


def test_several_servers_have_none() -> None:
    found = find_error_bands(config(card="h200", version=(0, 25, 1)), instances=2)
    assert found.reason == "too few measured rows for several GPUs or servers: no error band"


def test_a_regime_needs_enough_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    assert all(entry["rows"] >= LEAST_ROWS for entry in documented_bands())
    few = [{"card": "h200", "layers": "dense", "weights": "16-bit", "rows": LEAST_ROWS - 1, "output_throughput": 0.01}]
    monkeypatch.setattr(parameters, "documented_bands", lambda: few)
    assert find_error_bands(config(card="h200", version=(0, 25, 1))).errors == {}
