"""The base class of problems that are formulas."""

import math
from abc import abstractmethod
from collections.abc import Iterable
from functools import cached_property

from benchmarks.search.problems.problem import (
    Outcome,
    Problem,
    config_key,
    crashed_outcome,
    is_maximised,
    seeded_generator,
)
from records.trials import Config
from search_spaces import ParameterValue
from tuner.scoring.goals import parse_objective, parse_slo

NOISE = 0.03
"""Standard deviation of a measurement's logarithm."""
TRIAL_SECONDS, CRASH_SECONDS = 60.0, 20.0


class FormulaProblem(Problem):
    """A problem whose metrics are formulas of the parameters.

    Attributes:
        effective_defaults: values of the parameters that a configuration leaves out.
        objective_texts: the objectives, as on the command line.
        slo_texts: the SLOs, as on the command line.
    """

    family = "synthetic"
    effective_defaults: Config
    objective_texts: tuple[str, ...] = ("output_throughput",)
    slo_texts: tuple[str, ...] = ()

    def __init__(self, prior: str = "right", wrong_prior: bool = False) -> None:
        """Make the problem.

        Args:
            prior: `none` hides a wrong prior; otherwise it has no effect, for formulas have no right prior.
            wrong_prior: whether samplers get a wrong prior.
        """
        super().__init__(prior)
        self._wrong_prior = wrong_prior
        self.objectives = tuple(parse_objective(text) for text in self.objective_texts)
        self._slos = tuple(parse_slo(text) for text in self.slo_texts)
        self.constraint_names = tuple(str(slo) for slo in self._slos)

    @abstractmethod
    def metrics(self, config: Config) -> dict[str, float] | None:
        """Return the metrics of a complete configuration without noise; None if it crashes."""

    @abstractmethod
    def optima(self) -> Iterable[Config]:
        """Yield complete configurations, one of which is the optimum."""

    def defaults(self) -> tuple[dict[str, ParameterValue], dict[str, ParameterValue]]:
        """Return the empty configuration and every effective value."""
        return {}, dict(self.effective_defaults)

    def exact(self, config: Config, speed: float = 1.0) -> Outcome:
        """Return the outcome of a configuration without noise.

        Args:
            config: the configuration.
            speed: factor by which every maximised metric rises and every other one falls.
        """
        metrics = self.metrics({**self.effective_defaults, **config})
        if metrics is None:
            return crashed_outcome(CRASH_SECONDS)
        values = tuple(
            metrics[each.metric] * speed if is_maximised(each) else metrics[each.metric] / speed
            for each in self.objectives
        )
        named = dict(zip((each.metric for each in self.objectives), values, strict=True))
        constraints = {str(slo): slo.violation(named[slo.metric]) for slo in self._slos}
        reference = self.reference
        assert reference is not None, "the defaults of a formula do not crash"
        return Outcome(values, constraints, self.score_of(values, reference), TRIAL_SECONDS)

    def measure(self, config: Config, seed: int) -> Outcome:
        """Return the outcome with log-normal noise."""
        return self.exact(config, math.exp(NOISE * seeded_generator(config_key(config), seed).standard_normal()))

    def compute_true_score(self, config: Config) -> float | None:
        """Return the score without noise; None if the configuration is infeasible."""
        outcome = self.exact(config)
        return outcome.score if outcome.feasible else None

    def compute_prediction(self, config: Config) -> Outcome | None:
        """Return the outcome that a wrong prior inverts; None without a wrong prior."""
        return self.exact(config) if self._wrong_prior else None

    def inverts_prior(self) -> bool:
        """Return whether samplers get a wrong prior, which the problem determines, not the command line."""
        return self._wrong_prior

    @cached_property
    def reference(self) -> tuple[float, ...] | None:
        """The objectives of the defaults."""
        metrics = self.metrics(self.effective_defaults)
        return None if metrics is None else tuple(metrics[each.metric] for each in self.objectives)

    @cached_property
    def best(self) -> float:
        """The score of the optimum."""
        return max(score for each in self.optima() if (score := self.true_score(each)) is not None)


def bump(value: ParameterValue, peak: float, width: float, log: bool = False) -> float:
    """Return a quadratic that is 0 at the peak and -1 at `width` from it.

    -((value - peak) / width)², or -(ln(value / peak) / ln(width))² if `log`, where `width` is a factor.
    """
    assert isinstance(value, int | float)
    if log:
        return -((math.log(value / peak) / math.log(width)) ** 2)
    return -(((value - peak) / width) ** 2)
