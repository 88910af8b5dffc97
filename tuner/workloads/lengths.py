"""How many tokens: the distributions of prompt and answer lengths.

`lognormal` takes the mean and the coefficient of variation of the lengths themselves: sigma^2 = ln(1 + cv^2) and
mu = ln(mean) - sigma^2 / 2 (Johnson, Kotz and Balakrishnan, Continuous Univariate Distributions 1, chapter 14). What
falls outside [min, max] takes the bound, so that the longest request is known before the run.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from numpy.random import Generator
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from tuner.workloads.files import read_lines

Tokens = Annotated[int, Field(ge=1)]


class Length(BaseModel):
    """One distribution of lengths in tokens. An integer in YAML is a fixed length; otherwise exactly one key is set."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    fixed: Tokens | None = None
    uniform: tuple[Tokens, Tokens] | None = Field(None, description="shortest and longest, both included")
    lognormal: Lognormal | None = None
    file: Path | None = Field(None, description="a length a line, drawn with replacement")

    @model_validator(mode="after")
    def _one_of(self) -> Length:
        given = [name for name in type(self).model_fields if getattr(self, name) is not None]
        if len(given) != 1:
            raise ValueError(f"a length is one of fixed, uniform, lognormal and file, got {', '.join(given) or 'none'}")
        if self.uniform is not None and self.uniform[0] > self.uniform[1]:
            raise ValueError(f"uniform {list(self.uniform)}: the low is above the high")
        return self

    def longest(self) -> int:
        """Return the longest length that can be drawn.

        Raises:
            UserError: when the file of lengths cannot be read.
        """
        if self.fixed is not None:
            return self.fixed
        if self.uniform is not None:
            return self.uniform[1]
        if self.lognormal is not None:
            return self.lognormal.max
        return max(self._listed())

    def draw(self, random: Generator, count: int) -> list[int]:
        """Return `count` lengths.

        Raises:
            UserError: when the file of lengths cannot be read.
        """
        if self.fixed is not None:
            return [self.fixed] * count
        if self.uniform is not None:
            low, high = self.uniform
            return [int(value) for value in random.integers(low, high + 1, count)]
        if self.lognormal is not None:
            return self.lognormal.draw(random, count)
        return [int(value) for value in random.choice(self._listed(), count)]

    def _listed(self) -> list[int]:
        assert self.file is not None
        return read_lengths(self.file)


class Lognormal(BaseModel):
    """Lengths with a long tail; `mean` in tokens and `cv` before the bounds are applied."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    mean: Annotated[float, Field(ge=1, allow_inf_nan=False)]
    cv: Annotated[float, Field(gt=0, allow_inf_nan=False)]
    min: Tokens = 1
    max: Tokens

    @model_validator(mode="after")
    def _in_order(self) -> Lognormal:
        if not self.min <= self.mean <= self.max:
            raise ValueError(f"lognormal: needs min <= mean <= max, got {self.min}, {self.mean:g}, {self.max}")
        return self

    def draw(self, random: Generator, count: int) -> list[int]:
        """Return `count` lengths."""
        variance = math.log1p(self.cv * self.cv)
        drawn = random.lognormal(math.log(self.mean) - variance / 2, math.sqrt(variance), count)
        return [int(value) for value in np.clip(np.rint(drawn), self.min, self.max)]


def _fixed(value: Any) -> Any:
    return {"fixed": value} if isinstance(value, int) and not isinstance(value, bool) else value


LengthOrFixed = Annotated[Length, BeforeValidator(_fixed)]
"""A `Length`, or an integer for a fixed one."""


def read_lengths(file: Path) -> list[int]:
    """Return the lengths of a file, one a line; empty lines are passed over.

    Raises:
        UserError: naming file and line, when it cannot be read, is empty, or holds something that is no length.
    """
    return read_lines(file, "lengths", "a file with a length a line", _length)


def _length(text: str, _: list[int]) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise ValueError(f"{text[:40]!r} is no length; give whole numbers of tokens from 1")
    return int(text)
