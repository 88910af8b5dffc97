"""The values that a parameter of a recorded table takes."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from records.trials import Config
from search_spaces import ParameterValue, Trial

LOG_SCALE_RATIO = 8.0
"""A number is suggested on a logarithmic scale if its largest value is at least so many times its smallest."""
MOST_CHOICES = 4
"""A number with at most so many values is categorical, as block sizes are: values between them do not exist."""


@dataclass(frozen=True)
class Domain:
    """The domain of one parameter.

    Attributes:
        choices: the values of a categorical parameter; None for a number.
        numbers: the table's values of a number, ascending.
    """

    choices: tuple[ParameterValue, ...] | None
    numbers: tuple[float, ...] = ()

    def contains(self, value: ParameterValue) -> bool:
        """Return whether the value is a choice, or within the range of the table's numbers."""
        if self.choices is not None:
            return value in self.choices
        return isinstance(value, int | float) and self.numbers[0] <= value <= self.numbers[-1]

    def suggest(self, name: str, trial: Trial) -> ParameterValue:
        """Return the value that the trial suggests."""
        if self.choices is not None:
            return trial.suggest_categorical(name, self.choices)
        low, high = self.numbers[0], self.numbers[-1]
        log = low > 0 and high / low >= LOG_SCALE_RATIO
        if all(float(value).is_integer() for value in self.numbers):
            return trial.suggest_int(name, int(low), int(high), log=log)
        return trial.suggest_float(name, low, high, log=log)

    def distance(self, one: ParameterValue, other: ParameterValue) -> float:
        """Return a distance from 0, for equal values, to 1."""
        if self.choices is not None:
            return float(one != other)
        return abs(self._rank(one) - self._rank(other))

    def _rank(self, value: ParameterValue) -> float:
        """Return the rank among the table's values, 0 to 1, interpolated between two of them by the logarithm."""
        assert isinstance(value, int | float)
        positive = self.numbers[0] > 0
        places = np.log(self.numbers) if positive else np.array(self.numbers)
        place = math.log(value) if positive else value
        return float(np.interp(place, places, np.linspace(0.0, 1.0, len(self.numbers))))


def domains_of(configs: Sequence[Config]) -> dict[str, Domain]:
    """Return the domain of each parameter that takes at least two values."""
    domains = {}
    for name in dict.fromkeys(name for config in configs for name in config):
        values = list(dict.fromkeys(config.get(name) for config in configs))
        numbers = [value for value in values if isinstance(value, int | float) and not isinstance(value, bool)]
        if len(values) < 2:
            continue
        if len(numbers) == len(values) and len(values) > MOST_CHOICES:
            domains[name] = Domain(None, tuple(sorted(numbers)))
        else:
            domains[name] = Domain(tuple(sorted(values, key=lambda value: (value is not None, str(value)))))
    return domains
