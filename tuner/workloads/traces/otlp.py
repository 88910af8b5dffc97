"""OpenTelemetry's spans of generative AI, as files of the OTLP exporters: JSON, JSON lines, or protobuf.

A span of an inference has the attributes `gen_ai.usage.input_tokens` and `gen_ai.usage.output_tokens`; by older
conventions, and in vLLM's own spans, `gen_ai.usage.prompt_tokens` and `gen_ai.usage.completion_tokens`; OpenInference
has `llm.token_count.prompt` and `llm.token_count.completion` (https://arize-ai.github.io/openinference/spec). The
session is `gen_ai.conversation.id` (https://opentelemetry.io/docs/specs/semconv/gen-ai/gen-ai-spans). Spans of agents
sum up those within them. So a span counts only if it contains no other one with tokens
(https://github.com/open-telemetry/opentelemetry-proto/blob/main/opentelemetry/proto/trace/v1/trace.proto for the form).

Messages, which some instrumentations record, are not read: there are lengths and sessions, and no blocks.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from tuner.errors import UserError
from tuner.workloads.reading import NO_TEXT
from tuner.workloads.traces.recording import Recorder, Recording, length, number
from tuner.workloads.traces.source import FORMS, TraceFormat, TraceSource

_INPUT = (
    *("gen_ai.usage.input_tokens", "gen_ai.usage.prompt_tokens"),
    *("llm.token_count.prompt", "llm.usage.prompt_tokens"),
)
_OUTPUT = (
    *("gen_ai.usage.output_tokens", "gen_ai.usage.completion_tokens"),
    *("llm.token_count.completion", "llm.usage.completion_tokens"),
)
_SESSIONS = ("gen_ai.conversation.id", "session.id")
_OTHERS = ("embeddings", "execute_tool", "retrieval")
"""Operations (`gen_ai.operation.name`) that generate nothing."""

OUTER = "tokens of its own: it contains another span"
OTHER = "an answer of text: another operation"


@dataclass(frozen=True)
class _Span:
    """A span with the tokens of an inference, and its place in the file."""

    place: str
    number: str
    parent: str
    at_ns: Any
    ended_ns: Any
    attributes: Mapping[str, Any]


def read_otlp(source: TraceSource) -> Recording:
    """Return the recording of a file of spans.

    Raises:
        UserError: with the place, for a span without a time or with a wrong length, or if none has tokens.
    """
    recorder, parents, spans = Recorder(source.file, OTLP.title), dict[str, str](), list[_Span]()
    for place, document in _documents(source):
        for span in _spans(place, document):
            parents[span.number] = span.parent
            if any(span.attributes.get(name) is not None for name in (*_INPUT, *_OUTPUT)):
                spans.append(span)
    outer = {number for span in spans for number in _ancestors(span, parents)}
    for span in spans:
        if span.attributes.get("gen_ai.operation.name") in _OTHERS:
            recorder.left_out[OTHER] += 1
        elif span.number in outer:
            recorder.left_out[OUTER] += 1
        elif recorder.is_new(span.number or None):
            _add(recorder, span)
    return recorder.recording(FORMS, unit="ns")


def _add(recorder: Recorder, span: _Span) -> None:
    at = number(span.at_ns)
    try:
        lengths = [length(_first(span.attributes, names)) for names in (_INPUT, _OUTPUT)]
    except ValueError as error:
        raise UserError(f"{span.place}: {str(error)[:40]!r} is no number of tokens; correct or remove it") from None
    if at is None or at <= 0:
        raise UserError(f"{span.place}: a span with tokens has no startTimeUnixNano; correct or remove it")
    recorder.add(at, lengths[0], lengths[1], (), _first(span.attributes, _SESSIONS), number(span.ended_ns))


def _first(attributes: Mapping[str, Any], names: tuple[str, ...]) -> Any:
    return next((attributes[name] for name in names if attributes.get(name) is not None), None)


def _ancestors(span: _Span, parents: Mapping[str, str]) -> Iterator[str]:
    """Yield the numbers of the spans around one; a loop of parents ends."""
    seen, at = {span.number}, span.parent
    while at and at not in seen:
        yield at
        seen.add(at)
        at = parents.get(at, "")


def _spans(place: str, document: Any) -> Iterator[_Span]:
    for resource in _list(document, "resourceSpans"):
        for scope in (*_list(resource, "scopeSpans"), *_list(resource, "instrumentationLibrarySpans")):
            for span in _list(scope, "spans"):
                trace, own, parent = (str(_at(span, name) or "") for name in ("traceId", "spanId", "parentSpanId"))
                attributes = {str(each.get("key")): _value(each.get("value")) for each in _list(span, "attributes")}
                key = f"{trace}/{own}" if own else ""
                at = f"{place}: span {own[:16]}" if own else place
                times = _at(span, "startTimeUnixNano"), _at(span, "endTimeUnixNano")
                yield _Span(at, key, f"{trace}/{parent}" if parent else "", *times, attributes)


def _at(whole: Any, name: str) -> Any:
    """Return what an object has under a name, which may be written with `_` (`resource_spans`)."""
    return whole.get(name, whole.get(_snake(name))) if isinstance(whole, Mapping) else None


def _snake(name: str) -> str:
    return re.sub(r"[A-Z]", lambda found: f"_{found[0].lower()}", name)


def _list(whole: Any, name: str) -> list[Mapping[str, Any]]:
    """Return the objects of a list under a name."""
    found = _at(whole, name)
    return [each for each in found if isinstance(each, Mapping)] if isinstance(found, list) else []


def _value(value: Any) -> Any:
    """Return an attribute's value, which OTLP wraps by its type; lists and objects are not needed."""
    kinds = ("intValue", "doubleValue", "stringValue", "boolValue")
    return next((found for kind in kinds if (found := _at(value, kind)) is not None), None)


def _documents(source: TraceSource) -> Iterator[tuple[str, Any]]:
    """Yield each document of a file with its place: of JSON that may have several lines, of JSON lines, or protobuf."""
    if not source.is_json:
        yield from _protobuf(source)
        return
    try:
        found = json.loads(source.text)
    except (ValueError, RecursionError):
        yield from source.entries
        return
    yield from ((str(source.file), each) for each in (found if isinstance(found, list) else [found]))


def _protobuf(source: TraceSource) -> Iterator[tuple[str, Any]]:
    try:
        trace = import_module("opentelemetry.proto.trace.v1.trace_pb2")
        json_format = import_module("google.protobuf.json_format")
        message = import_module("google.protobuf.message")
    except ImportError:
        rule = "protobuf needs the package `opentelemetry-proto`, which is not installed"
        raise UserError(f"{source.file}: {rule}; `pip install opentelemetry-proto`, or give OTLP JSON") from None
    for place, part in enumerate(_messages(source.content), 1):
        try:
            yield f"{source.file}: message {place}", json_format.MessageToDict(trace.TracesData.FromString(part))
        except message.DecodeError:
            raise UserError(f"{source.file}: not OTLP: message {place} is no TracesData; give {FORMS}") from None


def _messages(content: bytes) -> list[bytes]:
    """Return the messages of a file: those with their length before them, as the Collector writes, or the only one."""
    found, at = [], 0
    while at + 4 <= len(content):
        size = int.from_bytes(content[at : at + 4])
        found.append(content[at + 4 : at + 4 + size])
        at += 4 + size
    return found if found and at == len(content) else [content]


def _recognizes(source: TraceSource) -> bool:
    if source.is_json:
        return any(f'"{name}"' in source.text[: 2**16] for name in ("resourceSpans", "resource_spans"))
    return b"\0" in source.content[: 2**12] and not any(source.content.startswith(begin) for begin, _ in NO_TEXT)


OTLP = TraceFormat(
    "OpenTelemetry's spans",
    "https://opentelemetry.io/docs/specs/semconv/gen-ai/gen-ai-spans",
    _recognizes,
    read_otlp,
)
