"""Configurations that vLLM serves and the simulator refuses, because it does not model them."""

from dataclasses import replace
from typing import Any

import pytest

from search_spaces import ModelShape, hardware_named, known_models
from search_spaces.catalogue.model_config import Unread
from tests.contracts.space_contract import QWEN
from tuner.engines.simulator.deployment import ConfiguredServer
from tuner.engines.simulator.memory import find_weights
from tuner.engines.simulator.parameters import parameters_of
from tuner.engines.simulator.precision import ConfigRefused, NotSimulated
from tuner.engines.simulator.serve_config import ServeConfig, resolve_serve_config


def resolve(model: ModelShape, *argv: str) -> ServeConfig:
    return resolve_serve_config(argv, {}, model, hardware_named("l4"), (0, 25, 1), frozenset())


@pytest.mark.parametrize(
    ("argv", "part"),
    [
        (["--compilation-config", '{"pass_config":{"fuse_norm_quant":true}}'], "pass_config is not simulated"),
        (['-cc.custom_ops=["+rms_norm"]'], "custom_ops is not simulated"),
        (["--mamba-block-size", "8"], "--mamba-block-size 8: not simulated"),
        (["--enable-eplb"], "--enable-eplb: not simulated"),
        (['-sc={"model": "draft", "num_speculative_tokens": 3}'], "'draft': no shape of that model is known"),
        (['-sc={"method": "mtp", "num_speculative_tokens": 1}'], "no layers that predict further tokens"),
        (['-sc={"method": "mtp", "model": "draft", "num_speculative_tokens": 1}'], "with a model of its own is not"),
        (['-sc={"method": "medusa", "model": "draft", "num_speculative_tokens": 1}'], "'medusa' with a model"),
    ],
)
def test_flags(argv: list[str], part: str) -> None:
    with pytest.raises(NotSimulated) as caught:
        resolve(QWEN, *argv)
    assert part in str(caught.value)


def test_models() -> None:
    stored = replace(QWEN, quantization="compressed-tensors", weight_bits=8, activation_bits=16)
    assert resolve(stored).weight_bits == 8
    assert resolve(replace(stored, weight_bits=None)).weight_bits == 4
    with pytest.raises(NotSimulated, match="activations of 8 bits is not simulated"):
        resolve(replace(stored, activation_bits=8))
    unread = replace(QWEN, unread=Unread("a model of this type", "model_type bert"))
    with pytest.raises(
        NotSimulated, match=r"^a model of this type is not simulated \(model_type bert in config.json\)"
    ):
        resolve(unread)


@pytest.mark.parametrize(
    ("stored", "quantization", "bits"),
    [
        ({"quantization": "modelopt", "weight_type": "float"}, "fp8", 8),
        ({"quantization": "fp8", "weight_type": "float"}, "fp8", 8),
        ({"quantization": "fp8", "weight_type": "float", "weight_blocks": True}, "fp8_per_block", 8),
        ({"quantization": "compressed-tensors", "weight_type": "float"}, "fp8", 8),
        ({"quantization": "quark", "weight_type": "float"}, "fp8", 8),
    ],
)
def test_checkpoints_of_8_bit_floats_have_the_kernels_of_fp8(
    stored: dict[str, Any], quantization: str, bits: int
) -> None:
    resolved = resolve(replace(QWEN, weight_bits=8, activation_bits=8, **stored))
    assert (resolved.quantization, resolved.weight_bits) == (quantization, bits)


def test_the_two_formats_of_4_bit_floats_are_not_taken_for_each_other() -> None:
    stored = replace(QWEN, quantization="modelopt", weight_bits=4)
    assert resolve(replace(stored, weight_type="float")).quantization == "nvfp4"
    with pytest.raises(NotSimulated, match="a checkpoint of 4 bits by modelopt"):
        resolve(replace(stored, weight_type="mx"))


def test_an_fp8_checkpoint_of_70b_has_its_published_size() -> None:
    # 80 (8192 × 128 × (2 × 64 + 2 × 8) + 3 × 8192 × 28672) = 68,451,041,280 bytes; 2 × (2 × 128256 × 8192 + 161 × 8192)
    # = 4,205,330,432 bytes in 16 bits: 67.67 GiB together
    shape = replace(known_models()["meta-llama/Llama-3.1-70B-Instruct"], quantization="modelopt")
    stored = replace(shape, weight_bits=8, activation_bits=8, weight_type="float")
    weights = find_weights(resolve(stored), stored, None)
    assert weights.resident_bytes == 68_451_041_280 + 4_205_330_432
    assert weights.kernels == "native"


def test_a_checkpoint_says_the_format_of_its_cache() -> None:
    asks = replace(QWEN, cache_bits=8)
    assert resolve(asks).kv_element_bytes == 1.0
    assert resolve(asks, "--kv-cache-dtype", "bfloat16").kv_element_bytes == 2.0
    with pytest.raises(NotSimulated, match="asks for a KV cache of 4 bits"):
        resolve(replace(QWEN, cache_bits=4))
    with pytest.raises(NotSimulated, match="asks for a KV cache of 8 bits is not simulated on Tesla T4"):
        resolve_serve_config((), {}, asks, hardware_named("t4"), (0, 25, 1), frozenset())


@pytest.mark.parametrize(
    ("argv", "version", "allow", "tokens"),
    [
        ((), (0, 25, 1), "", 131072),  # 4 × 32,768
        (("--max-model-len", "131072"), (0, 25, 1), "", 131072),
        (("--max-model-len", "65536"), (0, 25, 1), "", 65536),
        ((), (0, 32, 0), "", 32768),
        (("--max-model-len", "131072"), (0, 32, 0), "1", 131072),
        (("--max-model-len", "131072"), (0, 32, 0), "true", 131072),
    ],
)
def test_the_context_of_a_model_with_yarn(
    argv: tuple[str, ...], version: tuple[int, ...], allow: str, tokens: int
) -> None:
    environment = {"VLLM_ALLOW_LONG_MAX_MODEL_LEN": allow} if allow else {}
    model = replace(QWEN, yarn_context=131072)
    found = resolve_serve_config(argv, environment, model, hardware_named("l4"), version, frozenset())
    assert found.max_model_len == tokens


def test_a_longer_context_than_the_derived_one_is_refused() -> None:
    for version, model, length in (((0, 25, 1), replace(QWEN, yarn_context=131072), 131073), ((0, 32, 0), QWEN, 32769)):
        with pytest.raises(ConfigRefused, match=rf"User-specified max_model_len \({length}\) is greater than"):
            resolve_serve_config(
                ("--max-model-len", str(length)), {}, model, hardware_named("l4"), version, frozenset()
            )


def test_an_automatic_length_is_what_the_cache_holds() -> None:
    # QWEN has 12,288 bytes of cache a token: 100 MiB hold 8,533 tokens, in whole blocks of 16: 8,528
    def length(*argv: str) -> int:
        return ConfiguredServer(
            resolve(QWEN, "--max-model-len", "auto", *argv), parameters_of("l4")
        ).config.max_model_len

    assert length("--kv-cache-memory-bytes", "100M") == 8_528
    assert length() == 32768
