"""`ResidualSampler`, an Optuna sampler: Bayesian optimisation with a prior mean, constraints and failures."""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
from optuna.distributions import BaseDistribution
from optuna.samplers import BaseSampler, RandomSampler
from optuna.study import Study, StudyDirection
from optuna.trial import FrozenTrial

from tuner.sampler.acquisition import CandidateSelection, Suggestion
from tuner.sampler.background import BackgroundPredictions
from tuner.sampler.candidates import CandidateSpace, DefineByRun, best_of_sources, best_predicted, space_filling
from tuner.sampler.encoding import Matrix, Params, Vector
from tuner.sampler.flag_effects import (
    Elimination,
    FlagEffect,
    eliminate,
    flag_effects,
    reset_to_default,
)
from tuner.sampler.history import History, read_history
from tuner.sampler.prior import Prior, PriorCache
from tuner.sampler.surrogate import Surrogate, SurrogateSettings, single_blas_thread
from tuner.sampler.transfer import SourceHistory, Transfer


class StudyView(Protocol):
    """Trials and directions of a study; `optuna.Study` is one."""

    @property
    def directions(self) -> list[StudyDirection]:
        """The directions of the objectives."""

    def get_trials(self, deepcopy: bool = True) -> list[FrozenTrial]:
        """Return the trials."""


@dataclass(frozen=True)
class SelectedTrials:
    """A view of some trials of a study, under their own numbers."""

    trials: Sequence[FrozenTrial]
    directions: list[StudyDirection]

    def get_trials(self, deepcopy: bool = True) -> list[FrozenTrial]:
        """Return the trials; they are never copied."""
        return list(self.trials)


INITIAL_PREDICTIONS = 200
RANDOM_WEIGHTS_EVERY = 6
"""With several objectives, how often a suggestion has random weights (Knowles, "ParEGO", IEEE TEC 2006)."""


class ResidualSampler(BaseSampler):
    """Bayesian optimisation for expensive, noisy, constrained objectives, in any Optuna study.

        study = optuna.create_study(direction="maximize", sampler=ResidualSampler(seed=0))
        study.optimize(objective, n_trials=60)

    Gaussian processes model the score, the constraints and the failures. Each trial maximises the expected improvement
    of the score times the probability that the trial succeeds and satisfies every constraint. An optional prior, for
    example a simulator, predicts configurations; then the processes model the residual, measured minus predicted. The
    search begins with changes of few parameters of the first measured trial, or follows the prior.

    **Parameters** may be integers, floats and categorical values, conditional on each other in any way.

    **Objectives**: one or several. Their score is the weighted mean of the gains over the first measured trial;
    a gain is the logarithm of the ratio where all values are positive or zero. With several objectives, every sixth
    trial has random weights, so that the Pareto front is explored too.

    **Constraints** are set in the objective function by `trial.set_constraint(name, value)`; at most 0 is satisfied.
    The distance to 0 counts, so give a relative violation: `latency / limit - 1`. Optuna's older `constraints_func` is
    not an argument of this sampler.

    **Failures**: a configuration that fails has no values. Set a positive constraint and raise `optuna.TrialPruned`;
    the sampler then avoids similar configurations. A trial that Optuna stores as FAIL has no influence, except that
    its configuration is not proposed again.

    **Reproducibility**: a suggestion depends on the seed, the number of the trial and all other trials; with a prior
    also on the predictions computed so far, which a new process starts anew.

    Args:
        space: the define-by-run search space: a function that calls `trial.suggest_…` for every parameter that applies
            (its result is ignored). Without one, the sampler uses the parameters of earlier trials, and the
            first trial is random.
        prior: returns the `Prediction` of a configuration (a dict of parameters), in the units of the objectives and
            constraints, or None. Its level may be wrong: only gains over the first measured trial count.
        prior_spread: factor on the standard deviation of measured minus predicted, where more is known of the prior.
        initial_predictions: number of predictions before the first suggestion.
        is_allowed: returns whether a configuration may be proposed; excludes combinations known to be useless.
        weights: of the objectives in the score, in their order; equal by default.
        failure_constraint: name of a constraint that only separates failures from successes; it is not modelled.
        seed: of all draws.
        sources: trials of other studies, for a warm start.
    """

    def __init__(
        self,
        space: DefineByRun | None = None,
        *,
        prior: Prior | None = None,
        prior_spread: float = 1.0,
        initial_predictions: int = INITIAL_PREDICTIONS,
        is_allowed: Callable[[Params], bool] | None = None,
        weights: Sequence[float] | None = None,
        failure_constraint: str = "failed",
        seed: int = 0,
        sources: Sequence[SourceHistory] = (),
    ) -> None:
        given = tuple(weights) if weights else None
        cache, transfer = PriorCache(prior, prior_spread), Transfer(sources, prior is not None)
        self._space = CandidateSpace(space, is_allowed)
        self._settings = SurrogateSettings(cache, transfer, given)
        self._background = BackgroundPredictions(cache, self._space, transfer, given, initial_predictions)
        self._failure_constraint = failure_constraint
        self._seed, self._independent = seed, RandomSampler(seed=seed)
        self._hidden: Sequence[Params] = ()
        self._begun: tuple[int, History] | None = None
        self.last_suggestion: Suggestion | None = None
        """The last configuration that was suggested."""

    def with_seed(self, seed: int, hidden: Sequence[Params] = ()) -> ResidualSampler:
        """Return a sampler with other draws that shares the predictions of this one.

        Configurations that the study hides count as finished trials and are not proposed again.
        """
        other = copy.copy(self)
        other._seed, other._independent, other._hidden = seed, RandomSampler(seed=seed), hidden
        other._begun = other.last_suggestion = None
        return other

    def start_background_predictions(
        self, directions: Sequence[StudyDirection], configs: Iterable[Params] = ()
    ) -> None:
        """Start to compute the predictions that the next suggestion uses, in a thread. Does nothing without a prior.

        To be called while a trial runs; `configs` are trials that this sampler did not suggest. The next suggestion
        computes missing predictions in its own thread.
        """
        self._background.enqueue(configs)
        self._background.start(directions)

    def abandon_predictions(self) -> None:
        """End the background thread for good, before another sampler takes this one's place."""
        self._background.abandon()

    def wait_for_predictions(self) -> None:
        """Wait until the background thread has computed all predictions."""
        self._background.wait()

    def suggest(self, study: StudyView) -> Suggestion:
        """Return the configuration for the study's next trial, without creating the trial.

        Parameters that no trial had before are left out; Optuna samples them with `sample_independent`.
        """
        trials = study.get_trials(deepcopy=False)
        history = self._begin(trials, study.directions)
        return self._suggest(history, study.directions, len(trials), set(self._space.distributions))

    def infer_relative_search_space(self, study: Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        """Return the distributions of all known parameters; the objective function uses those that apply."""
        others = [other for other in study.get_trials(deepcopy=False) if other.number != trial.number]
        self._begun = trial.number, self._begin(others, study.directions)
        return dict(self._space.distributions)

    def sample_independent(
        self, study: Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        """Return a random value, for a parameter that no earlier trial had."""
        return self._independent.sample_independent(study, trial, param_name, param_distribution)

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        """Return the parameters of the next trial."""
        if not search_space:
            return {}
        if self._begun is None or self._begun[0] != trial.number:
            self.infer_relative_search_space(study, trial)
        assert self._begun is not None
        return dict(self._suggest(self._begun[1], study.directions, trial.number, search_space).params)

    def recommend(self, study: Study) -> FrozenTrial | None:
        """Return the measured trial with the best posterior score; None if none is likely feasible."""
        numbers = self.ranking(study)
        return study.get_trials(deepcopy=False)[numbers[0]] if numbers else None

    def ranking(self, study: StudyView) -> list[int]:
        """Return the numbers of the measured trials that are likely feasible, the best first.

        The order is that of the surrogate's posterior, not of the measurements: the best of many noisy measurements is
        an overestimate.
        """
        history = self._read(study.get_trials(deepcopy=False))
        if not history.measured:
            return []
        with single_blas_thread():
            surrogate = self._fitted(study, history)
            return [history.numbers[position] for position in surrogate.ranking()]

    def flag_effects(self, study: StudyView, number: int, defaults: int, metrics: Sequence[str]) -> list[FlagEffect]:
        """Return the effect of each parameter of a trial relative to the trial `defaults`, see `FlagEffect`."""
        trials = study.get_trials(deepcopy=False)
        history = self._read(trials)
        if not history.measured:
            return []
        params = {trial.number: trial.params for trial in trials}
        without = reset_to_default(self._space, params[number], params[defaults])
        if not without:
            return []
        with single_blas_thread():
            surrogate = self._fitted(study, history)
            objectives = dict(zip(metrics, surrogate.scales, strict=True))
            feasible = surrogate.probability_of_feasibility(list(without.values()))
            return flag_effects(surrogate.encoder, history, objectives, params[number], without, feasible)

    def eliminate(self, study: StudyView, number: int, defaults: int, conditional: Params) -> Elimination:
        """Return the order in which the parameters of a measured trial can be reset to those of the trial `defaults`.

        `conditional` has the defaults of parameters that this trial lacks, because they do not count there.
        """
        trials = study.get_trials(deepcopy=False)
        history = self._read(trials)
        params = {trial.number: trial.params for trial in trials}
        with single_blas_thread():
            surrogate = self._fitted(study, history)
            return eliminate(self._space, surrogate, params[number], {**conditional, **params[defaults]})

    def joint_scores(self, study: StudyView, configs: Sequence[Params]) -> tuple[Vector, Matrix, float]:
        """Return the posterior of the scores of configurations, and the noise of a measured score.

        Returns:
            The mean of the score's logarithm, shape (n,), its covariance without noise, (n, n), and the standard
            deviation of the noise.
        """
        history = self._read(study.get_trials(deepcopy=False))
        with single_blas_thread():
            surrogate = self._fitted(study, history)
            return *surrogate.joint_scores(configs), surrogate.noise

    def _fitted(self, study: StudyView, history: History) -> Surrogate:
        return Surrogate(self._settings, self._space.distributions, study.directions, history)

    def _read(self, trials: Sequence[FrozenTrial]) -> History:
        """Return the history of some trials; their parameters become known."""
        history = read_history(trials, self._failure_constraint)
        history.hidden += self._hidden
        self._space.update(history.distributions, [*history.measured, *history.cut, *history.failed])
        return history

    def _begin(self, trials: Sequence[FrozenTrial], directions: Sequence[StudyDirection]) -> History:
        """Return the history for a suggestion, after all its predictions are computed."""
        history = self._read(trials)
        self._background.finish(directions)
        if not self._space.distributions:
            self._space.draw(np.random.default_rng(self._seed))
        return history

    def _suggest(
        self, history: History, directions: Sequence[StudyDirection], number: int, names: Collection[str]
    ) -> Suggestion:
        """Return the suggestion for a trial, restricted to some parameters."""
        rng = np.random.default_rng([self._seed, number])
        prior, transfer, weights = self._settings.prior, self._settings.transfer, self._settings.weights
        informed = transfer.exists or prior.exists
        if not history.measured and informed:
            first = best_of_sources(transfer, self._space, history, directions, weights)
            suggestion = Suggestion(first or best_predicted(prior, self._space, history, directions, weights))
        elif not history.measured:
            suggestion = Suggestion(space_filling(self._space, history, rng))
        else:
            suggestion = self._select(history, directions, rng)
        self._background.enqueue(suggestion.predict_next)
        self._background.enqueue([suggestion.params] if suggestion.params else [])
        params = {name: value for name, value in suggestion.params.items() if name in names}
        self.last_suggestion = replace(suggestion, params=params)
        return self.last_suggestion

    def _select(self, history: History, directions: Sequence[StudyDirection], rng: np.random.Generator) -> Suggestion:
        """Return the suggestion of the surrogate, with random weights from time to time."""
        settings, count = self._settings, len(directions)
        random_weights = count > 1 and history.n_finished % RANDOM_WEIGHTS_EVERY == RANDOM_WEIGHTS_EVERY - 1
        if random_weights:
            settings = replace(settings, weights=tuple(rng.dirichlet(np.ones(count))))
        with single_blas_thread():
            surrogate = Surrogate(settings, self._space.distributions, directions, history)
            return CandidateSelection(self._space, settings, surrogate, rng).suggest()
