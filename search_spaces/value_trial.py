"""A base class for trials that suggest values without Optuna."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

from search_spaces.parameter import ParameterValue


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
        """Return every value of a range with a step, in order.

        Raises:
            ValueError: for a continuous range.
        """
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
