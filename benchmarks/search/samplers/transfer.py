"""The residual sampler with a source study: a search of its own on another problem, related or unrelated."""

from dataclasses import replace
from functools import cache

from optuna.samplers import BaseSampler

from benchmarks.search.play.records import PlayedTrial, SearchRecord
from benchmarks.search.play.search import play
from benchmarks.search.problems.catalogue import ProblemSettings, make_problem
from benchmarks.search.problems.problem import Problem
from benchmarks.search.problems.simulated.problem import SimulatedProblem
from benchmarks.search.samplers.catalogue import COMPARED_SAMPLERS, RESIDUAL_NAME
from benchmarks.search.samplers.compared import ComparedSampler
from benchmarks.search.samplers.residual import make_residual, prior_of
from records.trials import Config
from search_spaces import ParameterValue
from tuner.sampler.history import History
from tuner.sampler.transfer import SourceHistory

SOURCE_SEED_OFFSET = 1000
"""The source study has a seed of its own, as two studies have."""


def with_source_study(sampler: ComparedSampler, source: str, settings: ProblemSettings, trials: int) -> ComparedSampler:
    """Return the residual sampler with a source study; other samplers are returned unchanged.

    Args:
        sampler: the sampler.
        source: the name of the source study's problem.
        settings: of the problems.
        trials: number of trials in the source study.
    """
    if sampler.name != RESIDUAL_NAME:
        return sampler

    def make(problem: Problem, seed: int) -> BaseSampler:
        record = _source_search(source, settings, trials, seed)
        return make_residual(problem, seed, [source_history(problem, make_problem(source, settings), record)])

    return replace(sampler, make=make)


@cache
def _source_search(name: str, settings: ProblemSettings, trials: int, seed: int) -> SearchRecord:
    return play(make_problem(name, settings), COMPARED_SAMPLERS[RESIDUAL_NAME], trials, seed + SOURCE_SEED_OFFSET)


def source_history(problem: Problem, source: Problem, record: SearchRecord) -> SourceHistory:
    """Return a search as a source study; see `tuner.study.source_studies`.

    Args:
        problem: the problem that the sampler will search.
        source: the problem that was searched.
        record: the search of `source`.
    """
    history, prior = History(), prior_of(source)
    measured: list[PlayedTrial] = []
    failed: list[PlayedTrial] = []
    for trial in record.trials:
        config = translated_config(problem, trial.config, record)
        if config is None:
            continue
        if trial.outcome.values is None:
            failed.append(trial)
            history.failed.append(config)
            continue
        measured.append(trial)
        history.measured.append(config)
        history.values.append(trial.outcome.values)
        history.constraints.append(trial.outcome.constraints)
    if prior is None:
        return SourceHistory(history)
    return SourceHistory(history, lambda: ([prior(t.config) for t in measured], [prior(t.config) for t in failed]))


def translated_config(problem: Problem, config: Config, record: SearchRecord) -> dict[str, ParameterValue] | None:
    """Return a configuration in the parameters of another problem; None if its space does not contain a value."""
    searched = {name for trial in record.trials for name in trial.config}
    hints = {name: value for name, value in problem.defaults()[1].items() if not config or name not in searched}
    translated = {**hints, **config}
    if not isinstance(problem, SimulatedProblem):
        return translated
    parameters = {parameter.name: parameter for parameter in problem.space.parameters}
    translated = {name: value for name, value in translated.items() if name in parameters}
    return translated if all(parameters[name].contains(value) for name, value in translated.items()) else None
