"""A parameter of a resolved space: its domain, its value in expressions, and how a trial suggests one."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from search_spaces.expressions import UNKNOWN, Lookup, parsed, shown_fact
from search_spaces.schema import ChoiceSpec, ParameterSpec

ParameterValue: TypeAlias = str | int | float | bool | None

_TOLERANCE = 1e-6


class Trial(Protocol):
    """The methods of a trial that a space uses to suggest values; an Optuna trial has them."""

    def suggest_int(self, name: str, low: int, high: int, *, step: int = 1, log: bool = False) -> int:
        """Return an integer in [low, high]."""

    def suggest_float(
        self, name: str, low: float, high: float, *, step: float | None = None, log: bool = False
    ) -> float:
        """Return a number in [low, high]."""

    def suggest_categorical(self, name: str, choices: Sequence[ParameterValue]) -> ParameterValue:
        """Return one of the choices."""


def same_value(left: ParameterValue, right: ParameterValue) -> bool:
    """Return whether two values are equal and of one type: 1, 1.0 and True are three different values."""
    return type(left) is type(right) and left == right


def round_to_six_digits(value: float) -> float:
    """Return a number with six significant digits: 0.8999999999999999 gives 0.9."""
    return float(format(value, ".6g"))


@dataclass(frozen=True)
class Parameter:
    """A parameter that a resolved space offers, with the `choices` that the context leaves; empty for a range."""

    name: str
    spec: ParameterSpec
    choices: tuple[ChoiceSpec, ...]

    @property
    def kind(self) -> str:
        """`int`, `float`, `bool` or `categorical`."""
        return self.spec.type

    @property
    def values(self) -> tuple[ParameterValue, ...]:
        """The values of a bool or a categorical; empty for a range. None stands for the engine's default."""
        return tuple(choice.value for choice in self.choices)

    @property
    def domain(self) -> str:
        """The domain as text: `8..1024 (log)`, `0.7..0.95 step 0.005`, `engine's default, fp8`."""
        if self.choices:
            return ", ".join("engine's default" if value is None else str(value) for value in self.values)
        text = f"{self.spec.low}..{self.spec.high}"
        if self.spec.step is not None:
            text += f" step {self.spec.step}"
        return f"{text} (log)" if self.spec.log else text

    def active(self, lookup: Lookup) -> bool:
        """Return whether the parameter's condition holds; an unknown condition does not hold."""
        return self.spec.when is None or parsed(self.spec.when).holds(lookup) is True

    def choice(self, value: ParameterValue) -> ChoiceSpec | None:
        """Return the choice with a value; None if there is none."""
        return next((choice for choice in self.choices if same_value(choice.value, value)), None)

    def contains(self, value: ParameterValue) -> bool:
        """Return whether a value is in the domain."""
        if self.choices:
            return self.choice(value) is not None
        if isinstance(value, bool) or not isinstance(value, int | float):
            return False
        if self.kind == "int" and not isinstance(value, int):
            return False
        low, high = self._range()
        if not low <= value <= high:
            return False
        steps = 0.0 if self.spec.step is None else (value - low) / self.spec.step
        return abs(steps - round(steps)) < _TOLERANCE

    def suggest(self, trial: Trial) -> ParameterValue:
        """Return the value that a trial suggests."""
        if self.choices:
            return trial.suggest_categorical(self.name, self.values)
        low, high = self._range()
        if self.kind == "int":
            step = 1 if self.spec.step is None else int(self.spec.step)
            return trial.suggest_int(self.name, int(low), int(high), step=step, log=self.spec.log)
        return round_to_six_digits(trial.suggest_float(self.name, low, high, step=self.spec.step, log=self.spec.log))

    def size(self) -> int | None:
        """Return the number of values; None for a continuous domain."""
        if self.choices:
            return len(self.choices)
        low, high = self._range()
        step = 1 if self.kind == "int" and self.spec.step is None else self.spec.step
        return None if step is None else int((high - low) / step + _TOLERANCE) + 1

    def listed(self) -> tuple[ParameterValue, ...]:
        """Return every value of a finite domain, in order."""
        size = self.size()
        if size is None:
            raise ValueError(f"{self.name} is continuous; it cannot be listed")
        if self.choices:
            return self.values
        low, _ = self._range()
        numbers = [low + (self.spec.step or 1) * index for index in range(size)]
        return tuple(numbers if self.kind == "int" else map(round_to_six_digits, numbers))

    def _range(self) -> tuple[float, float]:
        if self.spec.low is None or self.spec.high is None:
            raise ValueError(f"{self.name} has no range")
        return self.spec.low, self.spec.high


def full_choices(spec: ParameterSpec) -> tuple[ChoiceSpec, ...]:
    """Return all declared choices; those of a bool without any are true and false."""
    if spec.type == "bool" and not spec.choices:
        return (ChoiceSpec.model_validate({"value": True}), ChoiceSpec.model_validate({"value": False}))
    return spec.choices


EFFECTIVE = "effective."
"""The prefix of a name that asks for the value that the engine uses, its default included."""


class Names:
    """The values of all names for one configuration in one context.

    `max_num_seqs` is the configuration's value, else the one in the study's own server arguments (`fixed`), else None.
    `effective.max_num_seqs` is the same, else the engine's default, else UNKNOWN.
    """

    def __init__(
        self,
        specs: Mapping[str, ParameterSpec],
        facts: Mapping[str, object],
        fixed: Mapping[str, object],
        config: Mapping[str, ParameterValue],
    ) -> None:
        self._specs = specs
        self._facts = facts
        self._fixed = fixed
        self._config = config

    def lookup(self, name: str) -> object:
        """Return the value of a dotted name."""
        if name.startswith(EFFECTIVE):
            return self.effective(name.removeprefix(EFFECTIVE))
        if name in self._facts:
            return self._facts[name]
        value = self._config.get(name)
        return self._fixed.get(name) if value is None else value

    def effective(self, name: str) -> object:
        """Return the value that the engine uses for a parameter; UNKNOWN if it is not known."""
        value = self.lookup(name)
        if value is not None:
            return value
        default = self._default(name)
        return UNKNOWN if default is None else default

    def default(self, name: str) -> ParameterValue:
        """Return the engine's own default of a parameter in this configuration; None if it is not known."""
        value = self._default(name)
        return value if isinstance(value, str | int | float | bool) else None

    def _default(self, name: str) -> object:
        spec = self._specs.get(name)
        if spec is None or not isinstance(spec.engine_default, tuple):
            return None if spec is None else spec.engine_default
        for case in spec.engine_default:
            holds = True if case.when is None else parsed(case.when).holds(self.lookup)
            if holds is None:
                return None
            if holds:
                return case.value if case.expression is None else parsed(case.expression).evaluate(self.lookup)
        return None

    def fill(self, text: str) -> str:
        """Return `text` with each `{name}` replaced by its value."""
        return re.sub(r"\{([\w.]+)\}", lambda match: shown_fact(match[1], self.lookup(match[1])), text)
