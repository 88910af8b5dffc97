"""The division of a card's memory."""

from __future__ import annotations

import pytest

from tests.unit.engines.simulator.helpers import SMALL, config
from tuner.engines.simulator.deployment import ConfiguredServer
from tuner.engines.simulator.parameters import parameters_of


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
