"""How a server is split over GPUs: its parts, its refusals, its memory, and one GPU as it was before."""

from dataclasses import replace
from typing import Any

import pytest

from search_spaces import ModelShape, hardware_named, known_models
from tests.unit.engines.simulator.helpers import PACKAGES
from tuner.engines.simulator.deployment import ConfiguredServer
from tuner.engines.simulator.limits import Parallelism, TooFewGpus, shard_of
from tuner.engines.simulator.memory import MemoryBudget, StartFailed, find_budget, find_weights
from tuner.engines.simulator.parameters import parameters_of
from tuner.engines.simulator.precision import ConfigRefused
from tuner.engines.simulator.prediction import Platform, build_server, client_metrics, run_workload
from tuner.engines.simulator.serve_config import CommandLine, ServeConfig, placed_config, resolve_serve_config
from tuner.workloads.presets import load_preset
from tuner.workloads.spec import ClosedLoop, SingleWorkload

QWEN_05B, QWEN_32B, QWEN_72B = "Qwen/Qwen2.5-0.5B", "Qwen/Qwen2.5-32B-Instruct", "Qwen/Qwen2.5-72B-Instruct"
TINY = ModelShape(2, 64, 128, 4, 2, 16, 640, 4096, False, "bfloat16", None)


def config(
    *arguments: str, gpus: int = 8, model: ModelShape | str = QWEN_72B, version: tuple[int, ...] = (0, 25, 1)
) -> ServeConfig:
    shape = known_models()[model] if isinstance(model, str) else model
    return resolve_serve_config(arguments, {}, shape, hardware_named("h200"), version, PACKAGES, gpus)


def part(model: ModelShape, **degrees: Any) -> tuple[int, int, int, int, int]:
    shard = shard_of(model, Parallelism(**degrees))
    return shard.layers, shard.heads, shard.kv_heads, shard.intermediate, shard.vocab


def test_a_part_has_its_share_of_heads_mlp_vocabulary_and_layers() -> None:
    model = known_models()[QWEN_72B]  # 80 layers, 64 heads, 8 key-value heads, 29568, 152064 tokens
    assert part(model, tensor=4) == (80, 16, 2, 7392, 38016)
    assert part(model, tensor=2, pipeline=4) == (20, 32, 4, 14784, 76032)
    assert part(model, pipeline=3) == (27, 64, 8, 29568, 152064)
    assert shard_of(model, Parallelism(data=4)) is model


def test_key_value_heads_are_replicated_if_there_are_fewer_than_gpus() -> None:
    assert part(known_models()[QWEN_72B], tensor=16)[2] == 1
    assert part(known_models()[QWEN_05B], tensor=2)[:3] == (24, 7, 1)


def test_a_model_without_attention_has_no_heads_to_divide() -> None:
    keys = {"hidden_size": 4096, "num_hidden_layers": 64, "num_heads": 128, "head_dim": 64, "state_size": 128}
    mamba = ModelShape.from_config_json({"model_type": "mamba2", **keys, "n_groups": 8, "vocab_size": 32768})
    assert config("--tensor-parallel-size", "2", model=mamba).parallel.tensor == 2


def test_a_vocabulary_is_padded_to_64_tokens_before_it_is_split() -> None:
    assert part(replace(TINY, vocab=650), tensor=2)[4] == 352  # 650 is padded to 704
    assert part(replace(TINY, vocab=650), pipeline=2)[4] == 650


def weights_gib(parallel: Parallelism) -> float:
    return find_weights(config(model=TINY), shard_of(TINY, parallel), None).resident_bytes


def test_weights_of_a_gpu() -> None:
    # Layer: 64 × 16 × (8 + 4) + 3 × 64 × 128 = 36,864 numbers. Embedding and head: 640 × 64 = 40,960 each.
    # Norms: 64 in each of 2 × 2 + 1. Two bytes a number.
    assert weights_gib(Parallelism()) == 2 * (2 * 36_864 + 2 * 40_960 + 5 * 64)
    assert weights_gib(Parallelism(tensor=2)) == 2 * (36_864 + 40_960 + 5 * 64)
    # Half of the layers, and the embedding or the head
    assert weights_gib(Parallelism(pipeline=2)) == 2 * (36_864 + 40_960 + 3 * 64)
    # Four GPUs have one of the two key-value heads each: 64 × 16 × (2 + 2) + 3 × 64 × 32 numbers a layer
    assert weights_gib(Parallelism(tensor=4)) == 2 * (2 * 10_240 + 2 * 10_240 + 5 * 64)


def budget(*arguments: str, model: ModelShape | str = QWEN_72B) -> MemoryBudget:
    made = config(*arguments, model=model)
    weights = find_weights(made, made.shard, None)
    return find_budget(made, weights, parameters_of("h200"))


def test_the_kv_cache_of_each_gpu_is_what_its_part_leaves() -> None:
    two = budget("-tp", "2", "--max-num-batched-tokens", "8192", "--max-num-seqs", "256")
    # A GPU: 80 × (8192 × 128 × (2 × 32 + 2 × 4) + 3 × 8192 × 14784) + 2 × 76032 × 8192 + 8192 × 161 numbers
    layers = 80 * (8192 * 128 * 72 + 3 * 8192 * 14784)
    weights = 2 * (layers + 2 * 76032 * 8192 + 161 * 8192) / 2**30
    assert two.weights_gib == pytest.approx(weights)
    # 8192 tokens × (2 × 14784 + 8192) × 2 bytes, and 256 rows of all 152,064 logits × 4 bytes are fewer
    activations = 1.15 * 8192 * (2 * 14784 + 8192) * 2 / 2**30
    assert two.activations_gib == pytest.approx(activations)
    assert two.kv_gib == pytest.approx(0.92 * 139.8 - weights - 0.45 - 0.5 - activations - two.graphs_gib)
    # A token has 2 × 80 × 4 × 128 numbers of two bytes on each of the two GPUs
    assert two.tokens == int(two.kv_gib * 2**30 / (16 * 163_840)) * 16


def test_weights_that_do_not_fit_on_one_gpu_fit_on_two() -> None:
    with pytest.raises(StartFailed, match="No available memory for the cache blocks"):
        budget()
    assert budget("-tp", "2").tokens > 300_000
    assert budget("-pp", "2").tokens > 300_000


@pytest.mark.parametrize(
    ("arguments", "gpus", "message"),
    [
        (
            ["-tp", "3"],
            8,
            "Total number of attention heads (64) must be divisible by tensor parallel size (3).",
        ),
        (["-tp", "0"], 8, "tensor_parallel_size: Input should be greater than or equal to 1"),
        (
            ["-tp", "2", "--enable-expert-parallel"],
            8,
            "Number of experts in the model must be greater than 0 when expert parallelism is enabled.",
        ),
        (["-pp", "81"], 100, "pipeline_parallel_size (81) is larger than the number of layers (80); lower it"),
        (
            ["-tp", "4", "-pp", "2"],
            4,
            "World size (8) is larger than the number of available GPUs (4) in this node",
        ),
        (
            ["--data-parallel-size=2", "--tensor-parallel-size=2"],
            2,
            "DP adjusted local rank 2 is out of bounds for 2 devices (2 copies of the model need 4 GPUs)",
        ),
    ],
)
def test_refusals(arguments: list[str], gpus: int, message: str) -> None:
    with pytest.raises(ConfigRefused) as caught:
        config(*arguments, gpus=gpus)
    assert str(caught.value) == message
    model, card = known_models()[QWEN_72B], hardware_named("h200")
    assert CommandLine(arguments, {}, model, card, (0, 25, 1), PACKAGES, gpus).refusal_of_every_trial() == message


@pytest.mark.parametrize(
    ("shape", "tensor", "line"),
    [
        (replace(TINY, intermediate=130), "4", "AssertionError: 130 is not divisible by 4"),
        (
            replace(TINY, heads=12, kv_heads=6),
            "4",
            "AssertionError: of 6 key-value heads and 4 GPUs, neither divides the other",
        ),
    ],
)
def test_a_server_whose_parts_are_uneven_ends_with_an_assertion(shape: ModelShape, tensor: str, line: str) -> None:
    with pytest.raises(StartFailed) as caught:
        ConfiguredServer(config("-tp", tensor, model=shape), parameters_of("h200"))
    assert str(caught.value) == line


def test_each_copy_of_the_model_has_an_api_server_by_default() -> None:
    assert config("-dp", "4").api_servers == 4
    assert config("-dp", "4", "--api-server-count", "2").api_servers == 2


def test_servers_share_a_gpu_if_there_are_too_few() -> None:
    one, two = config(), config("-tp", "2")
    assert [placed_config(one, count, 2).servers_per_gpu for count in (1, 2, 3, 4, 5)] == [1, 1, 2, 2, 3]
    assert placed_config(two, 2, 4).servers_per_gpu == 1
    with pytest.raises(TooFewGpus, match="2 servers of 2 GPUs need 4 GPUs, and there are 2"):
        placed_config(two, 2, 2)


LOAD = ClosedLoop(max_concurrency=16, num_prompts=48, input_len=256, output_len=64)
BEFORE: dict[str, tuple[str, tuple[int, ...], str, tuple[str, ...], tuple[float, float, float, int]]] = {
    "t4": ("t4", (0, 15, 1), QWEN_05B, (), (1621.4916117211485, 9.140794051093177, 210.46119638679858, 967056)),
    "l4-fp8": (
        *("l4", (0, 25, 1), "Qwen/Qwen2.5-7B-Instruct", ("--quantization", "fp8", "--max-model-len", "8192")),
        (301.7146705558882, 51.21013984987727, 937.7113092260578, 204880),
    ),
    "h200-eager": (
        *("h200", (0, 25, 1), "Qwen/Qwen2.5-7B-Instruct", ("--enforce-eager",)),
        (739.8577665945339, 20.93734678053045, 142.4239751386167, 2120608),
    ),
    "h200-sync": (
        *("h200", (0, 32, 0), "Qwen/Qwen2.5-14B"),
        ("--no-async-scheduling", "--max-num-batched-tokens", "1024", "--max-num-seqs", "64"),
        (1099.4998932767655, 13.567489951615782, 243.43862949941106, 547360),
    ),
    "t4-suffix": (
        *("t4", (0, 15, 1), QWEN_05B),
        (
            *("--speculative-config", '{"method": "suffix"}'),
            *("--override-generation-config", '{"temperature": 0}'),
        ),
        (2095.323206686111, 12.054308695683668, 228.4054637056758, 967056),
    ),
    "chat": ("t4", (0, 15, 1), QWEN_05B, (), (2537.1137383470104, 8.275758540121183, 30.32948066474202, 967056)),
}
"""Figures of the revision before the simulator knew several GPUs: output throughput, p99 TPOT, p99 TTFT, KV tokens.

Those of FP8 are of the revision that no longer counts scales for groups of its weights.
"""


@pytest.mark.parametrize("name", BEFORE)
def test_figures_of_one_gpu_are_those_of_before(name: str) -> None:
    card, version, model, arguments, expected = BEFORE[name]
    load: SingleWorkload = load_preset("chat").workload if name == "chat" else LOAD  # type: ignore[assignment]
    packages = PACKAGES | {"deep_gemm"}
    site = Platform(hardware_named(card), parameters_of(card), version, packages)
    server = build_server(site, arguments, {}, known_models()[model])
    metrics = client_metrics(load, run_workload(server, load, 7, noise=True))
    assert metrics is not None
    found = [metrics[metric] for metric in ("output_throughput", "p99_tpot_ms", "p99_ttft_ms")]
    assert [*found, server.budget.tokens] == pytest.approx(expected, rel=1e-12)
