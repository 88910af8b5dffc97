"""The simulator and the search space `vllm` agree: on vLLM's defaults, and on the rules for attention and KV cache."""

import itertools
from dataclasses import replace

import pytest

from search_spaces import (
    Context,
    HardwareProfile,
    ParameterValue,
    ResolvedSpace,
    hardware_named,
    known_hardware,
    load_space,
)
from tests.contracts.space_contract import COMMON_FLAGS, QWEN
from tuner.engines.simulator.deployment import ConfiguredServer
from tuner.engines.simulator.memory import StartFailed
from tuner.engines.simulator.parameters import parameters_of
from tuner.engines.simulator.precision import ConfigRefused
from tuner.engines.simulator.serve_config import ServeConfig, resolve_serve_config

CARDS = tuple(key for key, card in known_hardware().items() if card.vendor == "nvidia")
VERSIONS = ((0, 15, 1), (0, 19, 0), (0, 20, 0), (0, 25, 1), (0, 32, 0))
PACKAGES = frozenset({"arctic_inference", "flashinfer"})


def resolved_space(card: HardwareProfile, version: tuple[int, ...], dtype: str = "bfloat16") -> ResolvedSpace:
    flags = COMMON_FLAGS | ({"--performance-mode"} if version >= (0, 19) else set())
    text = ".".join(map(str, version))
    return load_space("vllm").resolve(Context(card, text, flags, replace(QWEN, dtype=dtype), PACKAGES))


def simulated(card: HardwareProfile, version: tuple[int, ...], *arguments: str, dtype: str = "bfloat16") -> ServeConfig:
    return resolve_serve_config(arguments, {}, replace(QWEN, dtype=dtype), card, version, PACKAGES)


DEFAULTS = {
    "max_model_len": "max_model_len",
    "max_num_seqs": "max_num_seqs",
    "max_num_batched_tokens": "max_num_batched_tokens",
    "chunked_prefill": "chunked_prefill",
    "prefix_caching": "prefix_caching",
    "block_size": "block_size",
    "gpu_memory_utilization": "gpu_memory_utilization",
    "stream_interval": "stream_interval",
    "api_server_count": "api_servers",
}


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("card", CARDS)
def test_both_have_the_same_defaults(card: str, version: tuple[int, ...]) -> None:
    profile = hardware_named(card)
    space, config = resolved_space(profile, version), simulated(profile, version)
    names = {name: space.names({}).default(name) for name in DEFAULTS}
    declared = {name: value for name, value in names.items() if value is not None}
    assert {*DEFAULTS} - {*declared} <= {"block_size"}, "the space leaves the block size open from 0.25 on"
    assert {name: getattr(config, DEFAULTS[name]) for name in declared} == declared


@pytest.mark.parametrize("version", [version for version in VERSIONS if version >= (0, 19)])
@pytest.mark.parametrize("card", CARDS)
def test_both_double_the_limits_in_throughput_mode(card: str, version: tuple[int, ...]) -> None:
    profile = hardware_named(card)
    config = simulated(profile, version, "--performance-mode", "throughput")
    names = resolved_space(profile, version).names({"performance_mode": "throughput"})
    assert config.max_num_seqs == names.default("max_num_seqs")
    assert config.max_num_batched_tokens == names.default("max_num_batched_tokens")


@pytest.mark.parametrize("version", VERSIONS)
def test_both_have_the_same_defaults_of_suffix_decoding(version: tuple[int, ...]) -> None:
    card = hardware_named("t4")
    speculation = simulated(card, version, "--speculative-config", '{"method": "suffix"}').speculation
    assert speculation is not None
    names = resolved_space(card, version).names({"speculative": "suffix"})
    values = (speculation.tokens, speculation.factor, speculation.min_probability)
    assert values == tuple(names.default(name) for name in ("suffix_depth", "suffix_factor", "suffix_probability"))


RULES = {"flash-attn-fp8-kv", "flash-attn-3-fp8-kv-float16", "flex-quantized-kv", "int8-kv-needs-triton"}
GRID = {
    "dtype": (None, "float16", "bfloat16"),
    "attention_backend": (None, "FLASH_ATTN", "FLASHINFER", "TRITON_ATTN", "FLEX_ATTENTION"),
    "kv_cache_dtype": (None, "fp8", "int8_per_token_head"),
}


def refused_by_simulator(card: HardwareProfile, version: tuple[int, ...], own_dtype: str, arguments: list[str]) -> bool:
    try:
        ConfiguredServer(simulated(card, version, *arguments, dtype=own_dtype), parameters_of(card.key))
    except (ConfigRefused, StartFailed):
        return True
    return False


@pytest.mark.parametrize("own_dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("version", [(0, 15, 1), (0, 25, 1), (0, 32, 0)])
@pytest.mark.parametrize("card", CARDS)
def test_both_refuse_the_same_combinations_of_attention_and_kv_cache(
    card: str, version: tuple[int, ...], own_dtype: str
) -> None:
    """Over all values that the space offers on a card; conditions are left aside, rules alone decide."""
    profile = hardware_named(card)
    space = resolved_space(profile, version, own_dtype)
    offered = {parameter.name: parameter.values for parameter in space.parameters}
    compared = 0
    for values in itertools.product(*GRID.values()):
        config: dict[str, ParameterValue] = dict(zip(GRID, values, strict=True))
        config = {name: value for name, value in config.items() if value is not None}
        if any(value not in offered.get(name, ()) for name, value in config.items()):
            continue
        broken = {violation.rule for violation in space.violations(config)} & RULES
        arguments = [word for name, value in config.items() for word in (f"--{name.replace('_', '-')}", str(value))]
        assert refused_by_simulator(profile, version, own_dtype, arguments) is bool(broken), (config, broken)
        compared += 1
    assert compared >= 4
