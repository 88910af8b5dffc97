"""Trials that suggest values without Optuna: random values, and values that are known already."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from records.trials import Config
from search_spaces import ParameterValue, Trial

SuggestedValue = TypeVar("SuggestedValue", bound=ParameterValue)
NEIGHBOUR_DEVIATION = 0.1
"""Standard deviation of a neighbouring number, as a share of its range."""


@dataclass(frozen=True)
class NumberRange:
    """The range of a number.

    Attributes:
        low: the lowest value.
        high: the highest value.
        step: the distance of neighbouring values from `low` on; None for a continuous range.
        log: whether values are drawn evenly over their logarithms.
        integer: whether values are integers.
    """

    low: float
    high: float
    step: float | None
    log: bool
    integer: bool

    def listed(self) -> list[ParameterValue]:
        """Return every value of a range with a step, in order."""
        if self.step is None:
            raise ValueError("a continuous range cannot be listed")
        step = self.step
        count = int((self.high - self.low) // step) if self.integer else round((self.high - self.low) / step)
        return [self.low + step * index for index in range(count + 1)]


class ValueTrial(ABC):
    """A trial whose values come from two methods: `choose` for choices and `choose_number` for numbers."""

    @abstractmethod
    def choose(self, name: str, choices: Sequence[ParameterValue]) -> ParameterValue:
        """Return one of the choices of a parameter."""

    @abstractmethod
    def choose_number(self, name: str, numbers: NumberRange) -> float:
        """Return a number of a parameter's range."""

    def suggest_categorical(self, name: str, choices: Sequence[ParameterValue]) -> ParameterValue:
        """Return one of the choices."""
        return self.choose(name, choices)

    def suggest_int(self, name: str, low: int, high: int, *, step: int = 1, log: bool = False) -> int:
        """Return an integer in [low, high]."""
        return int(self.choose_number(name, NumberRange(low, high, step, log, integer=True)))

    def suggest_float(
        self, name: str, low: float, high: float, *, step: float | None = None, log: bool = False
    ) -> float:
        """Return a number in [low, high]."""
        return float(self.choose_number(name, NumberRange(low, high, step, log, integer=False)))


class KnownValues:
    """A trial that passes the parameters in `known` on to another trial.

    Every other parameter gets a fixed value, which the other trial does not record.
    """

    def __init__(self, trial: Trial, known: Config) -> None:
        self._trial = trial
        self._known = known

    def suggest_int(self, name: str, low: int, high: int, *, step: int = 1, log: bool = False) -> int:
        """Return an integer in [low, high]."""
        return self._trial.suggest_int(name, low, high, step=step, log=log) if name in self._known else low

    def suggest_float(
        self, name: str, low: float, high: float, *, step: float | None = None, log: bool = False
    ) -> float:
        """Return a number in [low, high]."""
        return self._trial.suggest_float(name, low, high, step=step, log=log) if name in self._known else low

    def suggest_categorical(self, name: str, choices: Sequence[ParameterValue]) -> ParameterValue:
        """Return one of the choices."""
        if name in self._known:
            return self._trial.suggest_categorical(name, choices)
        return None if None in choices else choices[0]


class RandomTrial(ValueTrial):
    """A trial that draws its values at random.

    Args:
        random: the source of random numbers.
        given: values that are returned instead of random ones.
        near: numbers; a value is drawn near the parameter's number.

    Attributes:
        params: the suggested values.
        integer_ranges: the lowest and highest value of each suggested integer.
    """

    def __init__(self, random: np.random.Generator, given: Config | None = None, near: Config | None = None) -> None:
        self._random = random
        self._given = given or {}
        self._near = near or {}
        self.params: dict[str, ParameterValue] = {}
        self.integer_ranges: dict[str, tuple[int, int]] = {}

    def choose(self, name: str, choices: Sequence[ParameterValue]) -> ParameterValue:
        """Return the given choice, or a random one."""
        if name in self._given and self._given[name] in choices:
            return self._record(name, self._given[name])
        return self._record(name, choices[int(self._random.integers(len(choices)))])

    def choose_number(self, name: str, numbers: NumberRange) -> float:
        """Return the given number, one near the parameter's number, or a random one."""
        low, high, step = numbers.low, numbers.high, numbers.step
        if numbers.integer:
            self.integer_ranges[name] = int(low), int(high)
        given = self._given.get(name)
        if isinstance(given, int if numbers.integer else float) and not isinstance(given, bool):
            return self._record(name, given)
        value = self._number(name, float(low), float(high), numbers.log)
        if step is None:
            return self._record(name, value)
        highest = high - (high - low) % step if numbers.integer else high
        return self._record(name, min(highest, low + step * round((value - low) / step)))

    def _record(self, name: str, value: SuggestedValue) -> SuggestedValue:
        self.params[name] = value
        return value

    def _number(self, name: str, low: float, high: float, log: bool) -> float:
        into: Callable[[float], float] = math.log if log else float
        out: Callable[[float], float] = math.exp if log else float
        near = self._near.get(name)
        if isinstance(near, int | float) and not isinstance(near, bool):
            drawn = self._random.normal(into(near), NEIGHBOUR_DEVIATION * (into(high) - into(low)))
        else:
            drawn = self._random.uniform(into(low), into(high))
        return min(high, max(low, out(drawn)))
