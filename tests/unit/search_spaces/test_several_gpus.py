"""The shape of a server: which sizes of parallelism a space offers, and how many GPUs they need."""

import dataclasses
from typing import Any

import pytest

from search_spaces import Context, ModelShape, ResolvedSpace, hardware_named, known_models, load_space
from search_spaces.memory import MemoryNeed, memory_need
from search_spaces.render import data_parallel_size, gpus_of, nodes_of, tensor_parallel_size, wrong_size
from tests.contracts.space_contract import QWEN

SIZES = ("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size")


def space(gpus: int, model: ModelShape = QWEN, nodes: int = 1) -> ResolvedSpace:
    return load_space("vllm").resolve(Context(hardware_named("h200"), "0.25.1", model=model, gpus=gpus, nodes=nodes))


def offered(resolved: ResolvedSpace) -> dict[str, list[Any]]:
    found = {each.name: each.values for each in resolved.parameters if each.name in SIZES}
    return {name: [value for value in values if value is not None] for name, values in found.items()}


@pytest.mark.parametrize(
    ("argv", "gpus"),
    [
        ([], 1),
        (["--max-num-seqs", "8"], 1),
        (["--tensor-parallel-size", "2"], 2),
        (["--tensor_parallel_size=2", "-pp", "3"], 6),
        (["-tp=4", "--data-parallel-size", "2"], 8),
        (["-tp", "4", "-tp", "2"], 2),
        (["-tp", "many"], 1),
        (["-tp", "0"], 1),
        (["-tp"], 1),
        (["--data-parallel-size-local", "2"], 1),
        (["-tp", "2", "-pcp", "2"], 4),
        (["--tp-size", "4", "--dp-size", "2"], 8),
        (["--tp-size", "4", "--dp-size", "2", "--enable-dp-attention"], 4),  # SGLang's copies of the attention alone
    ],
)
def test_the_gpus_of_a_command_line(argv: list[str], gpus: int) -> None:
    assert gpus_of(argv) == gpus


@pytest.mark.parametrize(
    ("argv", "wrong"),
    [
        (["-tp", "2", "-dp=1"], None),
        (["-tp", "x"], "--tensor-parallel-size x"),
        (["--pp-size", "0"], "--pipeline-parallel-size 0"),
        (["-tp"], "--tensor-parallel-size"),
    ],
)
def test_a_size_that_is_no_number_is_named(argv: list[str], wrong: str | None) -> None:
    assert wrong_size(argv) == wrong


def test_tensor_parallelism_is_read_alone() -> None:
    assert tensor_parallel_size(["-pp", "3", "--tensor-parallel-size=2"]) == 2
    assert tensor_parallel_size(["-pp", "3"]) == 1
    assert data_parallel_size(["-tp", "3", "-dp=4"]) == 4


@pytest.mark.parametrize(
    ("argv", "each", "nodes", "used"),
    [
        (["-tp", "4"], 4, 2, 1),  # one node holds it
        (["-tp", "4", "-pp", "2"], 4, 2, 2),
        (["-tp", "2"], 1, 4, 2),  # of four nodes, two are enough
        (["-tp", "8"], 3, 4, 4),  # three nodes do not divide it
        (["-pp", "3"], 2, 2, 2),  # no number of nodes divides it: all, and vLLM refuses it
        ([], 1, 1, 1),
    ],
)
def test_a_server_uses_the_fewest_nodes(argv: list[str], each: int, nodes: int, used: int) -> None:
    assert nodes_of(argv, each, nodes) == used


def test_layers_are_shared_within_a_node_and_stages_go_over_nodes() -> None:
    """A model of 32 heads and 8 key-value heads on two nodes of two GPUs, and on two nodes of one."""
    model = dataclasses.replace(QWEN, heads=32, kv_heads=8)
    assert offered(space(4, model, nodes=2)) == {
        "tensor_parallel_size": [2],
        "pipeline_parallel_size": [2, 4],
        "data_parallel_size": [2, 4],
    }
    two = space(2, model, nodes=2)
    assert offered(two) == {"pipeline_parallel_size": [2], "data_parallel_size": [2]}
    reasons = [each.reason for each in two.dropped if each.parameter == "tensor_parallel_size"]
    assert any("more than the GPUs of one of a trial's 2 nodes" in reason for reason in reasons)


def test_each_node_has_an_equal_part() -> None:
    """Three nodes of two GPUs each: four GPUs are two nodes with two each, and three nodes with three cannot hold 8."""
    six = space(6, nodes=3)
    assert six.violations({"pipeline_parallel_size": 4}) == []
    nine = space(9, nodes=3)
    assert [each.rule for each in nine.violations({"pipeline_parallel_size": 8})] == ["uneven-parts-on-the-nodes"]
    assert space(8, nodes=2).violations({"pipeline_parallel_size": 8}) == []


def test_instances_need_one_node() -> None:
    reasons = [each.reason for each in space(4, nodes=2).dropped if each.parameter == "instances"]
    assert reasons == ["the instances of a server start on one machine, and a trial has 2 nodes"]


def test_with_one_gpu_no_shape_is_offered() -> None:
    resolved = space(1)
    assert offered(resolved) == {}
    reasons = {each.reason for each in resolved.dropped if each.parameter in SIZES}
    assert reasons == {"a trial has one GPU; --gpus-per-trial gives it more"}


def test_sizes_fit_the_gpus_and_the_model() -> None:
    """Qwen2.5-0.5B has 14 heads and 2 key-value heads, which 2 divides and 4 does not; it has 24 layers."""
    assert offered(space(4)) == {
        "tensor_parallel_size": [2],
        "pipeline_parallel_size": [2, 4],
        "data_parallel_size": [2, 4],
    }
    few = dataclasses.replace(QWEN, heads=16, kv_heads=3, layers=2)
    assert offered(space(8, few)) == {"pipeline_parallel_size": [2], "data_parallel_size": [2, 4, 8]}


def test_a_shape_of_more_gpus_than_a_trial_has_breaks_a_rule() -> None:
    resolved = space(4)
    assert resolved.violations({"tensor_parallel_size": 2, "data_parallel_size": 2}) == []
    (violation,) = resolved.violations({"tensor_parallel_size": 2, "data_parallel_size": 4})
    assert violation.message == (
        "tensor, pipeline and data parallelism of 2 × 1 × 4 need more than the 4 GPUs of a trial"
    )
    shared = {"tensor_parallel_size": 2, "instances": 4}
    assert [each.rule for each in resolved.violations(shared)] == ["instances-of-several-gpus-share-none"]
    assert resolved.violations({"tensor_parallel_size": 2, "instances": 2}) == []
    assert resolved.violations({"instances": 4}) == []
    assert resolved.render({"tensor_parallel_size": 2}).argv == ("--tensor-parallel-size", "2")


def test_gpus_that_share_a_model_divide_it() -> None:
    whole, half = (
        memory_need(
            QWEN,
            weight_bits=16,
            kv_bits=16,
            max_model_len=1000,
            max_num_batched_tokens=8,
            max_num_seqs=8,
            captured_sizes=3,
            tensor=gpus,
        )
        for gpus in (1, 2)
    )
    assert half.weights == whole.weights // 2 == 494_005_120
    assert half.kv_cache == whole.kv_cache // 2 == 6_144_000
    assert half.graphs == whole.graphs == 3 * 2**20


def test_a_model_that_one_gpu_cannot_hold_fits_two() -> None:
    """80 layers of a 70B shape: 141 GB in 16 bits, 131 GiB, beside 139.8 GiB of an H200 at 0.92."""
    large = ModelShape.from_config_json(
        {
            "hidden_size": 8192,
            "intermediate_size": 28672,
            "num_hidden_layers": 80,
            "num_attention_heads": 64,
            "num_key_value_heads": 8,
            "vocab_size": 128256,
            "max_position_embeddings": 131072,
            "tie_word_embeddings": False,
            "torch_dtype": "bfloat16",
        }
    )
    resolved = space(2, large)
    assert len(resolved.violations({"gpu_memory_utilization": 0.92})) == 1
    assert resolved.violations({"gpu_memory_utilization": 0.92, "tensor_parallel_size": 2}) == []


def need(model: ModelShape, **parallel: int) -> MemoryNeed:
    return memory_need(
        model,
        kv_bits=16,
        max_model_len=100_000,
        max_num_batched_tokens=8,
        max_num_seqs=8,
        captured_sizes=0,
        **parallel,
    )


def test_a_latent_cache_is_not_divided_by_tensor_parallelism() -> None:
    """61 layers × 576 numbers × 2 bytes × 100,000 tokens; pipeline stages divide the layers."""
    deepseek = known_models()["deepseek-ai/DeepSeek-V3"]
    assert need(deepseek).kv_cache == need(deepseek, tensor=8).kv_cache == 7_027_200_000
    assert need(deepseek, pipeline=2).kv_cache == 3_513_600_000


def test_key_value_heads_are_copied_where_there_are_too_few() -> None:
    """2 × 28 layers × 4 heads × 128 numbers × 2 bytes × 100,000 tokens: 4 GPUs hold a head each, and so do 8."""
    qwen = known_models()["Qwen/Qwen2.5-7B-Instruct"]
    assert need(qwen).kv_cache == 5_734_400_000
    assert need(qwen, tensor=4).kv_cache == need(qwen, tensor=8).kv_cache == 1_433_600_000


def test_data_parallelism_divides_experts_alone() -> None:
    """48 layers × 128 experts × 3 × 2,048 × 768 weights of 2 bytes are 57,982,058,496 bytes."""
    moe, dense = known_models()["Qwen/Qwen3-30B-A3B"], known_models()["Qwen/Qwen2.5-7B-Instruct"]
    assert need(moe).weights - need(moe, data=2).weights == 57_982_058_496 // 2
    assert need(moe, tensor=2, data=2).weights == need(moe, data=2).weights // 2
    assert need(dense, data=2).weights == need(dense).weights
