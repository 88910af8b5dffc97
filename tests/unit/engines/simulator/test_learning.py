"""The posterior of a host's parameters: worked examples, and a host that is found again."""

import math
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from records.lessons import Lesson, Site
from search_spaces import hardware_named
from tests.some import some
from tuner.engines.simulator.learning import LEARNED, Metrics, follow, lesson_of, linearised, moved, posterior
from tuner.engines.simulator.parameters import parameters_of
from tuner.engines.simulator.prediction import Platform

SITE = Site("node-1", "NVIDIA H200", "0.25.1", "/opt/vllm", "digest")
CARD = hardware_named("h200")
PLATFORM = Platform(CARD, parameters_of("h200"), (0, 25, 1), frozenset())


def lesson(error: float, slope: float, point: float = 0.0) -> Lesson:
    """A lesson with the throughput alone, which depends on the host's speed alone."""
    slopes = {"output_throughput": {"host_speed": slope}}
    return Lesson(SITE, {"host_speed": point}, {"output_throughput": error}, slopes)


def test_nothing_is_known_without_lessons() -> None:
    assert posterior([]) is None


def test_errors_that_no_parameter_explains_widen_the_bands() -> None:
    found = some(posterior([lesson(0.3, 0.0)] * 5))
    assert not found.mean.any()
    # √((5 × 0.12² + 5 × 0.3²) / 10) = 0.228473, and t(0.95, 10) = 1.812461: exp(0.414098) - 1
    assert found.deviations["output_throughput"] == pytest.approx(0.228473, abs=1e-6)
    assert found.deviations["p99_tpot_ms"] == 0.18
    assert found.spread == pytest.approx((0.228473 / 0.12 + 4) / 5)
    assert found.bands({"output_throughput": {}}) == {"output_throughput": pytest.approx(0.513006, abs=1e-5)}


def test_one_trial_moves_a_parameter_as_far_as_its_error_and_the_prior_agree() -> None:
    """With the residual 0.03: σ² = (5 × 0.0144 + 0.0009) / 6 = 0.01215, q = 5 / (4 + 0.0009 / σ²) / σ² = 101.01.

    The mode has x / 0.4² = 0.03 q, so x = 0.484848, which the error 0.514848 leaves the residual 0.03.
    """
    found = some(posterior([lesson(0.514848, 1.0)]))
    assert found.point["host_speed"] == pytest.approx(0.484848, rel=0.002)


def test_lessons_at_another_point_tell_the_same() -> None:
    here, there = posterior([lesson(0.2, 0.5)] * 9), posterior([lesson(0.2 - 0.5 * 0.3, 0.5, point=0.3)] * 9)
    assert here is not None
    assert there is not None
    np.testing.assert_allclose(here.mean, there.mean)


def test_one_outlier_of_ten_hardly_moves_the_mean() -> None:
    found = some(posterior([*[lesson(0.0, 1.0)] * 9, lesson(1.5, 1.0)]))
    assert abs(found.point["host_speed"]) < 0.1  # the mean of the errors is 0.15


def test_a_parameter_that_no_trial_depends_on_is_not_named() -> None:
    found = some(posterior([lesson(0.2, 1.0)] * 20))
    assert list(found.factors) == ["host_speed"]
    assert found.factors["host_speed"][0] == pytest.approx(math.exp(0.2), rel=0.02)
    assert found.to_dict()["trials"] == 20


@pytest.mark.parametrize(("error", "expected"), [(0.0, 0.8), (2.0, 1.5)])
def test_the_spread_for_the_sampler_is_bounded(error: float, expected: float) -> None:
    """Only the throughput is measured, so four metrics of five keep the ratio 1."""
    found = some(posterior([lesson(error, 0.0)] * 2000))
    assert found.spread == pytest.approx(expected, abs=0.02)


def test_a_study_predicts_anew_once_a_prediction_moves_by_half_of_the_remaining_deviation() -> None:
    """One small error e has σ² = 5 × 0.0144 / 6 = 0.012, q = 5 / 4 / σ² = 104.17 and x = e q / (q + 0.4⁻²) = 0.943 e.

    With the slope 1, the prediction moves by x: 0.047 for e = 0.05, 0.057 for e = 0.06, and σ / 2 = 0.0548.
    """
    assert follow(None, None, [lesson(0.05, 1.0)]) is None
    used = some(follow(None, None, [lesson(0.06, 1.0)]))
    assert used.point["host_speed"] == pytest.approx(0.943 * 0.06, rel=0.001)
    assert follow(None, used, [lesson(0.06, 1.0)] * 2) is used
    assert follow(None, used, []) is used


def test_lessons_of_a_study_are_added_to_earlier_ones() -> None:
    known = posterior([lesson(0.0, 1.0)] * 2)
    found = some(follow(known, known, [lesson(0.6, 1.0)] * 3))
    assert found.trials == 5
    everything = some(posterior([*[lesson(0.0, 1.0)] * 2, *[lesson(0.6, 1.0)] * 3]))
    np.testing.assert_array_equal(found.mean, everything.mean)


def step(platform: Platform, kernels: float) -> Metrics:
    """A server whose steps wait for the host, and for kernels that read memory."""
    assert platform.card.host_speed
    seconds = 1 / platform.card.host_speed + kernels / platform.parameters.bandwidth_share
    return {"output_throughput": 1000 / seconds, "mean_tpot_ms": seconds, "p99_ttft_ms": None}


def test_a_host_and_a_memory_are_told_apart_by_loads_that_need_them_differently() -> None:
    real = moved(PLATFORM, {"host_speed": math.log(0.6), "bandwidth_share": math.log(0.95)})
    lessons = []
    for kernels in (0.05, 0.3, 1.0, 3.0, 10.0, 30.0):
        found = some(linearised(PLATFORM, partial(step, kernels=kernels), {}, experts=False))
        made = some(lesson_of(SITE, {}, *found, step(real, kernels)))
        assert set(made.errors) == {"output_throughput", "mean_tpot_ms"}
        lessons.append(made)
    learned = some(posterior(lessons))
    assert learned.point["host_speed"] == pytest.approx(math.log(0.6), abs=0.1)
    assert learned.point["bandwidth_share"] == pytest.approx(math.log(0.95), abs=0.03)
    assert learned.point["kernel_us"] == 0.0


def test_moved_parameters_stay_possible() -> None:
    far = moved(PLATFORM, dict.fromkeys(LEARNED, 2.0))
    assert far.parameters.bandwidth_share == 0.98
    assert far.parameters.expert_arithmetic_share == PLATFORM.parameters.expert_arithmetic_share
    assert far.card.host_speed == pytest.approx(CARD.host_speed * math.exp(2))  # type: ignore[operator]
    unknown = replace(PLATFORM, card=replace(CARD, host_speed=None))
    assert moved(unknown, {"host_speed": 1.0}).card.host_speed is None
