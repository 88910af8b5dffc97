"""The interface of a problem: its parameters, the outcome of a configuration and the best known score."""

import json
import math
import zlib
from abc import ABC, abstractmethod
from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from benchmarks.search.problems.trials import KnownValues
from records.metrics import Direction
from records.trials import Config
from search_spaces import ParameterValue, Trial
from tuner.scoring.goals import FAILED, FAILED_VIOLATION, Objective, score

MetricsByName = Mapping[str, float | None]
"""Metric names with their values."""
Compilations = tuple[tuple[Hashable, float], ...]
"""What the server of a trial compiles: the key of each compiled artifact, and the seconds it takes the first time."""
PRIOR_KINDS = ("right", "wrong", "none")
WRONG_PRIOR_CRASHES_ONE_IN = 3
"""A wrong prior predicts a crash for one configuration in so many."""
WRONG_PRIOR_VIOLATION = -0.5
"""The constraint values of a wrong prior: every SLO holds."""
RANDOM_PRIOR_DEVIATION = 0.3
"""Standard deviation of the logarithm of a random prediction, relative to the defaults."""


@dataclass(frozen=True)
class Outcome:
    """The outcome of one configuration.

    Attributes:
        values: the objectives in their own units; None if the server crashed.
        constraints: constraint names with values; a constraint holds if its value is at most 0.
        score: the study's score, 1 for the defaults; None if the server crashed.
        seconds: wall-clock seconds of the trial, without compilation.
        compiles: the artifacts that the server compiles.
    """

    values: tuple[float, ...] | None
    constraints: Mapping[str, float]
    score: float | None
    seconds: float = 0.0
    compiles: Compilations = ()

    @property
    def feasible(self) -> bool:
        """Whether the server ran and every constraint holds."""
        return self.values is not None and all(value <= 0 for value in self.constraints.values())


def crashed_outcome(seconds: float = 0.0) -> Outcome:
    """Return the outcome of a configuration whose server crashes after `seconds`."""
    return Outcome(None, {FAILED: FAILED_VIOLATION}, None, seconds)


def config_key(config: Config) -> str:
    """Return a text that is the same for equal configurations only."""
    return json.dumps(dict(config), sort_keys=True)


def seeded_generator(*parts: object) -> np.random.Generator:
    """Return a random generator with a seed made of `parts`, the same in every process."""
    return np.random.default_rng([zlib.crc32(repr(part).encode()) for part in parts])


def is_maximised(objective: Objective) -> bool:
    """Return whether a higher value of the objective is better."""
    return objective.direction is Direction.MAXIMIZE


class Problem(ABC):
    """One problem. Every process computes the same outcomes; true scores and predictions are cached.

    Scores are relative to the objectives of the defaults without noise, `reference`.

    Attributes:
        name: the name on the command line.
        family: `tables`, `simulated` or `synthetic`.
        objectives: the objectives of the score.
        constraint_names: names of the SLOs in outcomes.
        wrong_prior_seed: seeds the random numbers of a wrong prior.
        wrong_prior_is_random: a wrong prior draws its values at random; otherwise it inverts each improvement.
    """

    name: str
    family: str
    objectives: tuple[Objective, ...]
    constraint_names: tuple[str, ...] = ()
    wrong_prior_seed = "wrong"
    wrong_prior_is_random = False

    def __init__(self, prior: str = "right") -> None:
        if prior not in PRIOR_KINDS:
            raise ValueError(f"prior {prior!r}: not one of {', '.join(PRIOR_KINDS)}")
        self.prior_kind = prior
        self._true_scores: dict[str, float | None] = {}
        self._predictions: dict[str, Outcome | None] = {}

    @abstractmethod
    def define(self, trial: Trial) -> dict[str, ParameterValue]:
        """Return a configuration of the trial's suggestions; a conditional parameter is suggested only if it counts."""

    @abstractmethod
    def defaults(self) -> tuple[dict[str, ParameterValue], dict[str, ParameterValue]]:
        """Return the configuration of trial 0, and the engine's effective values of the parameters it leaves out."""

    @abstractmethod
    def measure(self, config: Config, seed: int) -> Outcome:
        """Return a noisy outcome; equal configurations and seeds give equal outcomes."""

    @abstractmethod
    def compute_true_score(self, config: Config) -> float | None:
        """Return the score without noise, uncached; None if the configuration is infeasible."""

    @property
    @abstractmethod
    def best(self) -> float:
        """The best known score of a feasible configuration."""

    @property
    @abstractmethod
    def reference(self) -> tuple[float, ...] | None:
        """The objectives of the defaults without noise; None if the defaults crash."""

    @cached_property
    def predicted_reference(self) -> tuple[float, ...] | None:
        """The objectives that a right prior predicts for the defaults; None without a prior or if they crash."""
        predicted = self.compute_prediction(self.defaults()[0])
        return None if predicted is None else predicted.values

    def allowed(self, config: Config) -> bool:
        """Return whether the configuration satisfies every rule that can be checked before a launch."""
        return True

    def defaults_beside(self, config: Config) -> Config:
        """Return the engine's effective values of the parameters that a configuration leaves out, where known."""
        return {}

    def snap(self, config: Config, measured: Collection[str]) -> Config | None:
        """Return the configuration that is measured in place of a suggested one; None if all are measured.

        Args:
            config: the suggested configuration.
            measured: keys of the configurations that are measured or being measured.
        """
        return config

    def compute_prediction(self, config: Config) -> Outcome | None:
        """Return the prediction of a right prior, uncached; None if the problem has no prior."""
        return None

    def inverts_prior(self) -> bool:
        """Return whether samplers get a wrong prior."""
        return self.prior_kind == "wrong"

    def define_fixed(self, trial: Trial, known: Config) -> None:
        """Make the trial suggest the parameters in `known` and no others; see `ResolvedSpace.suggest_fixed`."""
        self.define(KnownValues(trial, known))

    def true_score(self, config: Config) -> float | None:
        """Return the score without noise; None if the configuration is infeasible."""
        key = config_key(config)
        if key not in self._true_scores:
            self._true_scores[key] = self.compute_true_score(config)
        return self._true_scores[key]

    def prediction(self, config: Config) -> Outcome | None:
        """Return the prior's prediction, which has no noise; None without a prior."""
        if self.prior_kind == "none":
            return None
        key = config_key(config)
        if key not in self._predictions:
            predicted = self.compute_prediction(config)
            if predicted is not None and self.inverts_prior():
                predicted = self._wrong_prediction(config, predicted)
            self._predictions[key] = predicted
        return self._predictions[key]

    def _wrong_prediction(self, config: Config, right: Outcome) -> Outcome:
        """Return a wrong prediction: each improvement over the defaults is inverted, and crashes are random."""
        base = self.predicted_reference
        if config == self.defaults()[0] or base is None:
            return right
        random = seeded_generator(self.wrong_prior_seed, config_key(config))
        if random.integers(WRONG_PRIOR_CRASHES_ONE_IN) == 0:
            return crashed_outcome(right.seconds)
        constraints = dict.fromkeys(self.constraint_names, WRONG_PRIOR_VIOLATION)
        if right.values is None or self.wrong_prior_is_random:
            values = tuple(each * math.exp(random.normal(0.0, RANDOM_PRIOR_DEVIATION)) for each in base)
        else:
            pairs = zip(base, right.values, strict=True)
            values = tuple(each * each / value if value > 0 else each for each, value in pairs)
        return replace(right, values=values, constraints=constraints, score=self.score_of(values, base))

    def score_of(self, values: Sequence[float], reference: Sequence[float]) -> float | None:
        """Return the study's score of objective values relative to those of the defaults."""
        names = [objective.metric for objective in self.objectives]
        measured, base = dict(zip(names, values, strict=True)), dict(zip(names, reference, strict=True))
        return score(measured, base, self.objectives)
