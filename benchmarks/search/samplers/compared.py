"""A sampler under comparison, and how the results of its trials are reported to it."""

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from optuna.samplers import BaseSampler
from optuna.study import Study

from benchmarks.search.problems.problem import Problem


@dataclass(frozen=True)
class ComparedSampler:
    """A sampler under comparison.

    Attributes:
        name: the name on the command line.
        make: makes the sampler for a problem and a seed.
        crash_report: how a crash is reported. `fail`: Optuna's FAIL, which every sampler ignores. `constraint`: PRUNED
            with a violated constraint, which TPE reads. `worst`: COMPLETE with a violated constraint and the worst
            values measured so far, for samplers that read complete trials only.
        reads_constraints: whether constraints are reported.
        optimises: the objectives side by side, or the logarithm of the study's score.
        required_modules: modules that the sampler imports.
        applies_to: whether the sampler can search a problem.
        by_default: whether the sampler takes part if the command line names none.
        recipes: `first`: the study's recipes come before the sampler's first suggestion. `alone`: all of them, then the
            search ends.
        ranking: returns the numbers of the sampler's best trials, best first; without it, the measured scores rank.
    """

    name: str
    make: Callable[[Problem, int], BaseSampler]
    crash_report: Literal["fail", "constraint", "worst"] = "constraint"
    reads_constraints: bool = True
    optimises: Literal["objectives", "score"] = "objectives"
    required_modules: tuple[str, ...] = ()
    applies_to: Callable[[Problem], bool] = lambda problem: True
    by_default: bool = True
    recipes: Literal["first", "alone"] | None = None
    ranking: Callable[[Study], list[int]] | None = None

    @property
    def missing_modules(self) -> list[str]:
        """The required modules that are not installed."""
        return [name for name in self.required_modules if importlib.util.find_spec(name) is None]
