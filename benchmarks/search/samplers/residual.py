"""The residual sampler under comparison."""

from collections.abc import Sequence

from optuna.samplers import BaseSampler
from optuna.study import Study

from benchmarks.search.problems.problem import Problem
from tuner.sampler.encoding import Params
from tuner.sampler.prior import Prediction, Prior
from tuner.sampler.residual import ResidualSampler
from tuner.sampler.transfer import SourceHistory


def prior_of(problem: Problem) -> Prior | None:
    """Return the prior of a problem; None without one. A table's prior predicts the row nearest to a configuration."""

    def predict(params: Params) -> Prediction | None:
        config = problem.snap(params, ())
        outcome = None if config is None else problem.prediction(config)
        return None if outcome is None else Prediction(outcome.values, outcome.constraints)

    return predict if problem.prediction(problem.defaults()[0]) is not None else None


def make_residual(problem: Problem, seed: int, sources: Sequence[SourceHistory] = ()) -> BaseSampler:
    """Return the residual sampler for a problem.

    Args:
        problem: the problem.
        seed: of the sampler.
        sources: the trials of source studies.
    """
    return ResidualSampler(
        problem.define,
        prior=prior_of(problem),
        is_allowed=problem.allowed,
        weights=[objective.weight for objective in problem.objectives],
        seed=seed,
        sources=sources,
    )


def residual_ranking(study: Study) -> list[int]:
    """Return the numbers of the trials that the surrogate ranks best, best first."""
    assert isinstance(study.sampler, ResidualSampler)
    return study.sampler.ranking(study)
