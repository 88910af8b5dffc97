"""The division of a card's memory."""

import pytest

from search_spaces import ModelShape
from search_spaces.catalogue.layers import Attention, Recurrent
from tests.unit.engines.simulator.helpers import SMALL, config, config_of, shape
from tuner.engines.simulator.deployment import ConfiguredServer
from tuner.engines.simulator.memory import MemoryBudget, StartFailed, find_budget
from tuner.engines.simulator.parameters import parameters_of
from tuner.engines.simulator.step_time import StepTime

WINDOWED = shape((10, Attention(32, 16, 128)), (52, Attention(32, 16, 128, window=1024)))
HYBRID = shape((12, Attention(16, 2, 256)), (36, Recurrent("gated delta net", 1, 32 * 128 * 128, 3 * 8192)))
GIB = 2**30


def budget(model: ModelShape, kv_gib: int, length: int, *arguments: str) -> MemoryBudget:
    fixed = ("--kv-cache-memory-bytes", str(kv_gib * GIB), "--max-num-batched-tokens", "8192")
    made = config_of(model, *fixed, "--max-model-len", str(length), *arguments)
    parameters = parameters_of("h200")
    return find_budget(made, StepTime(config(card="h200"), parameters).weights, parameters)


def test_kv_cache_sizes_are_near_the_measured_ones() -> None:
    def tokens(*arguments: str, card: str, model: str = SMALL, version: tuple[int, ...] = (0, 15, 1)) -> int:
        serve_config = config(*arguments, card=card, model=model, version=version)
        return ConfiguredServer(serve_config, parameters_of(card)).budget.tokens

    # published server log of the default on a T4; the H200 tables; the published study on an RTX 6000 Ada
    assert tokens(card="t4") == pytest.approx(940_384, rel=0.05)
    half = ("--gpu-memory-utilization", "0.5")
    assert tokens(*half, card="h200", version=(0, 25, 1)) == pytest.approx(5_926_960, rel=0.02)
    ada = ("--max-model-len", "8192", "--no-enable-chunked-prefill", "--gpu-memory-utilization", "0.9")
    assert tokens(*ada, card="rtx6000ada", model="Qwen/Qwen2.5-14B-Instruct") == pytest.approx(57_000, rel=0.15)
    awq = "Qwen/Qwen2.5-14B-Instruct-AWQ"
    assert tokens(*ada, card="rtx6000ada", model=awq) == pytest.approx(171_000, rel=0.15)


def test_the_kv_cache_of_windows_and_states_is_vllms() -> None:
    # numbers of blocks and tokens as vLLM 0.25.1's own functions return them; test_kv_cache.py has more
    windowed = budget(WINDOWED, 20, 131072)
    assert (windowed.blocks, windowed.tokens, windowed.longest) == (16384, 184270, 131072)
    hybrid = budget(HYBRID, 40, 262144)
    assert (hybrid.blocks, hybrid.tokens) == (3212, 1736095)


def test_a_cache_that_is_too_small_for_one_request_ends_the_start_with_vllms_figures() -> None:
    text = r"\(131072\), \(14.23 GiB KV cache is needed, .* \(6.00 GiB\)\. .* maximum model length is 23248\. Try"
    with pytest.raises(StartFailed, match=text):
        budget(WINDOWED, 6, 131072)


def test_each_decoding_sequence_of_a_recurrent_model_needs_a_block() -> None:
    # 8 GiB / (12 layers x 544 tokens x 2048 bytes) = 642 blocks
    with pytest.raises(StartFailed, match="max_num_seqs \\(1024\\) exceeds available Mamba cache blocks \\(642\\)"):
        budget(HYBRID, 8, 8192, "--max-num-seqs", "1024")
    assert budget(HYBRID, 8, 8192, "--max-num-seqs", "642").blocks == 642
    assert budget(HYBRID, 8, 8192, "--max-num-seqs", "1024", "--enforce-eager").blocks == 642


def test_without_the_hybrid_manager_states_cannot_be_held() -> None:
    with pytest.raises(StartFailed, match="Hybrid KV cache manager is disabled"):
        budget(HYBRID, 8, 8192, "--disable-hybrid-kv-cache-manager")
