"""What a sampler is tried on: a problem's parameters, what a configuration gives, and how good the best one is."""

from __future__ import annotations

import json
import math
import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Protocol, TypeVar

import numpy as np

from search_spaces import ParameterValue
from storage.metrics import Direction
from tuner.scoring.judge import FAILED, FAILED_VIOLATION
from tuner.scoring.objectives import Objective
from tuner.scoring.score import score

Config = Mapping[str, ParameterValue]
T = TypeVar("T", bound=ParameterValue)
PRIORS = ("right", "wrong", "none")
LOST_ONE_IN = 3
"""Of the configurations that a wrong prior says would work, one in so many it says would not start."""


class Suggest(Protocol):
    """What `define` asks for values; Optuna's trial is one."""

    def suggest_int(self, name: str, low: int, high: int, *, step: int = 1, log: bool = False) -> int:
        """Return an integer in [low, high]."""

    def suggest_float(
        self, name: str, low: float, high: float, *, step: float | None = None, log: bool = False
    ) -> float:
        """Return a number in [low, high]."""

    def suggest_categorical(self, name: str, choices: Sequence[ParameterValue]) -> ParameterValue:
        """Return one of the choices."""


Compiles = tuple[tuple[Hashable, float], ...]
"""What a trial compiles: under which keys it is kept, and the seconds that each takes the first time in a study."""


@dataclass(frozen=True)
class Outcome:
    """What came of a configuration.

    `values` are the objectives in their own units, None if it crashed; each constraint at most 0 is kept. `score` is
    the study's, 1 for the defaults. `seconds` is the wall clock of the trial, without what it compiles.
    """

    values: tuple[float, ...] | None
    constraints: Mapping[str, float]
    score: float | None
    seconds: float = 0.0
    compiles: Compiles = ()

    @property
    def feasible(self) -> bool:
        """Whether it ran and kept every constraint."""
        return self.values is not None and all(value <= 0 for value in self.constraints.values())


def crashed(seconds: float = 0.0) -> Outcome:
    """Return the outcome of a configuration that did not run."""
    return Outcome(None, {FAILED: FAILED_VIOLATION}, None, seconds)


def key_of(config: Config) -> str:
    """Return a text that two configurations share only if they are equal."""
    return json.dumps(dict(config), sort_keys=True)


def generator(*parts: object) -> np.random.Generator:
    """Return a generator of random numbers that the same parts seed in every process."""
    return np.random.default_rng([zlib.crc32(repr(part).encode()) for part in parts])


class Problem(ABC):
    """One problem. What it says is the same in every process; `truth` and `prior` are remembered.

    Scores are relative to the defaults without noise: `reference` holds their objectives. `constraint_names` are the
    names of the SLOs in outcomes.
    """

    name: str
    family: str
    objectives: tuple[Objective, ...]
    constraint_names: tuple[str, ...] = ()
    wrong = "wrong"
    unrelated = False
    """Whether a wrong prior is drawn at random instead of turned around; `wrong` seeds it."""

    def __init__(self, prior: str = "right") -> None:
        if prior not in PRIORS:
            raise ValueError(f"a prior is one of {', '.join(PRIORS)}, not {prior!r}")
        self.prior_kind = prior
        self._truths: dict[str, float | None] = {}
        self._priors: dict[str, Outcome | None] = {}

    @abstractmethod
    def define(self, trial: Suggest) -> dict[str, ParameterValue]:
        """Ask the trial for a configuration, for conditional parameters only where they count."""

    @abstractmethod
    def defaults(self) -> tuple[dict[str, ParameterValue], dict[str, ParameterValue]]:
        """Return the configuration of trial 0, and the effective values of what it leaves out, for the model only."""

    @abstractmethod
    def measure(self, config: Config, seed: int) -> Outcome:
        """Return a noisy outcome; the same configuration and seed give the same."""

    @abstractmethod
    def find_truth(self, config: Config) -> float | None:
        """Return what `truth` does, each time anew."""

    @property
    @abstractmethod
    def best(self) -> float:
        """The best score that a feasible configuration is known to have."""

    @property
    @abstractmethod
    def reference(self) -> tuple[float, ...] | None:
        """The objectives of the defaults without noise; None if they do not run."""

    @cached_property
    def predicted_reference(self) -> tuple[float, ...] | None:
        """The objectives that a right prior predicts of the defaults; None if there is none, or they would not run."""
        found = self.find_prior(self.defaults()[0])
        return None if found is None else found.values

    def allowed(self, config: Config) -> bool:
        """Return whether no rule that is known before a launch is broken."""
        return True

    def snap(self, config: Config, measured: Collection[str]) -> Config | None:
        """Return the configuration that is measured for one that was asked for; None if all were.

        Args:
            config: what was asked for.
            measured: the keys of what was measured or is being measured.
        """
        return config

    def find_prior(self, config: Config) -> Outcome | None:
        """Return what a right prior predicts; None where there is no physics."""
        return None

    def misleads(self) -> bool:
        """Return whether the prior is to be turned around."""
        return self.prior_kind == "wrong"

    def define_fixed(self, trial: Suggest, known: Config) -> None:
        """Make a trial suggest what `known` has, and nothing else; see `ResolvedSpace.suggest_fixed`."""
        self.define(Known(trial, known))

    def truth(self, config: Config) -> float | None:
        """Return the score without noise; None if the configuration is infeasible."""
        key = key_of(config)
        if key not in self._truths:
            self._truths[key] = self.find_truth(config)
        return self._truths[key]

    def prior(self, config: Config) -> Outcome | None:
        """Return what is predicted, without noise; None where there is no physics or the prior was left out."""
        if self.prior_kind == "none":
            return None
        key = key_of(config)
        if key not in self._priors:
            found = self.find_prior(config)
            if found is not None and self.misleads():
                found = self._turned(config, found)
            self._priors[key] = found
        return self._priors[key]

    def _turned(self, config: Config, found: Outcome) -> Outcome:
        """Return the prediction with every improvement on the defaults turned around and feasibility shuffled."""
        base = self.predicted_reference
        if config == self.defaults()[0] or base is None:
            return found
        random = generator(self.wrong, key_of(config))
        if random.integers(LOST_ONE_IN) == 0:
            return crashed(found.seconds)
        kept = dict.fromkeys(self.constraint_names, -0.5)
        if found.values is None or self.unrelated:
            values = tuple(each * math.exp(random.normal(0.0, 0.3)) for each in base)
        else:
            pairs = zip(base, found.values, strict=True)
            values = tuple(each * each / value if value > 0 else each for each, value in pairs)
        return replace(found, values=values, constraints=kept, score=self.score_of(values, base))

    def score_of(self, values: Sequence[float], reference: Sequence[float]) -> float | None:
        """Return the study's score of objectives against those of the defaults."""
        names = [objective.metric for objective in self.objectives]
        measured, base = dict(zip(names, values, strict=True)), dict(zip(names, reference, strict=True))
        return score(measured, base, self.objectives)


def maximised(objective: Objective) -> bool:
    """Return whether an objective is better when higher."""
    return objective.direction is Direction.MAXIMIZE


class Known:
    """A trial that suggests what is known through another, and of the rest a value that is recorded nowhere."""

    def __init__(self, trial: Suggest, known: Config) -> None:
        self._trial = trial
        self._known = known

    def suggest_int(self, name: str, low: int, high: int, *, step: int = 1, log: bool = False) -> int:
        """See `Suggest`."""
        return self._trial.suggest_int(name, low, high, step=step, log=log) if name in self._known else low

    def suggest_float(
        self, name: str, low: float, high: float, *, step: float | None = None, log: bool = False
    ) -> float:
        """See `Suggest`."""
        return self._trial.suggest_float(name, low, high, step=step, log=log) if name in self._known else low

    def suggest_categorical(self, name: str, choices: Sequence[ParameterValue]) -> ParameterValue:
        """See `Suggest`."""
        if name in self._known:
            return self._trial.suggest_categorical(name, choices)
        return None if None in choices else choices[0]


class Drawn:
    """A trial that draws at random, but for what it was given, and keeps what it suggested in `params`.

    `moved` are given integers and floats near which it draws, as local search wants it.
    """

    def __init__(self, random: np.random.Generator, given: Config | None = None, moved: Config | None = None) -> None:
        self._random = random
        self._given = given or {}
        self._moved = moved or {}
        self.params: dict[str, ParameterValue] = {}

    def suggest_int(self, name: str, low: int, high: int, *, step: int = 1, log: bool = False) -> int:
        """See `Suggest`."""
        given = self._given.get(name)
        if isinstance(given, int) and not isinstance(given, bool):
            return self._keep(name, given)
        value = self._number(name, float(low), float(high), log)
        return self._keep(name, min(high - (high - low) % step, low + step * round((value - low) / step)))

    def suggest_float(
        self, name: str, low: float, high: float, *, step: float | None = None, log: bool = False
    ) -> float:
        """See `Suggest`."""
        given = self._given.get(name)
        if isinstance(given, float):
            return self._keep(name, given)
        value = self._number(name, low, high, log)
        return self._keep(name, value if step is None else min(high, low + step * round((value - low) / step)))

    def suggest_categorical(self, name: str, choices: Sequence[ParameterValue]) -> ParameterValue:
        """See `Suggest`."""
        if name in self._given and self._given[name] in choices:
            return self._keep(name, self._given[name])
        return self._keep(name, choices[int(self._random.integers(len(choices)))])

    def _keep(self, name: str, value: T) -> T:
        self.params[name] = value
        return value

    def _number(self, name: str, low: float, high: float, log: bool) -> float:
        into: Callable[[float], float] = math.log if log else float
        out: Callable[[float], float] = math.exp if log else float
        near = self._moved.get(name)
        if isinstance(near, int | float) and not isinstance(near, bool):
            drawn = self._random.normal(into(near), 0.1 * (into(high) - into(low)))
        else:
            drawn = self._random.uniform(into(low), into(high))
        return min(high, max(low, out(drawn)))
