"""Distributions of prompt and answer lengths, in tokens.

`lognormal` has the mean and the coefficient of variation cv of the lengths themselves. The parameters of the underlying
normal distribution are sigma² = ln(1 + cv²) and mu = ln(mean) - sigma² / 2 (Johnson, Kotz and Balakrishnan, Continuous
Univariate Distributions 1, chapter 14). Lengths outside [min, max] are set to the bound, so that the longest request is
known before the run.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from numpy.random import Generator
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from tuner.workloads.reading.files import LARGEST_LENGTH, read_lines

Tokens = Annotated[int, Field(ge=1, le=LARGEST_LENGTH)]


class Length(BaseModel):
    """One distribution of lengths in tokens. Exactly one key is set; in YAML an integer stands for a fixed length."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    fixed: Tokens | None = None
    uniform: tuple[Tokens, Tokens] | None = Field(None, description="shortest and longest, both included")
    lognormal: Lognormal | None = None
    file: Path | None = Field(None, description="one length per line, drawn with replacement")

    @model_validator(mode="after")
    def _one_of(self) -> Length:
        given = [name for name in type(self).model_fields if getattr(self, name) is not None]
        if len(given) != 1:
            raise ValueError(
                f"a length has one of the keys fixed, uniform, lognormal and file, got {', '.join(given) or 'none'}"
            )
        if self.uniform is not None and self.uniform[0] > self.uniform[1]:
            raise ValueError(f"uniform {list(self.uniform)}: the shortest length is above the longest; swap them")
        return self

    def longest(self) -> int:
        """Return the longest length that can be drawn.

        Raises:
            UserError: if the file of lengths cannot be read.
        """
        if self.fixed is not None:
            return self.fixed
        if self.uniform is not None:
            return self.uniform[1]
        if self.lognormal is not None:
            return self.lognormal.max
        return max(self._from_file())

    def draw(self, random: Generator, count: int) -> list[int]:
        """Return `count` lengths.

        Raises:
            UserError: if the file of lengths cannot be read.
        """
        if self.fixed is not None:
            return [self.fixed] * count
        if self.uniform is not None:
            low, high = self.uniform
            return [int(value) for value in random.integers(low, high + 1, count)]
        if self.lognormal is not None:
            return self.lognormal.draw(random, count)
        return [int(value) for value in random.choice(self._from_file(), count)]

    def _from_file(self) -> list[int]:
        assert self.file is not None
        return read_lengths(self.file)


class Lognormal(BaseModel):
    """Lengths with a long tail; `mean` (in tokens) and `cv` are those before the bounds apply."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    mean: Annotated[float, Field(ge=1, allow_inf_nan=False)]
    cv: Annotated[float, Field(gt=0, le=1000, allow_inf_nan=False)]
    min: Tokens = 1
    max: Tokens

    @model_validator(mode="after")
    def _in_order(self) -> Lognormal:
        if not self.min <= self.mean <= self.max:
            raise ValueError(f"lognormal: min <= mean <= max must hold, got {self.min}, {self.mean:g}, {self.max}")
        return self

    def draw(self, random: Generator, count: int) -> list[int]:
        """Return `count` lengths."""
        variance = math.log1p(self.cv * self.cv)
        drawn = random.lognormal(math.log(self.mean) - variance / 2, math.sqrt(variance), count)
        return [int(value) for value in np.clip(np.rint(drawn), self.min, self.max)]


def _fixed(value: Any) -> Any:
    return {"fixed": value} if isinstance(value, int) and not isinstance(value, bool) else value


LengthOrFixed = Annotated[Length, BeforeValidator(_fixed)]
"""A `Length`, or an integer for a fixed length."""


def read_lengths(file: Path) -> list[int]:
    """Return the lengths of a file with one length per line; empty lines are ignored.

    Raises:
        UserError: with file and line, if the file cannot be read, is empty, or has a line that is not a length.
    """
    return read_lines(file, "lengths", "a file with one length per line", _length)


def _length(text: str, _: list[int]) -> int:
    if not text.isdecimal() or len(text) > len(str(LARGEST_LENGTH)) or not 1 <= int(text) <= LARGEST_LENGTH:
        raise ValueError(f"{text[:40]!r} is not a length; give whole numbers of tokens from 1")
    return int(text)
