"""A search that knows of an earlier one: on a problem that is like this one, or that misleads."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

from optuna.samplers import BaseSampler

from benchmarks.search.play import Played, Record, play
from benchmarks.search.problems.catalogue import Settings, make_problem
from benchmarks.search.problems.problem import Config, Problem
from benchmarks.search.problems.simulated import SimulatedProblem
from benchmarks.search.samplers.catalogue import RIVALS, Rival, ours, predictor_of
from search_spaces import ParameterValue
from tuner.sampler.surrogate.history import History
from tuner.sampler.transfer import SourceHistory

SEEDS_APART = 1000
"""The earlier search has another seed, as another study has."""


def taught_by(rival: Rival, earlier: str, settings: Settings, trials: int) -> Rival:
    """Return this project's sampler, told of a search of its own on the problem `earlier`; others as they are."""
    if rival.name != "ours":
        return rival

    def taught(problem: Problem, seed: int) -> BaseSampler:
        known = make_problem(earlier, settings)
        return ours(problem, seed, [lessons(problem, known, searched(earlier, settings, trials, seed))])

    return replace(rival, sampler=taught)


@cache
def searched(name: str, settings: Settings, trials: int, seed: int) -> Record:
    """Return the earlier search."""
    return play(make_problem(name, settings), RIVALS["ours"], trials, seed + SEEDS_APART)


def lessons(problem: Problem, known: Problem, record: Record) -> SourceHistory:
    """Return the search of the problem `known` as a source for `problem`; see `tuner.study.source_studies`."""
    history, physics = History(), predictor_of(known)
    measured: list[Played] = []
    failed: list[Played] = []
    for trial in record.trials:
        config = translated(problem, trial.config, record)
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
    if physics is None:
        return SourceHistory(history)
    return SourceHistory(history, lambda: ([physics(t.config) for t in measured], [physics(t.config) for t in failed]))


def translated(problem: Problem, config: Config, record: Record) -> dict[str, ParameterValue] | None:
    """Return a configuration in the parameters of another problem; None where a value is not in its space."""
    shown = {name for trial in record.trials for name in trial.config}
    hints = {name: value for name, value in problem.defaults()[1].items() if not config or name not in shown}
    found = {**hints, **config}
    if not isinstance(problem, SimulatedProblem):
        return found
    known = {parameter.name: parameter for parameter in problem.space.parameters}
    found = {name: value for name, value in found.items() if name in known}
    return found if all(known[name].contains(value) for name, value in found.items()) else None
