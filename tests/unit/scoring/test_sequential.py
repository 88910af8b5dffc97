"""The sequential test of the finals, against values worked out by hand."""

from dataclasses import replace

import numpy as np
import pytest

from tests.some import some
from tuner.scoring.sequential import (
    LEAST_SPREAD,
    SPREAD_FACTOR,
    Arms,
    looks,
    most_measurements,
    plan,
    pooled,
    posterior,
    shrunk,
)


def arms(mean: list[float], spread: float = 0.02, flags: tuple[int, ...] = (0, 4, 1)) -> Arms:
    """Return the defaults, a finalist with four flags, and a form of it with one."""
    covariance = (spread**2 - LEAST_SPREAD**2) / SPREAD_FACTOR**2 * np.eye(3)
    alive, known = np.array([False, True, True]), np.array([False, True, False])
    origins = np.array([0, 1, 1])
    return Arms(np.array(flags), origins, np.array(mean), covariance, 0.01, alive, np.ones(3), known, 0)


def test_the_rounds_may_end_after_two_four_and_six() -> None:
    assert (looks(3), looks(2), looks(1), looks(0)) == ((2, 4, 6), (2, 4), (1,), (0,))


def test_prior_and_rounds_are_weighted_by_their_precision() -> None:
    # The difference of two has the prior variance 2 · 0.02² and one round's 2 · 0.02²: the mean is half of 0.1.
    mean, covariance = posterior(arms([0.0, 0.0, 0.0]), [{0: 5.0, 1: 5.1}], 0.02)
    assert mean[1] - mean[0] == pytest.approx(0.05)
    assert covariance[0, 0] + covariance[1, 1] - 2 * covariance[0, 1] == pytest.approx(0.02**2)
    assert mean[2] == pytest.approx(0.0)


def test_single_trials_count_as_a_round_with_the_noise_of_the_search_of_at_least_two_and_a_half_per_cent() -> None:
    # The difference of two has the prior variance 2 · 0.02² and the trials' 2 · 0.025²: 0.1 · 0.0004 / 0.001025.
    known = replace(arms([0.0, 0.0, 0.0]), searched={1: 5.0, 2: 5.1})
    mean, _ = posterior(known, [], 0.01)
    assert mean[2] - mean[1] == pytest.approx(0.1 * 0.0004 / 0.001025)
    assert mean[0] == pytest.approx(0.0)


def test_one_single_trial_alone_says_nothing() -> None:
    mean, _ = posterior(replace(arms([0.0, 0.0, 0.0]), searched={2: 0.1}), [], 0.01)
    assert list(mean) == pytest.approx([0.0, 0.0, 0.0])


def test_the_finals_take_half_of_the_searchs_measurements_or_what_three_configurations_need() -> None:
    # at least 12, three rounds of three finalists and the reference; as many as the search up to 18
    assert [most_measurements(searched, 3, 3) for searched in (4, 15, 18, 36, 60)] == [12, 15, 18, 18, 30]
    assert most_measurements(4, 3, 8) == 27  # three rounds of eight finalists and the reference
    assert most_measurements(4, 1, 3) == 4


def test_a_form_that_is_surely_as_good_is_the_target_and_needs_two_rounds() -> None:
    before = some(plan(arms([0.0, 0.3, 0.3], 0.004), [], 0.01))
    assert (before.target, before.settled) == (2, False)
    assert before.arms == (0, 2, 1)
    rounds = [{0: 0.0, 1: 0.3, 2: 0.3}] * 2
    after = some(plan(arms([0.0, 0.3, 0.3], 0.004), rounds, 0.001))
    assert (after.target, after.settled) == (2, True)


def test_a_form_that_surely_loses_is_never_measured() -> None:
    found = some(plan(arms([0.0, 0.3, 0.1], 0.004), [], 0.01))
    assert (found.target, found.arms) == (1, (0, 1))


def test_a_form_that_may_be_as_good_is_measured_beside_the_target() -> None:
    found = some(plan(arms([0.0, 0.3, 0.2], 0.05), [], 0.01))
    assert (found.target, found.arms, found.settled) == (1, (0, 1, 2), False)


def test_a_form_that_hardly_saves_a_flag_is_not_measured() -> None:
    # It is as good with a probability of 0.15, and has one flag less: 0.15 flags are saved on average.
    found = some(plan(arms([0.0, 0.3, 0.2], 0.03, flags=(0, 4, 3)), [], 0.01))
    assert (found.target, found.arms, found.settled) == (1, (0, 1), False)


@pytest.mark.parametrize(
    ("feasible", "target", "measured"),
    [
        (0.5, 2, (0, 2, 1)),
        (0.4, 1, (0, 1, 2)),  # as good with 0.64, feasible with 0.4: 3 · 0.26 flags are saved on average
        (0.2, 1, (0, 1)),  # 3 · 0.13 flags
    ],
)
def test_a_form_that_is_hardly_feasible_is_neither_the_target_nor_measured(
    feasible: float, target: int, measured: tuple[int, ...]
) -> None:
    found = plan(replace(arms([0.0, 0.3, 0.3]), feasible=np.array([1.0, 1.0, feasible])), [], 0.01)
    assert found is not None
    assert (found.target, found.arms) == (target, measured)


def test_without_a_configuration_that_can_win_there_is_no_plan() -> None:
    lost = arms([0.0, 0.3, 0.3])
    lost.alive[:] = False
    assert plan(lost, [], 0.01) is None


def test_a_loss_within_the_surrogates_error_is_drawn_to_none_and_a_certain_one_stays() -> None:
    covariance = 0.02**2 / 2 * np.eye(3)
    origins = np.array([0, 0, 0])
    found = shrunk(np.array([0.3, 0.28, 0.1]), covariance, origins, np.array([0, 1, 2]))
    # One flag, L = s = 0.02, e = 0.1 and p = 0.7. φ(L; s) = 19.947 · e^-0.5 = 12.098 if the flag is idle, else
    # φ(L; √(s² + e²)) = 3.912 · e^-0.0192 = 3.838: P(1) = 0.3 · 3.838 / (0.7 · 12.098 + 0.3 · 3.838) = 0.1197, and
    # E[L] = 0.02 · 0.1197 · 0.01 / 0.0104.
    assert found[0] - found[1] == pytest.approx(0.02 * 0.1197 / 1.04, rel=1e-3)
    assert found[0] - found[2] == pytest.approx(0.2, rel=0.04)  # two flags: one that does something is enough


def test_a_loss_in_rounds_that_their_noise_explains_is_drawn_to_none() -> None:
    # The difference has the prior variance 2 · 0.05² and six rounds' 2 · 0.03² / 6: L = 0.02 · 0.005 / 0.0053 = 0.0189
    # with s² = 0.000283. Of three flags J do something: with P(0) = 0.343 and φ(L; s) = 12.6, P(1) = 0.441 and
    # φ = 3.87, P(2) = 0.189 and φ = 2.78, P(3) = 0.027 and φ = 2.28, some do with 0.346.
    found = some(plan(arms([0.0, 0.3, 0.3], 0.05), [{0: 0.0, 1: 0.3, 2: 0.28}] * 6, 0.03))
    assert found.losses[2] == pytest.approx(0.0189 * 0.346 * 0.98, rel=0.02)


def test_the_noise_of_the_search_counts_as_four_degrees() -> None:
    assert pooled(0.02, 4, 0.01) == pytest.approx(np.sqrt((0.02**2 + 0.01**2) / 2))
