"""Configurations that vLLM serves and the simulator refuses, because it does not model them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from search_spaces import ModelShape, hardware_named
from tests.contracts.space_contract import QWEN
from tuner.engines.simulator.config.precision import NotSimulated
from tuner.engines.simulator.config.serve_config import ServeConfig, resolve_serve_config


def resolve(model: ModelShape, *argv: str) -> ServeConfig:
    return resolve_serve_config(argv, {}, model, hardware_named("l4"), (0, 25, 1), frozenset())


@pytest.mark.parametrize(
    ("argv", "part"),
    [
        (["--compilation-config", '{"pass_config":{"fuse_norm_quant":true}}'], "pass_config is not simulated"),
        (['-cc.custom_ops=["+rms_norm"]'], "custom_ops is not simulated"),
        (["--kv-offloading-size", "8"], "--kv-offloading-size 8: not simulated"),
        (["--enable-expert-parallel"], "--enable-expert-parallel: not simulated"),
    ],
)
def test_flags(argv: list[str], part: str) -> None:
    with pytest.raises(NotSimulated) as caught:
        resolve(QWEN, *argv)
    assert part in str(caught.value)


def test_models() -> None:
    with pytest.raises(NotSimulated, match="a mixture of experts is not simulated"):
        resolve(replace(QWEN, experts=8))
    stored = replace(QWEN, quantization="compressed-tensors", weight_bits=8, activation_bits=16)
    assert resolve(stored).weight_bits == 8
    assert resolve(replace(stored, weight_bits=None)).weight_bits == 4
    with pytest.raises(NotSimulated, match="activations of 8 bits is not simulated"):
        resolve(replace(stored, activation_bits=8))
