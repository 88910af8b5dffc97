"""A problem and a sampler for tests of the search benchmark."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from optuna.study import Study
from optuna.trial import TrialState

from benchmarks.search.problems.problem import Outcome, Problem, crashed_outcome
from benchmarks.search.samplers.compared import ComparedSampler
from benchmarks.search.samplers.planned import PlannedSampler
from records.trials import Config
from search_spaces import ParameterValue, Trial
from tuner.scoring.goals import parse_objective


class Toy(Problem):
    """An integer x from 0 to 9 with score x; the trial of x takes 10 + x seconds, or x seconds if it crashes."""

    name = "toy"
    family = "synthetic"
    objectives = (parse_objective("output_throughput"),)
    reference = (1.0,)
    best = 9.0

    def __init__(self, crashes: Sequence[int] = (), forbidden: Sequence[int] = (), lucky: int | None = None) -> None:
        super().__init__()
        self.crashes, self.forbidden, self.lucky = crashes, forbidden, lucky

    def define(self, trial: Trial) -> dict[str, ParameterValue]:
        return {"x": trial.suggest_int("x", 0, 9)}

    def defaults(self) -> tuple[dict[str, ParameterValue], dict[str, ParameterValue]]:
        return {}, {"x": 1}

    def allowed(self, config: Config) -> bool:
        return config.get("x") not in self.forbidden

    def measure(self, config: Config, seed: int) -> Outcome:
        x = config.get("x", 1)
        assert isinstance(x, int)
        if x in self.crashes:
            return crashed_outcome(x)
        score = 100.0 if x == self.lucky else float(x)
        return Outcome((score,), {}, score, seconds=10.0 + x, compiles=((x % 2, 5.0),))

    def compute_true_score(self, config: Config) -> float | None:
        x = config.get("x", 1)
        assert isinstance(x, int)
        return None if x in self.crashes else float(x)


class ScriptedSampler(PlannedSampler):
    """Suggests given numbers, and records the number of running trials at each suggestion."""

    def __init__(self, numbers: Sequence[int]) -> None:
        super().__init__(0)
        self.numbers: Iterator[int] = iter(numbers)
        self.running: list[int] = []

    def plan(self, study: Study) -> dict[str, ParameterValue]:
        self.running.append(len(study.get_trials(states=(TrialState.RUNNING,))) - 1)
        return {"x": next(self.numbers, 0)}


def scripted(*numbers: int, **options: object) -> tuple[ComparedSampler, ScriptedSampler]:
    """Return a sampler under comparison that suggests the numbers, and the sampler itself."""
    sampler = ScriptedSampler(numbers)
    compared = ComparedSampler("scripted", lambda problem, seed: sampler)
    return replace(compared, **options), sampler  # type: ignore[arg-type]
