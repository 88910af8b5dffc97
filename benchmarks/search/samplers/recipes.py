"""The recipes that a study measures before its search, played beside any sampler or alone."""

from collections.abc import Iterator
from datetime import UTC, datetime

from benchmarks.search.play.records import PlayedTrial
from benchmarks.search.problems.problem import Problem
from benchmarks.search.problems.simulated.problem import SimulatedProblem
from benchmarks.search.samplers.residual import prior_of
from records.trials import DEFAULTS, Config, Provenance, Repeat, TrialKind, TrialOutcome, TrialRecord, Verdict
from tuner.study.recipes import RECIPE, combined_winners, most_recipes, order_recipes

_TIME = datetime(2026, 1, 1, tzinfo=UTC)


class RecipeTrials:
    """Gives the recipes of a simulated study in order, then those that won, together; nothing for other problems.

    Args:
        problem: the problem.
        trials: the budget of the search, which bounds the number of recipes.
        alone: every recipe that applies in the order of its file, as an expert's list without a search.
    """

    def __init__(self, problem: Problem, trials: int, alone: bool) -> None:
        self._problem, self._names = problem, list[str]()
        self._recipes: Iterator[tuple[str, Config]] = iter(())
        self._combines = False
        if not isinstance(problem, SimulatedProblem):
            return
        spec, prior = problem.study.spec, None if alone else prior_of(problem)
        recipes = list(spec.recipes) if alone else order_recipes(spec, prior, most_recipes(trials))
        self._recipes = iter([(each.label, each.config) for each in recipes])
        self._combines = prior is None and len(recipes) > 1 and (alone or len(recipes) < most_recipes(trials))

    def next(self, ended: list[PlayedTrial]) -> Config | None:
        """Return the next recipe; None once there is none left."""
        recipe = next(self._recipes, None)
        if recipe is not None:
            self._names.append(recipe[0])
            return recipe[1]
        if not self._combines or len(ended) <= len(self._names):
            return None
        self._combines = False
        return self._winners(ended)

    def _winners(self, ended: list[PlayedTrial]) -> Config | None:
        assert isinstance(self._problem, SimulatedProblem)
        labels = [DEFAULTS, *(f"{RECIPE}{name}" for name in self._names)]
        records = [_record(number, label, ended[number]) for number, label in enumerate(labels)]
        found = combined_winners(self._problem.space, records)
        return None if found is None else found.config


def _record(number: int, label: str, trial: PlayedTrial) -> TrialRecord:
    ran = trial.outcome.values is not None
    repeats = (Repeat(0, 0, 1, 1, 0, trial.outcome.seconds, {}),) if ran else ()
    outcome = TrialOutcome(_TIME, _TIME, Provenance.SIMULATED, "", "", {}, "", repeats=repeats)
    verdict = Verdict({}, trial.outcome.constraints, trial.outcome.score) if ran else None
    kind = TrialKind.RECIPE if number else TrialKind.BASELINE
    return TrialRecord("", number, 0, kind, label, {}, trial.config, 1, _TIME, outcome, verdict)
