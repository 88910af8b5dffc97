"""The surrogate with its gradient, flag effects and the importance of parameters."""

import math
from typing import Any

import numpy as np
import optuna
import pytest
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.study import StudyDirection
from optuna.trial import TrialState, create_trial
from scipy.integrate import quad
from scipy.stats import norm

from tuner.sampler.acquisition import log_expected_improvement
from tuner.sampler.candidates import CandidateSpace
from tuner.sampler.encoding import (
    ColumnParameters,
    EncodedConfigurations,
    Encoder,
    from_position,
    to_position,
)
from tuner.sampler.flag_effects import reset_to_default
from tuner.sampler.gaussian_process import GaussianProcess, KernelPrior, losses_of_first
from tuner.sampler.history import GAIN_AT_MOST, History, read_history
from tuner.sampler.prior import PriorCache
from tuner.sampler.residual import ResidualSampler
from tuner.sampler.surrogate import Posterior, Surrogate, SurrogateSettings
from tuner.sampler.transfer import Transfer

SPACE = {
    "seqs": IntDistribution(8, 128, log=True),
    "share": FloatDistribution(0.5, 0.9, step=0.1),
    "kind": CategoricalDistribution((None, "a", 1, True)),
}
NO_FEATURES = np.zeros((1, 1))


def squared_distance(one: dict[str, object], other: dict[str, object]) -> float:
    rows = Encoder(SPACE).rows([one, other])
    return float(((rows[0] - rows[1]) ** 2).sum())


FULL = {"seqs": 32, "share": 0.7, "kind": "a"}


@pytest.mark.parametrize(
    ("other", "squared"),
    [
        (FULL, 0.0),
        ({**FULL, "seqs": 128}, 0.25),  # from the middle of 8..128 by logarithms to its end
        ({**FULL, "kind": None}, 1.0),
        ({"share": 0.7, "kind": "a"}, 0.75),  # lacks a number that is in the middle of its range in FULL
        ({"seqs": 32, "share": 0.7}, 0.5),
    ],
)
def test_the_squared_distance_is_a_sum_over_parameters(other: dict[str, object], squared: float) -> None:
    assert squared_distance(FULL, other) == pytest.approx(squared)


def test_one_and_true_are_two_choices() -> None:
    assert squared_distance({**FULL, "kind": 1}, {**FULL, "kind": True}) == pytest.approx(1.0)


def test_configurations_that_both_lack_a_parameter_do_not_differ_in_it() -> None:
    assert squared_distance({"kind": "a"}, {"kind": "a"}) == 0.0


@pytest.mark.parametrize(("name", "value"), [("seqs", 8), ("seqs", 33), ("seqs", 128), ("share", 0.6), ("share", 0.9)])
def test_the_position_of_a_number_converts_back_to_it(name: str, value: float) -> None:
    assert from_position(SPACE[name], to_position(SPACE[name], value)) == pytest.approx(value)


def test_a_stepped_number_has_no_rounding_error() -> None:
    """In floating point 0.5 + 42 * 0.01 is 0.9199999999999999, which is not vLLM's default of 0.92."""
    assert from_position(FloatDistribution(0.5, 0.95, step=0.01), 0.934) == 0.92


def test_effect_features_agree_in_shared_choices_only() -> None:
    effects = Encoder({"kind": SPACE["kind"]}).encode([{"kind": "a"}, {"kind": "a"}, {"kind": None}, {}]).effects
    assert (effects @ effects.T).tolist() == [[1, 1, 0, 0], [1, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 0]]


def columns(rows: list[int], effects: list[int]) -> ColumnParameters:
    return ColumnParameters(np.array(rows, dtype=np.int64), np.array(effects, dtype=np.int64))


def noisy_process(max_iterations: int = 30, mean: float = 0.0) -> tuple[GaussianProcess, np.ndarray]:
    """Return a process of 30 noisy values of sin(4 x₀), and its rows; the prior mean is a multiple of the truth."""
    random = np.random.default_rng(3)
    rows = random.random((30, 4))
    effects = random.random((30, 6))
    truth = np.sin(4 * rows[:, :1])
    means = mean * truth
    kernel_prior = KernelPrior(amplitude=0.5, effects=0.3, noise=0.03, constant=0.3)
    targets = truth + 0.03 * random.standard_normal((30, 1))
    inputs = EncodedConfigurations(rows, effects)
    of = columns([0, 1, 2, 3], [0, 0, 1, 1, 2, 3])
    return GaussianProcess(of, inputs, targets, means, kernel_prior, max_iterations), rows


def test_the_gradient_is_that_of_the_loss() -> None:
    process, _ = noisy_process(max_iterations=0)
    theta = np.random.default_rng(1).standard_normal(11) * 0.3
    _, gradient = process._loss(theta.copy())
    for index in range(11):
        step = 1e-5 * np.eye(11)[index]
        slope = (process._loss(theta + step)[0] - process._loss(theta - step)[0]) / 2e-5
        assert gradient[index] == pytest.approx(slope, rel=1e-4, abs=1e-5)


def test_the_parameter_that_matters_has_the_shortest_lengthscale() -> None:
    process, _ = noisy_process()
    assert int(np.argmax(process.inverse_squared_lengthscales())) == 0


def test_the_parameter_with_an_effect_has_the_largest_effect_variance() -> None:
    effects = np.random.default_rng(4).integers(0, 2, (20, 3)).astype(float)
    kernel_prior = KernelPrior(amplitude=0.05, effects=0.2, noise=0.03, constant=0.3)
    inputs = EncodedConfigurations(np.zeros((20, 3)), effects)
    of = columns([0, 1, 2], [0, 1, 2])
    process = GaussianProcess(of, inputs, effects[:, 1:2], np.zeros((20, 1)), kernel_prior)
    idle, matters, also_idle = process._relative_effect_variances()
    assert matters > 2 * max(idle, also_idle)
    _, spread = process.predict(EncodedConfigurations(np.zeros((3, 3)), 2.0 * np.eye(3)), np.zeros((3, 1)))
    assert spread[0, 0] < spread[1, 0]


def test_the_uncertainty_is_small_at_a_measured_configuration_and_large_far_away() -> None:
    process, rows = noisy_process()
    inputs = EncodedConfigurations(np.vstack([rows[:1], rows[:1] + 3.0]), np.zeros((2, 6)))
    _, spread = process.predict(inputs, np.zeros((2, 1)))
    assert spread[1, 0] > 3 * spread[0, 0]


def test_the_mean_of_a_difference_is_the_difference_of_the_means() -> None:
    process, _ = noisy_process(mean=0.5)
    random = np.random.default_rng(7)
    others, effects, means = random.random((6, 4)), random.random((6, 6)), random.random((6, 1))
    others[1], effects[1], means[1] = others[0], effects[0], means[0]
    inputs = EncodedConfigurations(others, effects)
    differences, uncertainty = losses_of_first(*process.predict_joint(inputs, means))
    expected, spread = process.predict(inputs, means)
    assert differences == pytest.approx(expected[0, 0] - expected[1:, 0])
    assert uncertainty[0] < 1e-4  # the same row
    largest, least = spread[0, 0] + spread[1:, 0], np.abs(spread[0, 0] - spread[1:, 0])
    assert (uncertainty <= largest + 1e-9).all()
    assert (uncertainty >= least - 1e-4).all()


def test_the_variance_of_a_difference_is_two_variances_minus_twice_the_covariance() -> None:
    """Two values without noise have no uncertainty; if one is known, the variance of the other remains."""
    kernel_prior = KernelPrior(amplitude=0.5, effects=0.3, noise=1e-4, constant=0.3)
    measured = EncodedConfigurations(np.array([[0.1], [0.9]]), np.array([[0.2], [0.7]]))
    targets = np.array([[0.3], [-0.1]])
    process = GaussianProcess(columns([0], [0]), measured, targets, np.zeros((2, 1)), kernel_prior, 0)
    inputs = EncodedConfigurations(np.array([[0.1], [0.9], [0.5]]), np.array([[0.2], [0.7], [0.4]]))
    differences, uncertainty = losses_of_first(*process.predict_joint(inputs, np.zeros((3, 1))))
    _, spread = process.predict(inputs, np.zeros((3, 1)))
    assert differences[0] == pytest.approx(0.4, abs=1e-3)
    assert uncertainty[0] < 1e-3
    assert uncertainty[1] == pytest.approx(spread[2, 0], abs=1e-3)


def test_a_pending_configuration_reduces_the_uncertainty_and_keeps_the_mean() -> None:
    process, _ = noisy_process()
    far, means = EncodedConfigurations(np.full((1, 4), 2.0), np.zeros((1, 6))), np.zeros((1, 1))
    expected, before = process.predict(far, means)
    process.condition_on_pending(far, means)
    again, after = process.predict(far, means)
    assert again[0, 0] == pytest.approx(expected[0, 0], abs=1e-3)
    assert after[0, 0] < 0.5 * before[0, 0]


def test_a_prior_mean_of_the_wrong_sign_is_corrected_far_from_the_data() -> None:
    random = np.random.default_rng(0)
    rows = random.random((12, 4))
    means = random.standard_normal((12, 1)) * 0.5
    kernel_prior = KernelPrior(amplitude=0.15, effects=0.2, noise=0.03, constant=0.3)
    inputs = EncodedConfigurations(rows, np.zeros((12, 2)))
    process = GaussianProcess(columns([0, 1, 2, 3], [0, 1]), inputs, -means, means, kernel_prior)
    far = EncodedConfigurations(np.full((1, 4), 5.0), np.zeros((1, 2)))
    expected, _ = process.predict(far, np.array([[0.5]]))
    assert expected[0, 0] == pytest.approx(-0.5, abs=0.25)


def test_prior_means_below_the_slope_limit_add_no_variance() -> None:
    """Far from all rows the variances are those of the amplitude, the constant and the slope along at most -1."""
    kernel_prior = KernelPrior(amplitude=0.3, effects=0.0, noise=0.03, constant=0.0, slope=0.4, slope_limit=1.0)
    inputs = EncodedConfigurations(np.zeros((1, 1)), NO_FEATURES)
    process = GaussianProcess(columns([0], [0]), inputs, np.zeros((1, 1)), np.zeros((1, 1)), kernel_prior)
    far = EncodedConfigurations(np.full((4, 1), 1e6), np.zeros((4, 1)))
    _, spread = process.predict(far, np.array([[-3.0], [-1.0], [-0.5], [3.0]]))
    assert spread[:, 0] ** 2 == pytest.approx([0.09 + 0.16, 0.09 + 0.16, 0.09 + 0.04, 0.09 + 1.44])


@pytest.mark.parametrize(("gain", "spread"), [(0.2, 0.1), (0.0, 0.3), (-0.3, 0.1), (-0.05, 0.06)])
def test_expected_improvement_is_the_integral(gain: float, spread: float) -> None:
    integral, _ = quad(lambda x: x * norm.pdf(x, gain, spread), 0.0, gain + 20 * spread)
    logarithm = log_expected_improvement(np.array([gain]), np.array([spread]))[0]
    assert logarithm == pytest.approx(math.log(integral), abs=1e-5)


def test_log_expected_improvement_is_ordered_where_expected_improvement_underflows() -> None:
    logarithms = log_expected_improvement(np.array([-3.0, -4.0, -5.0]), np.full(3, 0.1))
    assert np.isfinite(logarithms).all()
    assert list(logarithms) == sorted(logarithms, reverse=True)


DEFAULTS = {"method": "plain", "batch": 64, "cache": None, "idle": 0.5}
BEST = {"method": "draft", "depth": 6, "batch": 256, "cache": True, "idle": 0.25}
METRICS = ["speed", "token_ms"]


def space(trial: Any) -> dict[str, Any]:
    config = {"method": trial.suggest_categorical("method", ["plain", "draft", "tree"])}
    if config["method"] != "plain":
        config["depth"] = trial.suggest_int("depth", 1, 16)
    config["batch"] = trial.suggest_int("batch", 16, 1024, log=True)
    config["cache"] = trial.suggest_categorical("cache", [None, True, False])
    config["idle"] = trial.suggest_float("idle", 0.0, 1.0)
    return config


def test_each_parameter_is_reset_alone_together_with_those_that_depend_on_it() -> None:
    assert reset_to_default(CandidateSpace(space), BEST, DEFAULTS) == {
        "method": {"method": "plain", "batch": 256, "cache": True, "idle": 0.25},
        "batch": {**BEST, "batch": 64},
        "cache": {**BEST, "cache": None},
        "idle": {**BEST, "idle": 0.5},
    }


def test_parameters_at_their_defaults_are_not_reset() -> None:
    assert reset_to_default(CandidateSpace(space), {**DEFAULTS, "batch": 128}, DEFAULTS) == {
        "batch": {**DEFAULTS, "batch": 64}
    }


def test_one_and_true_are_different_defaults() -> None:
    def switch(trial: Any) -> dict[str, Any]:
        return {"level": trial.suggest_categorical("level", [1, True])}

    assert reset_to_default(CandidateSpace(switch), {"level": True}, {"level": 1}) == {"level": {"level": 1}}


def true_metrics(config: dict[str, Any]) -> tuple[float, float]:
    """Return tokens a second and ms a token: drafting is 1.3 times as fast and costs 10 %, a batch of 256 1.25."""
    drafts = config["method"] == "draft"
    speed = 1000.0 * (1.3 if drafts else 1.0) * (1.25 if config["batch"] >= 160 else 1.0)
    return speed, 10.0 * (1.1 if drafts else 1.0) * (0.9 if config["cache"] else 1.0)


@pytest.fixture(scope="module")
def study() -> optuna.Study:
    """The defaults, the best and 60 random trials with 2 % noise; the plain method violates the constraint."""
    random = np.random.default_rng(5)
    study = optuna.create_study(directions=["maximize", "minimize"], sampler=ResidualSampler(space, seed=1))
    for number in range(62):
        candidates, given = CandidateSpace(space), {0: DEFAULTS, 1: BEST}.get(number)
        config = candidates.draw(random, given)
        assert config is not None
        values = [value * float(np.exp(0.02 * random.standard_normal())) for value in true_metrics(dict(config))]
        trial = optuna.trial.create_trial(params=dict(config), distributions=candidates.distributions, values=values)
        trial.set_constraint("slo", 0.3 if config["method"] == "plain" else -0.3)
        study.add_trial(trial)
    return study


def test_intervals_contain_the_true_ratios_and_an_idle_parameter_has_no_effect(study: optuna.Study) -> None:
    found = ResidualSampler(space, weights=[3, 1], seed=1).flag_effects(study, 1, 0, METRICS)
    effects = {each.name: each for each in found}
    truth = {
        "method": (1.3**3 / 1.1) ** 0.25,
        "batch": 1.25**0.75,
        "cache": (1 / 0.9) ** 0.25,
        "idle": 1.0,
    }
    assert set(effects) == set(truth)
    for name, ratio in truth.items():
        assert effects[name].low < ratio < effects[name].high, (name, effects[name])
        assert effects[name].ratio == pytest.approx(ratio, rel=0.04)
    assert effects["method"].low > 1
    assert effects["batch"].low > 1
    assert effects["idle"].low < 1 < effects["idle"].high
    assert effects["method"].metrics == pytest.approx({"speed": 1.3, "token_ms": 1.1}, rel=0.06)
    assert effects["batch"].metrics == pytest.approx({"speed": 1.25, "token_ms": 1.0}, rel=0.06)
    assert [effects["method"].value, effects["method"].default, effects["cache"].default] == ["draft", "plain", None]
    ratios = [each.ratio for each in found]
    assert ratios == sorted(ratios, reverse=True)
    # the SLO requires drafting
    assert effects["method"].needed > 0.9
    assert max(effects[name].needed for name in ("batch", "cache", "idle")) < 0.2


def test_a_study_without_a_measured_trial_has_no_effects() -> None:
    assert ResidualSampler(space).flag_effects(optuna.create_study(), 0, 0, ["speed"]) == []


def test_flags_are_eliminated_from_the_least_to_the_largest_effect_except_the_needed(study: optuna.Study) -> None:
    sampler = ResidualSampler(space, weights=[3, 1], seed=1)
    order = sampler.eliminate(study, 1, 0, {"depth": 1})
    # depth and idle have no effect, the cache has the smaller one, and without drafting the SLO breaks.
    assert set(order.names[:2]) == {"depth", "idle"}
    assert order.names[2:] == ("cache", "batch")


def test_a_trial_that_was_cut_counts_as_at_most_its_bound() -> None:
    """The middle of three is expected to have the gain of its neighbours, and is known to have at most half of it."""
    space = {"share": FloatDistribution(0.0, 1.0)}
    directions = [StudyDirection.MAXIMIZE]
    settings = SurrogateSettings(PriorCache(None), Transfer((), with_prior=False), None)

    def score_at_middle(gain: float | None, *, is_cut: bool = True, violation: float | None = None) -> Posterior:
        history = History()
        for share, value, constraint in ((0.4, 2.0, -0.5), (0.6, 2.0, -0.5), (0.0, 1.0, -0.5), (1.0, 1.0, -0.5)):
            history.measured.append({"share": share})
            history.values.append((value,))
            history.constraints.append({"slo": constraint})
            history.feasible_flags.append(True)
        if is_cut:
            history.cut.append({"share": 0.5})
            history.gains_at_most.append(gain)
            history.least_constraints.append({} if violation is None else {"slo": violation})
        surrogate = Surrogate(settings, space, directions, history)
        inputs = surrogate.encoder.encode([{"share": 0.5}])
        return surrogate.posterior(inputs, np.zeros((1, 3)))

    expected = score_at_middle(None, is_cut=False).score[0]
    assert score_at_middle(None).score[0] == pytest.approx(expected, abs=1e-6)
    assert score_at_middle(expected + 1.0).score[0] == pytest.approx(expected, abs=1e-6)
    assert score_at_middle(0.5 * expected).score[0] < 0.8 * expected
    assert score_at_middle(None, violation=2.0).log_satisfies[0] < math.log(0.5)
    assert score_at_middle(None).log_satisfies[0] > math.log(0.5)


def test_a_trial_that_was_cut_is_read_with_its_bounds() -> None:
    trials = [
        create_trial(state=TrialState.PRUNED, params={"seqs": 8}, distributions={"seqs": SPACE["seqs"]}, **more)
        for more in (
            {"user_attrs": {GAIN_AT_MOST: -0.5}, "constraints": {"slo": 0.3, "failed": 0.0}},
            {"user_attrs": {GAIN_AT_MOST: None}, "constraints": {"failed": 0.0}},
            {"constraints": {"failed": 10.0}},
        )
    ]
    history = read_history(trials, "failed")
    assert history.gains_at_most == [-0.5, None]
    assert history.least_constraints == [{"slo": 0.3}, {}]
    assert (len(history.cut), len(history.failed), history.n_finished) == (2, 1, 3)
    assert history.feasible_flags == [False, False, False]


def test_a_surer_prior_leaves_less_to_the_residual() -> None:
    prior = KernelPrior(amplitude=0.2, effects=0.1, noise=0.03, constant=0.3, slope=0.4, slope_limit=1.0)
    half = KernelPrior(amplitude=0.1, effects=0.05, noise=0.03, constant=0.3, slope=0.2, slope_limit=1.0)
    assert prior.scaled(0.5) == half
