"""What the sampler's models rest on: distances, effects, the process and its gradient, expected improvement."""

from __future__ import annotations

import math

import numpy as np
import pytest
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution
from scipy.integrate import quad
from scipy.stats import norm

from tuner.sampler.acquisition.expected_improvement import log_expected_improvement
from tuner.sampler.surrogate.encoding import Encoder, number_at, place
from tuner.sampler.surrogate.gaussian_process import GaussianProcess, PriorScales

SPACE = {
    "seqs": IntDistribution(8, 128, log=True),
    "share": FloatDistribution(0.5, 0.9, step=0.1),
    "kind": CategoricalDistribution((None, "a", 1, True)),
}


def distance(one: dict[str, object], other: dict[str, object]) -> float:
    rows = Encoder(SPACE).rows([one, other])
    return float(((rows[0] - rows[1]) ** 2).sum())


FULL = {"seqs": 32, "share": 0.7, "kind": "a"}


@pytest.mark.parametrize(
    ("other", "squared"),
    [
        (FULL, 0.0),
        ({**FULL, "seqs": 128}, 0.25),  # from the middle of 8..128 by logarithms to its end
        ({**FULL, "kind": None}, 1.0),
        ({"share": 0.7, "kind": "a"}, 0.75),  # lacks what is in the middle of its range here
        ({"seqs": 32, "share": 0.7}, 0.5),
    ],
)
def test_distances_add_up_over_parameters(other: dict[str, object], squared: float) -> None:
    assert distance(FULL, other) == pytest.approx(squared)


def test_one_and_true_are_two_choices() -> None:
    assert distance({**FULL, "kind": 1}, {**FULL, "kind": True}) == pytest.approx(1.0)


def test_two_that_lack_a_parameter_do_not_differ_in_it() -> None:
    assert distance({"kind": "a"}, {"kind": "a"}) == 0.0


@pytest.mark.parametrize(("name", "value"), [("seqs", 8), ("seqs", 33), ("seqs", 128), ("share", 0.6), ("share", 0.9)])
def test_a_numbers_place_leads_back_to_it(name: str, value: float) -> None:
    assert number_at(SPACE[name], place(SPACE[name], value)) == pytest.approx(value)


def test_steps_add_up_to_the_number_that_is_meant() -> None:
    """In floating point 0.5 + 42 * 0.01 is 0.9199999999999999, which is not vLLM's default of 0.92."""
    assert number_at(FloatDistribution(0.5, 0.95, step=0.01), 0.934) == 0.92


def test_effects_are_alike_in_what_configurations_share() -> None:
    effects = Encoder({"kind": SPACE["kind"]}).effects([{"kind": "a"}, {"kind": "a"}, {"kind": None}, {}])
    assert (effects @ effects.T).tolist() == [[1, 1, 0, 0], [1, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 0]]


def noisy(steps: int = 30, mean: float = 0.0) -> tuple[GaussianProcess, np.ndarray]:
    random = np.random.default_rng(3)
    rows = random.random((30, 4))
    effects = random.random((30, 6))
    truth = np.sin(4 * rows[:, :1])
    means = mean * truth
    beliefs = PriorScales(amplitude=0.5, effects=0.3, noise=0.03, constant=0.3)
    targets = truth + 0.03 * random.standard_normal((30, 1))
    owners = np.arange(4), np.array([0, 0, 1, 1, 2, 3])
    return GaussianProcess(owners, rows, effects, targets, means, beliefs, steps=steps), rows


def test_the_gradient_is_that_of_the_loss() -> None:
    process, _ = noisy(steps=0)
    theta = np.random.default_rng(1).standard_normal(11) * 0.3
    _, gradient = process._loss(theta.copy())
    for index in range(11):
        step = 1e-5 * np.eye(11)[index]
        slope = (process._loss(theta + step)[0] - process._loss(theta - step)[0]) / 2e-5
        assert gradient[index] == pytest.approx(slope, rel=1e-4, abs=1e-5)


def test_the_parameter_that_matters_is_found() -> None:
    process, _ = noisy()
    assert int(np.argmax(process.relevances())) == 0


def test_the_parameter_with_an_effect_of_its_own_is_told_from_those_without() -> None:
    effects = np.random.default_rng(4).integers(0, 2, (20, 3)).astype(float)
    beliefs = PriorScales(amplitude=0.05, effects=0.2, noise=0.03, constant=0.3)
    owners = np.arange(3), np.arange(3)
    process = GaussianProcess(owners, np.zeros((20, 3)), effects, effects[:, 1:2], np.zeros((20, 1)), beliefs)
    idle, matters, also_idle = process._shares()
    assert matters > 2 * max(idle, also_idle)
    _, spread = process.predict(np.zeros((3, 3)), 2.0 * np.eye(3), np.zeros((3, 1)))
    assert spread[0, 0] < spread[1, 0]


def test_what_was_measured_is_known_and_what_was_not_is_unsure() -> None:
    process, rows = noisy()
    at, effects = np.vstack([rows[:1], rows[:1] + 3.0]), np.zeros((2, 6))
    _, spread = process.predict(at, effects, np.zeros((2, 1)))
    assert spread[1, 0] > 3 * spread[0, 0]


def test_a_difference_is_that_of_the_expectations_and_as_unsure_as_two_variances_allow() -> None:
    process, _ = noisy(mean=0.5)
    random = np.random.default_rng(7)
    others, effects, means = random.random((6, 4)), random.random((6, 6)), random.random((6, 1))
    others[1], effects[1], means[1] = others[0], effects[0], means[0]
    gains, unsure = process.differences(others, effects, means)
    expected, spread = process.predict(others, effects, means)
    assert gains[:, 0] == pytest.approx(expected[0, 0] - expected[1:, 0])
    assert unsure[0, 0] < 1e-4  # the same row
    together, least = spread[0, 0] + spread[1:, 0], np.abs(spread[0, 0] - spread[1:, 0])
    assert (unsure[:, 0] <= together + 1e-9).all()
    assert (unsure[:, 0] >= least - 1e-4).all()


def test_the_variance_of_a_difference_is_two_variances_less_twice_the_covariance() -> None:
    """Of two values that were measured without noise nothing is unknown; of one, the other's variance is left."""
    owners, beliefs = (np.arange(1), np.arange(1)), PriorScales(amplitude=0.5, effects=0.3, noise=1e-4, constant=0.3)
    rows, effects = np.array([[0.1], [0.9]]), np.array([[0.2], [0.7]])
    process = GaussianProcess(owners, rows, effects, np.array([[0.3], [-0.1]]), np.zeros((2, 1)), beliefs, steps=0)
    asked, features = np.array([[0.1], [0.9], [0.5]]), np.array([[0.2], [0.7], [0.4]])
    gains, unsure = process.differences(asked, features, np.zeros((3, 1)))
    _, spread = process.predict(asked, features, np.zeros((3, 1)))
    assert gains[0, 0] == pytest.approx(0.4, abs=1e-3)
    assert unsure[0, 0] < 1e-3
    assert unsure[1, 0] == pytest.approx(spread[2, 0], abs=1e-3)


def test_a_pending_row_makes_its_neighbourhood_surer_and_changes_no_expectation() -> None:
    process, _ = noisy()
    far, effects, means = np.full((1, 4), 2.0), np.zeros((1, 6)), np.zeros((1, 1))
    expected, before = process.predict(far, effects, means)
    process.with_pending(far, effects, means)
    again, after = process.predict(far, effects, means)
    assert again[0, 0] == pytest.approx(expected[0, 0], abs=1e-3)
    assert after[0, 0] < 0.5 * before[0, 0]


def test_a_belief_turned_around_is_unlearned_far_from_what_was_measured() -> None:
    random = np.random.default_rng(0)
    rows = random.random((12, 4))
    means = random.standard_normal((12, 1)) * 0.5
    beliefs = PriorScales(amplitude=0.15, effects=0.2, noise=0.03, constant=0.3)
    process = GaussianProcess((np.arange(4), np.arange(2)), rows, np.zeros((12, 2)), -means, means, beliefs)
    expected, _ = process.predict(np.full((1, 4), 5.0), np.zeros((1, 2)), np.array([[0.5]]))
    assert expected[0, 0] == pytest.approx(-0.5, abs=0.25)


def test_what_is_believed_to_be_worse_than_within_reach_is_no_less_sure_for_it() -> None:
    """Far from all rows: the variances of amplitude and constant, and of the slope along at most 1 below 0."""
    beliefs = PriorScales(amplitude=0.3, effects=0.0, noise=0.03, constant=0.0, slope=0.4, reach=1.0)
    row, nothing = np.zeros((1, 1)), np.zeros((1, 1))
    process = GaussianProcess((np.zeros(1, np.int64), np.zeros(1, np.int64)), row, nothing, nothing, nothing, beliefs)
    far = np.full((4, 1), 1e6)
    _, spread = process.predict(far, np.zeros((4, 1)), np.array([[-3.0], [-1.0], [-0.5], [3.0]]))
    assert spread[:, 0] ** 2 == pytest.approx([0.09 + 0.16, 0.09 + 0.16, 0.09 + 0.04, 0.09 + 1.44])


@pytest.mark.parametrize(("gain", "spread"), [(0.2, 0.1), (0.0, 0.3), (-0.3, 0.1), (-0.05, 0.06)])
def test_expected_improvement_is_the_integral(gain: float, spread: float) -> None:
    integral, _ = quad(lambda x: x * norm.pdf(x, gain, spread), 0.0, gain + 20 * spread)
    found = log_expected_improvement(np.array([gain]), np.array([spread]))[0]
    assert found == pytest.approx(math.log(integral), abs=1e-5)


def test_expected_improvement_keeps_its_order_where_it_underflows() -> None:
    found = log_expected_improvement(np.array([-3.0, -4.0, -5.0]), np.full(3, 0.1))
    assert np.isfinite(found).all()
    assert list(found) == sorted(found, reverse=True)
