"""The formats of a quantized checkpoint, and what they mean for memory and for the choices of the space `vllm`."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from search_spaces import (
    Context,
    ModelShape,
    ParameterValue,
    ResolvedSpace,
    SpaceError,
    hardware_named,
    load_space,
)
from search_spaces.catalogue.model_config import StoredFormat, stored_format
from tests.contracts.space_contract import generous
from tests.unit.search_spaces.test_memory import CONFIG_7B


def group(bits: int, kind: str, activations: int | None) -> dict[str, Any]:
    inputs = None if activations is None else {"num_bits": activations, "type": kind, "dynamic": True}
    return {"targets": ["Linear"], "weights": {"num_bits": bits, "type": kind}, "input_activations": inputs}


def compressed(**groups: Any) -> dict[str, Any]:
    return {"quant_method": "compressed-tensors", "config_groups": groups}


W8A8 = compressed(group_0=group(8, "int", 8))
W4A16 = compressed(group_0=group(4, "int", None))
FP8 = compressed(group_0=group(8, "float", 8))


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({}, StoredFormat()),
        (W8A8, StoredFormat("compressed-tensors", 8, 8, "int")),
        (W4A16, StoredFormat("compressed-tensors", 4, 16, "int")),
        (FP8, StoredFormat("compressed-tensors", 8, 8, "float")),
        (compressed(a=group(8, "int", 8), b=group(4, "int", None)), StoredFormat("compressed-tensors", 4, 16, "int")),
        (compressed(a=group(8, "float", 8), b=group(4, "int", 8)), StoredFormat("compressed-tensors", 4, 8, None)),
        (compressed(), StoredFormat("compressed-tensors", unread="config_groups without weights")),
        ({"quant_method": "awq", "bits": 4}, StoredFormat("awq", 4, None, "int")),
        ({"quant_method": "gptq", "bits": 8}, StoredFormat("gptq", 8, None, "int")),
        ({"quant_method": "auto-round", "bits": 3}, StoredFormat("auto-round", 3, None, "int")),
        ({"quant_method": "fp8", "activation_scheme": "dynamic"}, StoredFormat("fp8", 8, 8, "float")),
        ({"quant_method": "bitsandbytes", "load_in_8bit": True}, StoredFormat("bitsandbytes", 8, None, "int")),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, StoredFormat("modelopt", 4)),
        ({"quant_method": "modelopt", "quant_algo": "FP8"}, StoredFormat("modelopt", 8, 8, "float")),
        (
            {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [128, 128]},
            StoredFormat("fp8", 8, 8, "float", blocks=True),
        ),
        ({**FP8, "kv_cache_scheme": {"num_bits": 8}}, StoredFormat("compressed-tensors", 8, 8, "float", 8)),
        (
            {"quant_method": "modelopt", "quantization": {"quant_algo": "NVFP4", "kv_cache_quant_algo": "FP8"}},
            StoredFormat("modelopt", 4, cache_bits=8),
        ),
        (
            {"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION"},
            StoredFormat("modelopt", unread="quant_algo MIXED_PRECISION"),
        ),
        (
            {"quant_method": "gptq", "bits": 4, "lm_head": True},
            StoredFormat("gptq", 4, None, "int", unread="lm_head true"),
        ),
        (
            {"quant_method": "gptq", "bits": 8, "dynamic": {"+:.*mlp.*": {"bits": 4}}},
            StoredFormat("gptq", 8, None, "int", unread="dynamic"),
        ),
        (
            {"quant_method": "auto-round", "bits": 4, "extra_config": {"lm_head": {"bits": 16}}},
            StoredFormat("auto-round", 4, None, "int", unread="extra_config"),
        ),
        ({"quant_method": "exl2", "bits": 4.65}, StoredFormat("exl2", unread="bits 4.65")),
        (
            {"quant_method": "fp_quant", "forward_dtype": "mxfp4"},
            StoredFormat("fp_quant", unread="quant_method fp_quant"),
        ),
        ({"quant_method": "hqq"}, StoredFormat("hqq", unread="quant_method hqq")),
        ({"quant_method": "awq"}, StoredFormat("awq")),
    ],
)
def test_formats(config: dict[str, Any], expected: StoredFormat) -> None:
    assert stored_format(config) == expected


@pytest.mark.parametrize("bits", [0, 17, "4", True, 4.0])
def test_impossible_bits_are_refused(bits: object) -> None:
    with pytest.raises(ValueError, match="a weight of"):
        stored_format({"quant_method": "awq", "bits": bits})


def shape(quantization: dict[str, Any]) -> ModelShape:
    return ModelShape.from_config_json({**CONFIG_7B, "quantization_config": quantization})


def test_the_bits_of_a_model_count_in_its_weights() -> None:
    """A 7B shape has 6,525,288,448 weights in linear layers, and 2 × 152,064 × 3,584 + 57 × 3,584 others in 16 bits."""
    others = 2 * (2 * 152_064 * 3584 + 57 * 3584)
    eight, four = shape(W8A8), shape(W4A16)
    assert eight.weight_bytes(eight.stored_bits) == 6_525_288_448 + others
    assert four.weight_bytes(four.stored_bits) == 6_525_288_448 // 2 + others
    assert shape({"quant_method": "awq"}).stored_bits == 4


def need(space: ResolvedSpace, config: dict[str, ParameterValue]) -> str:
    (violation,) = space.violations(config)
    return violation.message


def test_the_bits_of_a_checkpoint_count_in_the_memory() -> None:
    """On 8 GiB: 8 bits need 6.08 + 2.03 GiB of weights, 4 bits 3.04 + 2.03."""
    card = replace(hardware_named("l4"), memory_gib=8.0)
    context = Context(
        card,
        "0.25.1",
        model=ModelShape.from_config_json(CONFIG_7B),
        checkpoints={"compressed-tensors": "a/w8a8"},
        checkpoint_shapes={"compressed-tensors": shape(W8A8)},
    )
    small: dict[str, ParameterValue] = {"max_model_len": 1024, "quantization": "compressed-tensors"}
    assert "weights 8.11" in need(load_space("vllm").resolve(context), small)
    four = replace(context, checkpoint_shapes={"compressed-tensors": shape(W4A16)})
    assert load_space("vllm").resolve(four).violations(small) == []
    assert load_space("vllm").resolve(replace(context, checkpoint_shapes={})).violations(small) == []


@pytest.mark.parametrize(
    ("card", "version", "checkpoint", "offered"),
    [
        ("t4", "0.15.1", W8A8, True),
        ("t4", "0.15.1", W4A16, True),
        ("t4", "0.15.1", FP8, False),
        ("t4", "0.25.1", FP8, True),
        ("l4", "0.15.1", FP8, True),
    ],
)
def test_a_checkpoint_s_format_needs_a_card(card: str, version: str, checkpoint: dict[str, Any], offered: bool) -> None:
    context = replace(generous(card, version), checkpoint_shapes={"compressed-tensors": shape(checkpoint)})
    space = load_space("vllm").resolve(context)
    assert space.contains({"quantization": "compressed-tensors"}) is offered
    if offered:
        assert space.render({"quantization": "compressed-tensors"}).model == "quantized/compressed-tensors"
    else:
        (reason,) = [each.reason for each in space.dropped if each.value == "compressed-tensors"]
        assert reason == "the checkpoint's FP8 weights need compute capability 8.0 in vLLM 0.15.1, Tesla T4 has 7.5"


def test_an_auto_round_checkpoint_is_served_as_it_is() -> None:
    context = replace(generous("t4", "0.15.1"), checkpoints={"auto-round": "a/round"})
    rendered = load_space("vllm").resolve(context).render({"quantization": "auto-round"})
    assert (rendered.argv, rendered.model) == ((), "a/round")


def test_experts_and_draft_layers_are_read() -> None:
    mixture = ModelShape.from_config_json({**CONFIG_7B, "num_local_experts": 8, "num_nextn_predict_layers": 1})
    assert (mixture.experts, mixture.draft_layers) == (8, 1)
    dense = ModelShape.from_config_json(CONFIG_7B)
    assert (dense.experts, dense.draft_layers, dense.weight_bits) == (0, 0, None)


@pytest.mark.parametrize("place", ["quantization_config", "compression_config", "text_config", "hf_quant_config.json"])
def test_the_formats_are_found_wherever_vllm_finds_them(tmp_path: Path, place: str) -> None:
    """8 bits: 6,525,288,448 bytes in linear layers; counted in 16 bits they would be twice as many."""
    config: dict[str, Any] = {**CONFIG_7B, "model_type": "llama"}
    declared = {"quant_method": "modelopt", "quant_algo": "FP8", "kv_cache_quant_algo": "FP8"}
    if place == "hf_quant_config.json":
        content = {"producer": {"name": "modelopt"}, "quantization": {**declared, "exclude_modules": ["lm_head"]}}
        (tmp_path / place).write_text(json.dumps(content))
    elif place == "text_config":
        config = {"text_config": {**config, "quantization_config": declared}}
    else:
        config[place] = declared
    (tmp_path / "config.json").write_text(json.dumps(config))
    shape = ModelShape.from_file(tmp_path / "config.json")
    assert (shape.quantization, shape.stored_bits, shape.cache_bits, shape.unread) == ("modelopt", 8, 8, None)
    assert shape.weight_bytes(shape.stored_bits) == 6_525_288_448 + 2 * (2 * 152_064 * 3584 + 57 * 3584)


def test_a_stored_format_of_the_cache_counts_in_the_memory() -> None:
    """A 7B shape has 2 × 28 × 4 × 128 = 28,672 numbers of a token; × 262,144 tokens in 8 bits = 7.00 GiB."""
    config = {**CONFIG_7B, "max_position_embeddings": 262144}
    stored = {**W4A16, "kv_cache_scheme": {"num_bits": 8, "type": "float"}}
    context = Context(
        replace(hardware_named("l4"), memory_gib=11.0),
        "0.25.1",
        model=ModelShape.from_config_json({**config, "quantization_config": stored}),
        concurrency=8,
    )
    assert "KV cache of one sequence 7.00" in need(load_space("vllm").resolve(context), {})


@pytest.mark.parametrize("content", ["{", "[]"])
def test_a_broken_file_of_formats_is_refused_by_its_name(tmp_path: Path, content: str) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG_7B))
    (tmp_path / "hf_quant_config.json").write_text(content)
    with pytest.raises(SpaceError, match="quant"):
        ModelShape.from_file(tmp_path / "config.json")
