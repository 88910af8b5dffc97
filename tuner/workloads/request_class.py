"""Request classes of traffic: lengths, texts, shared prefixes, priority and SLOs of their requests.

`lognormal` has the mean and the coefficient of variation cv of the lengths themselves. The parameters of the underlying
normal distribution are sigma² = ln(1 + cv²) and mu = ln(mean) - sigma² / 2 (Johnson, Kotz and Balakrishnan, Continuous
Univariate Distributions 1, chapter 14). Lengths outside [min, max] are set to the bound, so that the longest request is
known before the run.

A bound of a class's SLO holds for each request: a request meets the SLO if its own value is below the bound. For ITL
the value is the bound's percentile over the gaps within the request's answer (95 if the bound has none). A bound with a
percentile also holds for the class: the percentile over its requests must be below the bound, as a constraint of the
study. `ttft_p95_ms` means the same as `p95_ttft_ms`. `goodput_share: 0.95` is a constraint: at least 95 % of the
offered requests of the class meet their SLO.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import NormalDist, fmean
from typing import Annotated, Any, Literal

import numpy as np
from numpy.random import Generator
from pydantic import (
    BeforeValidator,
    Field,
    field_validator,
    model_validator,
)

from records.metrics import PERCENTILES
from tuner.errors import UserError
from tuner.workloads.reading import LARGEST_LENGTH, Strict, read_lines, read_texts
from tuner.workloads.results import RequestSlo
from tuner.workloads.traces.formats import longest_shared, read_recording
from tuner.workloads.traces.turns import RecordedSessions, recorded_sessions

Tokens = Annotated[int, Field(ge=1, le=LARGEST_LENGTH)]


class Length(Strict):
    """One distribution of whole numbers from 1: tokens, turns, or ms.

    Exactly one key is set; in YAML an integer stands for a fixed length.
    """

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

    def mean(self) -> float:
        """Return the mean length.

        Raises:
            UserError: if the file of lengths cannot be read.
        """
        if self.fixed is not None:
            return float(self.fixed)
        if self.uniform is not None:
            return sum(self.uniform) / 2
        return self.lognormal.bounded_mean() if self.lognormal is not None else fmean(self._from_file())

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


class Lognormal(Strict):
    """Lengths with a long tail; `mean` (in tokens) and `cv` are those before the bounds apply."""

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
        drawn = random.lognormal(*self._parameters(), count)
        return [int(value) for value in np.clip(np.rint(drawn), self.min, self.max)]

    def bounded_mean(self) -> float:
        """Return the mean of the drawn lengths, which are rounded and bounded, over quantiles of the distribution."""
        normal = NormalDist(*self._parameters())
        values = np.exp([normal.inv_cdf((place + 0.5) / _QUANTILES) for place in range(_QUANTILES)])
        return float(np.clip(np.rint(values), self.min, self.max).mean())

    def _parameters(self) -> tuple[float, float]:
        """Return mean and standard deviation of the logarithms."""
        variance = math.log1p(self.cv * self.cv)
        return math.log(self.mean) - variance / 2, math.sqrt(variance)


_QUANTILES = 1000


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


_NAME_CHARS = 256
_SCHEMA_CHARS = 65536

_MADE_TEXTS = ("chat", "code")
"""Texts with the repetition of real ones; `tuner/engines/server/prompts/made_text.py` makes them."""


class Prefix(Strict):
    """Documents that the prompts of a class begin with, so that a prefix cache can reuse them.

    A prompt is one document and then `input` tokens of its own. Document k of K is chosen with a probability
    proportional to k ** -zipf; with zipf 0, all documents are equally likely.
    """

    tokens: Tokens
    documents: int = Field(1, ge=1, le=1_000_000)
    zipf: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0

    def probabilities(self) -> list[float]:
        """Return the probability of each document."""
        weights = [float(k) ** -self.zipf for k in range(1, self.documents + 1)]
        total = sum(weights)
        return [weight / total for weight in weights]


class TraceFile(Strict):
    """A recorded trace, whose requests give lengths and shared blocks in their order; then the first comes again.

    See `tuner.workloads.traces`. Blocks of the second round are not those of the first, which a cache would have.

    Attributes:
        file: the recording.
        when: `recorded`: each request is sent at its own time. `answered`: sessions arrive, and a later turn is sent
            when the answers before it have ended and its recorded pause is over.
        pause_ms: pauses that the recording lacks, with `answered`.
    """

    file: Path
    when: Literal["recorded", "answered"] = "recorded"
    pause_ms: LengthOrFixed | None = None

    @model_validator(mode="after")
    def _has_pauses(self) -> TraceFile:
        if self.pause_ms is not None and self.when == "recorded":
            raise ValueError(
                "requests at their recorded times have no `pause_ms`; add `when: answered`, or leave it out"
            )
        return self

    @property
    def sessions(self) -> RecordedSessions | None:
        """The sessions of the recording; None if each request is sent at its own time.

        Raises:
            UserError: if the recording cannot be read, or a pause is neither recorded nor given.
        """
        if self.when == "recorded":
            return None
        found = recorded_sessions(self.file)
        if found.lacks_pauses and self.pause_ms is None:
            rule = "it lacks the ends of answers, from which the pauses of its sessions follow"
            raise UserError(f"{self.file}: {rule}; give `pause_ms` beside `when: answered`")
        return found


class Session(Strict):
    """Sessions: conversations whose next turn waits for the answers of the turn before it, and for a pause.

    The prompt of a turn is that of the turn before it, its answer, and `input` tokens of its own. With a fan-out, a
    turn sends several requests at once, which all begin with the conversation so far. The next turn waits for all of
    them, and goes on from the first one. Text that an agent takes from the other answers counts among its own tokens.

    Attributes:
        turns: number of turns of a session.
        pause_ms: from the last answer of a turn to the next turn; a user thinks in it, or a tool runs. None: no pause.
        fan_out: requests that a turn sends at once.
    """

    turns: LengthOrFixed
    pause_ms: LengthOrFixed | None = None
    fan_out: LengthOrFixed = Length(fixed=1)

    @model_validator(mode="after")
    def _has_an_end(self) -> Session:
        most = self.turns.longest() * self.fan_out.longest()
        if most > MAX_SESSION:
            raise ValueError(f"a session of up to {most:,} requests; lower `turns` or `fan_out` to {MAX_SESSION:,}")
        return self

    @property
    def requests(self) -> float:
        """The mean number of requests of a session."""
        return self.turns.mean() * self.fan_out.mean()


MAX_SESSION = 10_000
"""The most requests of a session."""


class TextFile(Strict):
    """A file with the user's own prompts. Each is sent once before any is sent again.

    See `tuner.workloads.reading`.
    """

    file: Path


class RequestClass(Strict):
    """A request class: requests that share length distributions, text and an SLO.

    Attributes:
        weight: the class's share of all requests, relative to the other classes' weights.
        input: tokens of a prompt under the model's tokenizer, without shared prefixes; None for prompts from a file.
        output: tokens of an answer; with prompts from a file, only for those that state no length.
        trace: recorded requests whose lengths are those of prompt and answer, in the place of `input` and `output`.
        priority: the priority of its requests. A server with `--scheduling-policy priority` admits lower ones first;
            any other ignores it.
        prefix: documents that the prompts begin with.
        text: the prompts' text: random words; one short passage over and over (`repetitive`), which ngram and suffix
            speculation can draft; made conversations (`chat`) or source code (`code`), of which the documents are, too;
            or a file with the user's own prompts.
        adapters: the server's names of LoRA adapters. Each request asks for one of them, drawn at random. Requests of a
            class without adapters ask for the model itself.
        json_schema: the JSON schema of every answer, which the server enforces (structured output). An answer may end
            before `output` tokens; an answer that is cut there has failed.
        session: the shape of its sessions; None: each request stands alone. With sessions, `weight` is that of a
            session among all arrivals, `input` and `output` are those of each request, and a session has one document.
    """

    weight: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 1.0
    input: LengthOrFixed | None = None
    output: LengthOrFixed | None = None
    prefix: Prefix | None = None
    trace: TraceFile | None = None
    text: Literal["random", "repetitive", "chat", "code"] | TextFile = "random"
    priority: int = Field(0, strict=True, ge=-LARGEST_LENGTH, le=LARGEST_LENGTH)
    adapters: tuple[Annotated[str, Field(min_length=1, max_length=_NAME_CHARS)], ...] = ()
    json_schema: dict[str, Any] | None = None
    session: Session | None = None

    @field_validator("json_schema")
    @classmethod
    def _is_a_schema(cls, schema: dict[str, Any] | None) -> dict[str, Any] | None:
        if schema is None:
            return None
        try:
            text = json.dumps(schema, allow_nan=False)
        except (TypeError, ValueError, RecursionError):
            raise ValueError("it is no JSON: keys are texts, and values texts, numbers, lists and objects") from None
        if not schema or len(text) > _SCHEMA_CHARS:
            raise ValueError(f"a schema has 1 key or more and at most {_SCHEMA_CHARS} characters; this has {len(text)}")
        return schema

    @model_validator(mode="after")
    def _has_lengths(self) -> RequestClass:
        if self.session is not None and (self.trace is not None or isinstance(self.text, TextFile)):
            raise ValueError("sessions have generated prompts; leave `trace` and prompts from a file out")
        if self.trace is not None:
            if self.input is not None or self.output is not None or isinstance(self.text, TextFile):
                raise ValueError("a trace has the lengths; leave `input`, `output` and prompts from a file out")
            return self
        if isinstance(self.text, TextFile):
            if self.input is not None:
                raise ValueError("prompts from a file have their own lengths; leave `input` out")
            if self.output is None and any(
                t.output_tokens is None and not t.answer for t in read_texts(self.text.file).texts
            ):
                raise ValueError("some prompts of the file state no length of their answer; give `output`")
        elif self.input is None or self.output is None:
            raise ValueError("generated prompts need `input` and `output`, their lengths in tokens, or `trace`")
        return self

    @property
    def has_sessions(self) -> bool:
        """Whether a later request waits for the answer to an earlier one."""
        return self.session is not None or (self.trace is not None and self.trace.when == "answered")

    @property
    def mean_requests(self) -> float:
        """The mean number of requests of an arrival: 1 without sessions."""
        if self.trace is not None and (recorded := self.trace.sessions) is not None:
            return recorded.requests
        return 1.0 if self.session is None else self.session.requests

    def residence_s(self, request_s: float) -> float:
        """Return the mean seconds from an arrival to its last answer, if each request takes `request_s`."""
        turns, pause_s, pause_ms = 1.0, None, None
        if self.session is not None:
            turns, pause_ms = self.session.turns.mean(), self.session.pause_ms
        elif self.trace is not None and (recorded := self.trace.sessions) is not None:
            turns, pause_s, pause_ms = recorded.turns, recorded.pause_s, self.trace.pause_ms
        if pause_s is None:
            pause_s = 0.0 if pause_ms is None else pause_ms.mean() / 1000.0
        return turns * request_s + (turns - 1.0) * pause_s

    def distributions(self) -> list[Length]:
        """Return the distributions of lengths, turns, pauses and fan-outs that the class has."""
        shape, pauses = self.session, None if self.trace is None else self.trace.pause_ms
        found = [self.input, self.output, pauses, *((shape.turns, shape.pause_ms, shape.fan_out) if shape else ())]
        return [each for each in found if each is not None]

    @property
    def without_pauses(self) -> RequestClass:
        """The class whose turns follow the answers at once; requests of a recording stand alone."""
        changes: dict[str, Any] = {}
        if self.session is not None:
            changes["session"] = self.session.model_copy(update={"pause_ms": None})
        if self.trace is not None:
            changes["trace"] = TraceFile(file=self.trace.file)
        return self.model_copy(update=changes)

    @property
    def has_made_text(self) -> bool:
        """Whether the text is one that the tuner makes from its grammar."""
        return self.text in _MADE_TEXTS

    def longest(self) -> int:
        """Return the tokens of the longest request, as far as they are known without a tokenizer."""
        prefix = self.prefix.tokens if self.prefix else 0
        if self.trace is not None:
            return prefix + max(
                each.input_tokens + each.output_tokens for each in read_recording(self.trace.file).requests
            )
        own = 0 if self.input is None else self.input.longest()
        return prefix + self._longest_turns() * (own + self.longest_output())

    def longest_prefix(self) -> int:
        """Return the tokens of the longest beginning that prompts of the class share."""
        documents = self.prefix.tokens if self.prefix else 0
        if self.session is not None and self.input is not None:
            documents += (self._longest_turns() - 1) * (self.input.longest() + self.longest_output())
        return documents + (0 if self.trace is None else longest_shared(self.trace.file))

    def _longest_turns(self) -> int:
        return 1 if self.session is None else self.session.turns.longest()

    def longest_output(self) -> int:
        """Return the tokens of the longest answer, as far as they are known without a tokenizer."""
        if self.trace is not None:
            return max(each.output_tokens for each in read_recording(self.trace.file).requests)
        lengths = [1 if self.output is None else self.output.longest()]
        if isinstance(self.text, TextFile):
            lengths += [text.output_tokens or 1 for text in read_texts(self.text.file).texts]
        return max(lengths)


_KEY = re.compile(r"(?:p(\d+)_)?(ttft|tpot|itl|e2el)(?:_p(\d+))?_ms")
_SHARES = ("goodput_share", "session_goodput_share", "success_rate")
_EXAMPLE = "a latency such as p95_ttft_ms, tpot_ms or p95_itl_ms, or goodput_share"


@dataclass(frozen=True)
class ClassSlo:
    """The SLO of a class: the bounds on each request, and the study's constraints as texts (`p95_ttft_ms<2000`)."""

    request: RequestSlo
    constraints: tuple[str, ...]


def read_class_slo(bounds: Mapping[str, float]) -> ClassSlo:
    """Return the SLO that the bounds of one class state.

    Raises:
        ValueError: for an unknown name, two bounds on one latency, or a value that is not a positive number.
    """
    bounds_ms: dict[str, float] = {}
    constraints: list[str] = []
    itl_percentile = 95
    for key, value in bounds.items():
        if key in _SHARES:
            _check(key, value, 1.0)
            constraints.append(f"{key}>={value:g}")
            continue
        match = _KEY.fullmatch(key)
        if match is None or (match[1] and match[3]):
            raise ValueError(f"{key!r} is not a bound; give {_EXAMPLE}")
        name, percentile = match[2], match[1] or match[3]
        _check(key, value, math.inf)
        if percentile is not None and int(percentile) not in PERCENTILES:
            raise ValueError(f"{key!r}: the percentiles are {', '.join(map(str, PERCENTILES))}; use one of them")
        if name in bounds_ms:
            raise ValueError(f"{name} has two bounds; keep one")
        bounds_ms[name] = float(value)
        if percentile is not None:
            constraints.append(f"p{percentile}_{name}_ms<{value:g}")
            itl_percentile = int(percentile) if name == "itl" else itl_percentile
    return ClassSlo(RequestSlo(bounds_ms, itl_percentile), tuple(constraints))


def _check(key: str, value: float, maximum: float) -> None:
    if isinstance(value, bool) or not (math.isfinite(value) and 0 < value <= maximum):
        upper = "" if math.isinf(maximum) else f" and at most {maximum:g}"
        raise ValueError(f"{key}: {value!r} is not a bound; give a number above 0{upper}")
