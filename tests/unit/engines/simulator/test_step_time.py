"""The time of a step: monotonic in work and hardware, and fully accounted for."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.engines.simulator.helpers import ARGUMENTS, config
from tuner.engines.simulator.config.cuda_graphs import LaunchMode
from tuner.engines.simulator.parameters import parameters_of
from tuner.engines.simulator.scheduling.step import Step
from tuner.engines.simulator.timing.step_time import StepTime


@settings(max_examples=100, deadline=None)
@given(
    decode=st.integers(0, 300),
    prefill=st.integers(0, 2048),
    context=st.integers(0, 10**6),
    factor=st.floats(1.0, 4.0),
    arguments=ARGUMENTS,
)
def test_more_bandwidth_or_arithmetic_is_never_slower(
    decode: int, prefill: int, context: int, factor: float, arguments: tuple[str, ...]
) -> None:
    serve_config = config(*arguments)
    card = serve_config.card
    more = replace(card, bandwidth_gbs=(card.bandwidth_gbs or 0) * factor)
    stronger = replace(card, tflops={name: value * factor for name, value in card.tflops.items()})
    work = Step(decode, prefill, decode + 1, decode + 1, context, 50.0 * prefill, decodes_only=not prefill)
    slow, wide, strong = (
        StepTime(replace(serve_config, card=each), parameters_of("t4")).advance(work) for each in (card, more, stronger)
    )
    assert wide <= slow
    assert strong <= slow


def test_a_larger_step_never_takes_less_time() -> None:
    time = StepTime(config("--enforce-eager"), parameters_of("t4"))
    taken = [time.advance(Step(n, 0, n, n, 600 * n, 0.0)) for n in range(1, 257)]
    assert taken == sorted(taken)


def test_the_causes_of_a_steps_time_add_up() -> None:
    time = StepTime(config("--no-async-scheduling"), parameters_of("t4"))
    whole = sum(time.advance(Step(50, 0, 50, 50, 40_000, 0.0)) for _ in range(3))
    assert sum(time.seconds.values()) == pytest.approx(whole)
    assert time.config.graphs.launch(50, decodes_only=True) is LaunchMode.FULL
