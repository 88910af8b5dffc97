"""Drafts that are computed: their weights, cache, passes and acceptance; all values are worked out by hand."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks.simulator.bench_serve import BenchServeWorkload
from search_spaces import ModelShape, hardware_named, known_models
from search_spaces.catalogue.layers import Attention, Experts, LatentAttention, LayerGroup, Mlp, Recurrent
from tests.some import some
from tests.unit.engines.simulator.helpers import run
from tuner.engines.simulator.attention_time import AttentionTime
from tuner.engines.simulator.deployment import ConfiguredServer
from tuner.engines.simulator.parameters import parameters_of
from tuner.engines.simulator.precision import ConfigRefused, NotSimulated
from tuner.engines.simulator.sequence import Step
from tuner.engines.simulator.serve_config import ServeConfig, resolve_serve_config
from tuner.engines.simulator.step_time import DRAFTS, StepTime

H200 = hardware_named("h200")
HYBRID = known_models()["Qwen/Qwen3.5-9B"]
DEEPSEEK = known_models()["deepseek-ai/DeepSeek-V3"]
QWEN = known_models()["Qwen/Qwen2.5-0.5B"]
# one layer of Qwen3.5-9B: 16 gated heads and 4 of keys and values of 256 numbers, an MLP of 12,288; and 2 h to h
LAYER = 4096 * 256 * (2 * 16 + 2 * 4 + 16) + 3 * 4096 * 12288 + 2 * 4096 * 4096


def config(
    *arguments: str,
    shape: ModelShape = HYBRID,
    card: str = "h200",
    version: tuple[int, ...] = (0, 25, 1),
    gpus: int = 1,
    **speculation: Any,
) -> ServeConfig:
    words = [*arguments, *(("--speculative-config", json.dumps(speculation)) if speculation else ())]
    return resolve_serve_config(words, {}, shape, hardware_named(card), version, frozenset(), gpus)


def test_an_mtp_layer_is_one_of_full_attention_and_a_projection() -> None:
    draft = some(config(method="mtp", num_speculative_tokens=2).draft)
    assert draft.model.linear_weights == LAYER
    of_experts = some(config(shape=DEEPSEEK, gpus=8, method="deepseek_mtp").speculation)
    assert of_experts.tokens == 1  # as many as the model has such layers
    layer, projection = some(of_experts.draft).groups
    assert isinstance(layer.mlp, Experts)
    assert isinstance(layer.mixer, LatentAttention)
    assert projection.weights(7168) == 2 * 7168 * 7168


def test_layers_that_make_drafts_take_memory_and_cache() -> None:
    plain, drafting = (
        ConfiguredServer(made, parameters_of("h200"))
        for made in (config("-tp", "1"), config(method="mtp", num_speculative_tokens=1))
    )
    more = drafting.budget.weights_gib - plain.budget.weights_gib
    assert more * 2**30 == pytest.approx(2 * LAYER)
    # 8 layers of attention and 24 of states make tables of 8 layers; with another one, of 9
    sizes = [made.config.kv_cache.block_bytes for made in (plain, drafting)]
    assert [size / made.config.kv_cache.block_size for size, made in zip(sizes, (plain, drafting), strict=True)] == [
        8 * 2 * 4 * 256 * 2,
        9 * 2 * 4 * 256 * 2,
    ]


def test_a_step_makes_a_pass_over_its_tokens_and_one_over_sequences_for_each_further_draft_token() -> None:
    # without kernels, attention and element-wise work, a pass reads a layer's weights and the head
    free = dict.fromkeys(("kernel_us", "fused_passes", "eager_passes", "greedy_passes", "sampling_passes"), 0.0)
    parameters = replace(parameters_of("h200"), **free, flash_attn_3_bandwidth_share=1e9, bandwidth_share=1.0)
    step = Step(4, 0, 1, 4, 100, 0.0, drafting=1)
    seconds = []
    for tokens in (1, 3):
        time = StepTime(config(method="mtp", num_speculative_tokens=tokens), parameters)
        time.advance(step)
        seconds.append(time.seconds[DRAFTS])
    read = 2 * (LAYER + 248320 * 4096) / 4800e9
    assert seconds[0] == pytest.approx(read, rel=0.01)
    assert seconds[1] == pytest.approx(3 * read, rel=0.01)


@pytest.mark.parametrize(
    ("rates", "steps"),
    [([1.0, 1.0], 33), ([1.0, 0.0], 50), ([0.0, 0.0], 99)],  # 1 + 33 × 3, 1 + 49 × 2 + 1 and 1 + 99 tokens
)
def test_a_sequence_gets_its_draft_up_to_the_first_wrong_token(rates: list[float], steps: int) -> None:
    synthetic: dict[str, Any] = {"rejection_sample_method": "synthetic", "synthetic_acceptance_rates": rates}
    head: dict[str, Any] = {"method": "eagle3", "model": "no-such-head", "num_speculative_tokens": 2}
    made = config(shape=QWEN, version=(0, 32, 0), **head, **synthetic)
    result = run(ConfiguredServer(made, parameters_of("h200")), BenchServeWorkload(1, 1, 64, 100, seed=1))
    assert result.trace.steps == 1 + steps


def test_drafts_of_random_weights_are_wrong() -> None:
    counts = {}
    for words in ((), ("--load-format", "dummy")):
        made = config(*words, method="mtp", num_speculative_tokens=1)
        result = run(ConfiguredServer(made, parameters_of("h200")), BenchServeWorkload(20, 20, 64, 200, seed=1))
        counts[words] = result.counts.accepted_tokens / result.counts.drafted_tokens
    assert counts[()] == pytest.approx(0.83, abs=0.03)
    assert counts["--load-format", "dummy"] == 0.0


def test_an_eagle_head_without_its_config_is_a_layer_of_the_models_size() -> None:
    made = some(config(shape=QWEN, model="someone/EAGLE3-Qwen", num_speculative_tokens=2).draft)
    # 14 heads and 2 of keys and values of 64 numbers; 3 h to h, and queries, keys and values of 2 h
    attention = 896 * 64 * (2 * 14 + 2 * 2)
    assert made.model.linear_weights == attention + 3 * 896 * 4864 + 896 * (3 * 896 + 64 * (14 + 4))


def test_an_eagle_head_has_the_sizes_of_its_config_and_its_own_vocabulary(tmp_path: Path) -> None:
    written = {
        "architectures": ["LlamaForCausalLMEagle3"], "model_type": "llama", "hidden_size": 896, "num_hidden_layers": 1,
        "intermediate_size": 2000, "num_attention_heads": 14, "num_key_value_heads": 2, "vocab_size": 151936,
        "draft_vocab_size": 32000, "max_position_embeddings": 2048, "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(written))
    made = config(shape=QWEN, method="eagle3", model=str(tmp_path), num_speculative_tokens=2)
    assert some(made.draft).model.vocab == 32000
    plain, drafting = (ConfiguredServer(each, parameters_of("h200")).budget for each in (config(shape=QWEN), made))
    matrices = 896 * 64 * (2 * 14 + 2 * 2) + 3 * 896 * 2000 + 896 * (3 * 896 + 64 * (14 + 4))
    more = (drafting.weights_gib - plain.weights_gib) * 2**30
    assert more == pytest.approx(2 * (matrices + 32000 * 896), rel=1e-6)


def test_a_draft_model_is_a_whole_model_with_the_same_vocabulary() -> None:
    made = some(config(shape=QWEN, model="Qwen/Qwen2.5-0.5B-Instruct", num_speculative_tokens=3).draft)
    assert made.model == known_models()["Qwen/Qwen2.5-0.5B-Instruct"]
    # vLLM 0.25 leaves a token of each of 256 sequences free of the 2,048 of a step
    limits = ("--max-num-batched-tokens", "2048", "--max-num-seqs", "256")
    small = config(*limits, shape=QWEN, model="Qwen/Qwen2.5-0.5B-Instruct", num_speculative_tokens=3)
    assert small.scheduled_tokens == 1792
    assert replace(small, version=(0, 32, 0)).scheduled_tokens == 2048
    few = ("--max-num-batched-tokens", "64", "--max-num-seqs", "64")
    with pytest.raises(ConfigRefused, match=r"does not have enough slots .* scheduled_token_delta=64"):
        config(*few, shape=QWEN, model="Qwen/Qwen2.5-0.5B-Instruct", num_speculative_tokens=3)


@pytest.mark.parametrize(
    ("shape", "speculation", "line"),
    [
        (
            QWEN,
            {"model": "Qwen/Qwen3.5-9B", "num_speculative_tokens": 1},
            "the same vocabulary size. Target model vocab",
        ),
        (QWEN, {"model": "Qwen/Qwen2.5-0.5B"}, "num_speculative_tokens must be provided"),
        (
            replace(HYBRID, draft_layers=2),
            {"method": "mtp", "num_speculative_tokens": 3},
            "num_speculative_tokens:3 must be divisible by n_predict=2",
        ),
    ],
)
def test_vllm_refuses(shape: ModelShape, speculation: dict[str, Any], line: str) -> None:
    with pytest.raises(ConfigRefused, match=line):
        config(shape=shape, **speculation)


def test_synthetic_acceptance_is_simulated_where_it_was_read() -> None:
    given: dict[str, Any] = {"method": "mtp", "num_speculative_tokens": 3, "rejection_sample_method": "synthetic"}
    made = some(config(version=(0, 32, 0), **given, synthetic_acceptance_rates=[0.8, 0.4, 0.0]).speculation)
    assert made.rates == pytest.approx((0.8, 0.5, 0.0))
    made = some(config(version=(0, 32, 0), **given, synthetic_acceptance_length=2.5).speculation)
    assert made.rates == (1.0, 0.5, 0.0)
    with pytest.raises(ConfigRefused, match="requires exactly one of"):
        config(version=(0, 32, 0), **given)
    for rates, line in (([0.5], "have length 3"), ([0.5, 0.6, 0.1], "non-increasing"), ([2.0, 0.5, 0.5], "be in")):
        with pytest.raises(ConfigRefused, match=line):
            config(version=(0, 32, 0), **given, synthetic_acceptance_rates=rates)
    with pytest.raises(NotSimulated):
        config(version=(0, 25, 1), **given, synthetic_acceptance_length=2.5)


def test_scheduling_stays_asynchronous_for_drafts_that_are_computed() -> None:
    assert config(method="mtp").async_scheduling
    draft: dict[str, Any] = {"model": "Qwen/Qwen2.5-0.5B", "num_speculative_tokens": 1}
    assert config(shape=QWEN, **draft).async_scheduling
    assert not config(shape=QWEN, version=(0, 15, 1), **draft).async_scheduling


def test_a_drafted_sequence_reads_its_context_once_and_compares_it_with_each_token() -> None:
    latent = LatentAttention(16, None, 512, 128, 64, 128)
    made = config(shape=replace(QWEN, decoder=(LayerGroup(1, latent, Mlp(64)),)))
    parameters = replace(parameters_of("h200"), latent_arithmetic_share=1.0, flash_attn_3_bandwidth_share=1.0)
    step = Step(6, 0, 2, 6, 1000, 0.0, drafting=2)
    read, compared = 576 * 2 / 4800e9, 2 * 16 * (2 * 512 + 64) / 989e12
    seconds = AttentionTime(made, parameters).seconds(step)
    assert seconds == pytest.approx(1000 * (read**2 + (3 * compared) ** 2) ** 0.5)


def test_a_state_is_read_once_and_written_for_each_token_of_a_drafted_sequence() -> None:
    states = replace(QWEN, decoder=(LayerGroup(1, Recurrent("mamba2", 10, 1_000_000, 0, 4), None),))
    time = AttentionTime(config(shape=states), replace(parameters_of("h200"), bandwidth_share=1.0))
    assert time.seconds(Step(6, 0, 2, 6, 0, 0.0, drafting=2)) == pytest.approx(2 * (1 + 3) * 4e6 / 4800e9)


def test_flash_attention_2_gives_each_head_of_a_drafted_sequence_one_multiprocessor() -> None:
    # 16 heads of one sequence on 188 multiprocessors; a tile takes as long as 43 tokens of a prompt
    shape = replace(QWEN, decoder=(LayerGroup(1, Attention(16, 2, 128), Mlp(64)),))
    made = config(shape=shape, card="rtxpro6000")
    parameters = replace(parameters_of("rtxpro6000"), attention_arithmetic_share=1.0, flash_attn_2_bandwidth_share=1e3)
    seconds = AttentionTime(made, parameters).seconds(Step(3, 0, 1, 3, 65536, 0.0, drafting=1))
    assert seconds == pytest.approx(65536 * 43 * (2 * 2 * 128) * 188 / 504e12)
    many = AttentionTime(made, parameters).seconds(Step(192, 0, 64, 192, 65536, 0.0, drafting=64))
    assert many == pytest.approx(65536 * 43 * 16 * (2 * 2 * 128) / 504e12)


def test_a_checkpoint_of_4_bit_floats_has_fast_kernels_on_blackwell_only() -> None:
    shape = known_models()["nvidia/Qwen3.5-397B-A17B-NVFP4"]
    for card, kernels, arithmetic in (("rtxpro6000", "native", "fp8"), ("h200", "marlin", "bfloat16")):
        time = StepTime(config("-tp", "4", shape=shape, card=card, gpus=4), parameters_of(card))
        assert (time.weights.kernels, time.weights.arithmetic) == (kernels, arithmetic)
