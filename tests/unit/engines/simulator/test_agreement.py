"""The space `vllm` and the simulator agree on what every card can do with every version of vLLM."""

from dataclasses import replace

import pytest

from search_spaces import (
    Context,
    ModelShape,
    ParameterValue,
    ResolvedSpace,
    hardware_named,
    known_hardware,
    known_model,
    load_space,
    version_tuple,
)
from tests.some import some
from tuner.engines.simulator.flags import SIMULATED_PACKAGES, flag_names
from tuner.engines.simulator.precision import ConfigRefused
from tuner.engines.simulator.serve_config import resolve_serve_config

CARDS = [key for key, card in known_hardware().items() if card.vendor == "nvidia"]
VERSIONS = ("0.15.1", "0.19.1", "0.23.0", "0.25.1", "0.28.0", "0.32.0")
_SHAPE = some(known_model("Qwen/Qwen2.5-0.5B"))
QWEN: ModelShape = _SHAPE

NOT_ABOUT_VLLM = (
    "by default",
    "checkpoint",
    "draft model",
    "does not fit",
    "positions only",
    "changes no memory",
    "longer to compute than to launch",
    "offers it",
    "the simulator does not model",
)
"""Parts of reasons for which vLLM would serve the value, or for which the study lacks something."""


def space_of(card: str, version: str) -> ResolvedSpace:
    context = Context(
        hardware_named(card), version, flag_names(), QWEN, SIMULATED_PACKAGES, 50, 512, 512, priorities=True
    )
    context = replace(context, simulated=True)
    return load_space("vllm").resolve(context, wanted={"max_model_len": None})


def refusal(space: ResolvedSpace, arguments: tuple[str, ...], environment: dict[str, str]) -> str | None:
    version = version_tuple(space.context.engine_version or "")
    try:
        resolve_serve_config(arguments, environment, QWEN, space.context.hardware, version, SIMULATED_PACKAGES)
    except ConfigRefused as error:
        return str(error)
    return None


def parents_of(space: ResolvedSpace, name: str) -> dict[str, ParameterValue]:
    """Return values of other parameters with which a parameter counts."""
    parents: dict[str, dict[str, ParameterValue]] = {
        "chunked_prefill": {"max_num_batched_tokens": 32768},
        "capture_size_max": {"capture_sizes": "up_to"},
        **{f"ngram_{each}": {"speculative": "ngram", "ngram_tokens": 3} for each in ("max", "min")},
        "ngram_tokens": {"speculative": "ngram"},
        **{f"suffix_{each}": {"speculative": "suffix"} for each in ("tokens", "depth", "factor", "probability")},
    }
    return parents.get(name, {})


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("card", CARDS)
def test_the_simulator_serves_every_value_that_the_space_offers(card: str, version: str) -> None:
    space = space_of(card, version)
    refused, tried = [], 0
    for parameter in space.parameters:
        for value in parameter.values or (parameter.spec.low, parameter.spec.high):
            config = {**parents_of(space, parameter.name), parameter.name: value}
            if parameter.name == "ngram_tokens" or (parameter.name == "speculative" and value == "ngram"):
                config = {"speculative": "ngram", "ngram_tokens": config.get("ngram_tokens", 3)}
            if not space.contains(config) or space.violations(config):
                continue
            rendered = space.render(config)
            tried += 1
            if (reason := refusal(space, tuple(rendered.argv), dict(rendered.environment))) is not None:
                refused.append((parameter.name, value, reason))
    assert refused == []
    assert tried > 50


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("card", CARDS)
def test_the_simulator_refuses_every_value_that_the_card_or_the_version_rules_out(card: str, version: str) -> None:
    space = space_of(card, version)
    served = []
    for dropped in space.dropped:
        spec = space.specs.get(dropped.parameter)
        if spec is None or dropped.value is None or spec.flag is None:
            continue
        if any(part in dropped.reason for part in NOT_ABOUT_VLLM) or "own format" in dropped.reason:
            continue
        if refusal(space, (spec.flag, str(dropped.value)), {}) is None:
            served.append((dropped.parameter, dropped.value, dropped.reason))
    assert served == []


def test_an_fp8_cache_on_a_t4_is_neither_offered_nor_simulated() -> None:
    space = space_of("t4", "0.15.1")
    reason = some(refusal(space, ("--kv-cache-dtype", "fp8"), {}))
    assert "not simulated" in reason
    assert not space.contains({"kv_cache_dtype": "fp8"})


@pytest.mark.parametrize(
    "arguments",
    [
        ("--kv-transfer-config", "x"),
        ("--quantization", "torchao"),
        ("--kv-cache-dtype", "nvfp4"),
        ("--attention-backend", "TURBOQUANT"),
    ],
)
def test_what_is_not_simulated_is_called_so(arguments: tuple[str, ...]) -> None:
    reason = some(refusal(space_of("h200", "0.25.1"), arguments, {}))
    assert "not simulated" in reason
    assert "unrecognized" not in reason
