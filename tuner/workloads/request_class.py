"""Request classes of traffic: the lengths, texts, shared prefixes and priority of their requests."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    field_validator,
    model_serializer,
    model_validator,
)

from tuner.workloads.lengths import LengthOrFixed, Tokens
from tuner.workloads.reading.files import LARGEST_LENGTH
from tuner.workloads.reading.texts import read_texts
from tuner.workloads.reading.traces import read_recording

_NAME_CHARS = 256
_SCHEMA_CHARS = 65536

MADE_TEXTS = ("chat", "code")
"""Texts with the repetition of real ones; `tuner/engines/server/prompts/made_text.py` makes them."""


class Prefix(BaseModel):
    """Documents that the prompts of a class begin with, so that a prefix cache can reuse them.

    A prompt is one document and then `input` tokens of its own. Document k of K is chosen with a probability
    proportional to k ** -zipf; with zipf 0, all documents are equally likely.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    tokens: Tokens
    documents: int = Field(1, ge=1, le=1_000_000)
    zipf: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0

    def probabilities(self) -> list[float]:
        """Return the probability of each document."""
        weights = [float(k) ** -self.zipf for k in range(1, self.documents + 1)]
        total = sum(weights)
        return [weight / total for weight in weights]


class TraceFile(BaseModel):
    """A recorded trace, whose requests give both lengths in the order of their arrival; then the first comes again.

    See `tuner.workloads.reading.traces`.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    file: Path


class TextFile(BaseModel):
    """A file with the user's own prompts. Each is sent once before any is sent again.

    See `tuner.workloads.reading.texts`.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    file: Path


class RequestClass(BaseModel):
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
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    weight: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 1.0
    input: LengthOrFixed | None = None
    output: LengthOrFixed | None = None
    prefix: Prefix | None = None
    trace: TraceFile | None = None
    text: Literal["random", "repetitive", "chat", "code"] | TextFile = "random"
    priority: int = Field(0, strict=True, ge=-LARGEST_LENGTH, le=LARGEST_LENGTH)
    adapters: tuple[Annotated[str, Field(min_length=1, max_length=_NAME_CHARS)], ...] = ()
    json_schema: dict[str, Any] | None = None

    @model_serializer(mode="wrap")
    def _without_defaults(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Leave fields out that are not used, so that a study from before they existed has the same workload."""
        fields: dict[str, Any] = dump(self)
        for name in ("priority", "trace", "adapters", "json_schema"):
            if not getattr(self, name):
                fields.pop(name, None)
        return fields

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
    def has_made_text(self) -> bool:
        """Whether the text is one that the tuner makes from its grammar."""
        return self.text in MADE_TEXTS

    def longest(self) -> int:
        """Return the tokens of the longest request, as far as they are known without a tokenizer."""
        prefix = self.prefix.tokens if self.prefix else 0
        if self.trace is not None:
            return prefix + max(
                each.input_tokens + each.output_tokens for each in read_recording(self.trace.file).requests
            )
        own = 0 if self.input is None else self.input.longest()
        return prefix + own + self.longest_output()

    def longest_output(self) -> int:
        """Return the tokens of the longest answer, as far as they are known without a tokenizer."""
        if self.trace is not None:
            return max(each.output_tokens for each in read_recording(self.trace.file).requests)
        lengths = [1 if self.output is None else self.output.longest()]
        if isinstance(self.text, TextFile):
            lengths += [text.output_tokens or 1 for text in read_texts(self.text.file).texts]
        return max(lengths)
