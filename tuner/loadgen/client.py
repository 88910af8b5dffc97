"""Send one request, time stamp its streamed answer as it arrives, and record how it ended.

The events are those of the WHATWG's server-sent events (https://html.spec.whatwg.org/multipage/server-sent-events.html):
lines end with LF, CR or CRLF, an empty line ends an event, and its data lines are joined. Three things are read beyond
that, because servers and proxies send them: an event without data is a sign of life; a `[DONE]` at the end needs no
empty line; and a data line that is a whole object is an event, even if no empty line separates it from the next one.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import aiohttp
from aiohttp.http_exceptions import HttpProcessingError

from tuner.loadgen.plan import PlannedRequest
from tuner.transport import explained, words_of
from tuner.workloads.results import RequestRecord, RequestStatus

Piece = tuple[float, bytes]
"""The time at which some bytes had arrived, in seconds, and the bytes."""

_DATA = b"data:"
_DONE = b"[DONE]"
_COMMENT = b":"
"""How a comment begins, which some proxies pass on as data."""
_MARK = b"\xef\xbb\xbf"
_FIELD = re.compile(rb"[\w-]*:.*|data|event|id|retry", re.DOTALL)
_BEGINNING = re.compile(rb"[\w-]*(:.*)?", re.DOTALL)
_COUNTS = ("prompt_tokens", "completion_tokens")
_COUNT_LIMIT = 2**63
_SHOWN = 200
_SIGNS_OF_LIFE = ("ping", "heartbeat", "keepalive", "keep-alive", "keep_alive")
_CHUNK = "chat.completion.chunk"
_PARTS = (
    *("content", "reasoning", "reasoning_content", "reasoning_details", "thinking"),
    *("tool_calls", "refusal", "function_call"),
)
"""What a chunk of a chat can have of the answer: text, thoughts, and calls of tools, whose arguments are tokens."""


class MalformedError(ValueError):
    """The stream contains text that is no event of the API."""


@dataclass(frozen=True)
class StreamedAnswer:
    """A parsed stream. `times_s` has a time for each event with text; `finished` is True after `[DONE]`.

    Token counts are those of the server, None if it sent none. `error` is the beginning of an error event. `end` is why
    the answer ended, as the server states it: `length` at its limit of tokens.
    """

    times_s: tuple[float, ...]
    input_tokens: int | None
    output_tokens: int | None
    finished: bool
    error: str | None = None
    end: str | None = None


def read_answer(pieces: Sequence[Piece]) -> StreamedAnswer:
    """Parse server-sent events of OpenAI's completions or chat API.

    Raises:
        MalformedError: for a line that is no event, and for an event that is no JSON object of that API.
    """
    times: list[float] = []
    input_tokens: int | None = None
    output_tokens: int | None = None
    finished, error = False, None
    end: str | None = None
    for at, data, name in _events(pieces):
        if data == _DONE:
            finished = True
            continue
        if data.startswith(_COMMENT) or name.decode("latin-1") in _SIGNS_OF_LIFE:
            continue
        event = {"error": data} if name == b"error" else _object(data)
        if event.get("error") or event.get("object") == "error":
            error = data[:_SHOWN].decode("utf-8", "replace")
            continue
        usage = event.get("usage")
        if usage:
            input_tokens, output_tokens = (_count(usage, each, data) for each in _COUNTS)
        choices = event.get("choices")
        if type(choices) is not list:
            _check_no_choices(event, choices, name, data)
            continue
        has_text = False
        for choice in choices:
            has_text = _has_text(choice, bool(usage)) or has_text
            if choice.get("finish_reason") is not None:
                end = str(choice["finish_reason"])
                error = data[:_SHOWN].decode("utf-8", "replace") if end in ("error", "abort") else error
        if has_text or (choices and usage and not times and output_tokens):
            times.append(at)  # an answer of bytes that are no text is complete with its last event
    return StreamedAnswer(tuple(times), input_tokens, output_tokens, finished, error, end)


def read_content(pieces: Sequence[Piece]) -> tuple[str, list[int]]:
    """Return the text of a complete answer, and its tokens, which a server sends if it was asked for them."""
    text, tokens = list[str](), list[int]()
    for _, data, _ in _events(pieces):
        if data != _DONE and not data.startswith(_COMMENT):
            for choice in _object(data).get("choices") or ():
                text.append(choice.get("text") or "")
                tokens += choice.get("token_ids") or ()
    return "".join(text), tokens


def _check_no_choices(event: dict[str, Any], choices: Any, name: bytes, data: bytes) -> None:
    """Refuse an event without choices that is neither a usage nor a sign of life."""
    known = (
        not event
        or "usage" in event
        or event.get("object") == _CHUNK
        or event.get("type") in _SIGNS_OF_LIFE
        or name not in (b"", b"message")
    )
    if choices is not None or not known:
        raise MalformedError(f"an event without choices: {data[:_SHOWN]!r}")


def _count(usage: Any, name: str, data: bytes) -> int | None:
    """Return a count of tokens, which may be written as 4.0; None if the usage does not have it."""
    count = usage.get(name) if isinstance(usage, dict) else -1
    if type(count) is float and count.is_integer():
        count = int(count)
    if count is not None and not (type(count) is int and 0 <= count < _COUNT_LIMIT):
        raise MalformedError(f"a usage without token counts: {data[:_SHOWN]!r}")
    return count


def _has_text(choice: Any, counted: bool) -> bool:
    """Return whether a choice has a token. Its text may be empty; beside the usage (`counted`) that is the end alone.

    llama.cpp ends a stream with an event that has the usage and a choice with an empty text.
    """
    if type(choice) is not dict:
        raise MalformedError(f"a choice that is no object but a {type(choice).__name__}")
    if "text" in choice:
        text = choice["text"]
        return bool(text) or not (counted or text is None)
    delta = choice.get("delta")
    return type(delta) is dict and any(map(delta.get, _PARTS))


def _object(data: bytes) -> dict[str, Any]:
    try:
        event = json.loads(data)
    except (ValueError, RecursionError):
        raise MalformedError(f"an event that is no JSON: {data[:_SHOWN]!r}") from None
    if type(event) is not dict:
        raise MalformedError(f"an event that is no object: {data[:_SHOWN]!r}")
    return event


def _events(pieces: Sequence[Piece]) -> Iterator[tuple[float, bytes, bytes]]:
    """Yield the data and the name of each event that has data, with the time at which its last byte had arrived."""
    data: list[bytes] = []
    name, data_at = b"", 0.0
    for at, lines in _lines(pieces):
        for line in lines:
            if line.startswith(_DATA):
                if len(data) == 1 and _is_whole(data[0]):
                    yield data_at, data.pop(), name
                data.append(line[5:].strip())
                data_at = at
            elif line.startswith(b"error:"):  # llama.cpp before build 6550 wrote an error as a field of its own
                yield at, line[6:].strip(), b"error"
            elif line in (b"{", b"["):  # JSON over several lines
                raise _no_field(b" ".join(b"".join(piece for _, piece in pieces).split()))
            elif line:
                name = _name(line, name)
            else:
                if data and (joined := data[0] if len(data) == 1 else b"\n".join(data).strip()):
                    yield at, joined, name
                data.clear()
                name = b""
    if data == [_DONE] or (len(data) == 2 and data[1] == _DONE):
        yield from ((data_at, each, name) for each in data)


def _name(line: bytes, name: bytes) -> bytes:
    """Return the event's name after a line that has no data: `error` for `event: error`."""
    if not line.isspace() and not _FIELD.fullmatch(line):
        raise _no_field(line)
    return line[6:].strip() if line.startswith(b"event:") else name


def _no_field(line: bytes) -> MalformedError:
    return MalformedError(f"a line that is no field of an event: {line[:_SHOWN]!r}")


def _is_whole(data: bytes) -> bool:
    """Return whether a data line is an event of its own, which the next data line does not continue."""
    try:
        return type(json.loads(data)) is dict
    except (ValueError, RecursionError):
        return False


def _lines(pieces: Sequence[Piece]) -> Iterator[tuple[float, list[bytes]]]:
    """Yield the lines that each piece completes; at the end, a `[DONE]` whose line has no end."""
    begun: list[bytes] = []
    at, after_cr = 0.0, False
    for at, piece in _without_mark(pieces) if pieces and pieces[0][1][:1] == _MARK[:1] else pieces:
        if after_cr or b"\r" in piece:
            text = piece[1:] if after_cr and piece[:1] == b"\n" else piece
            after_cr = piece.endswith(b"\r") or (after_cr and not piece)
            piece = text.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        lines = piece.split(b"\n")
        rest = lines.pop()
        if begun and lines:
            lines[0] = b"".join((*begun, lines[0]))
            begun.clear()
        if lines:
            yield at, lines
        if rest:
            begun.append(rest)
    last = b"".join(begun).strip()
    if last.startswith(_DATA) and last[5:].strip() == _DONE:
        yield at, [last]
    elif not _BEGINNING.fullmatch(last):
        raise _no_field(last)


def _without_mark(pieces: Sequence[Piece]) -> Iterator[Piece]:
    """Yield the pieces of a stream without the mark of UTF-8 at its beginning; a cut stream may end within it."""
    left = len(_MARK) if _MARK.startswith(b"".join(piece for _, piece in pieces[:3])[:3]) else 0
    for at, piece in pieces:
        yield at, piece[left:]
        left = max(0, left - len(piece))


API_KEY_VARIABLE = "TUNER_API_KEY"
"""The environment variable with the server's key; it is not `OPENAI_API_KEY`, which belongs to another server."""

_BODY_LIMIT = 4096
_TEMPLATE_LIMIT = 100_000
"""Most tokens that a server's chat template adds to a prompt."""
_ANSWER_LIMIT = 2**20
_TOKEN_LIMIT = 2**12
"""The largest answer has `_ANSWER_LIMIT` bytes and `_TOKEN_LIMIT` for each token; an event has about 300."""


class RequestSender:
    """Sends requests to one server, with one connection pool and one clock (seconds since the run began).

    Attributes:
        flying: by number of each request in flight, when it was sent and what has arrived.
    """

    def __init__(
        self,
        session: aiohttp.ClientSession,
        url: str,
        elapsed: Callable[[], float],
        store: Callable[[RequestRecord], None],
    ) -> None:
        self.flying: dict[int, tuple[float, list[Piece]]] = {}
        self._session = session
        self._url = url
        self._elapsed = elapsed
        self._store = store
        key = os.environ.get(API_KEY_VARIABLE)
        self._headers = {"Content-Type": "application/json", **({"Authorization": f"Bearer {key}"} if key else {})}

    async def send(
        self, request: PlannedRequest, body: bytes, give_up_s: float
    ) -> tuple[RequestRecord, Sequence[Piece]]:
        """Send a request and store its record, also when cancelled; failures of the server raise no exception.

        It times out `give_up_s` seconds after the run began.

        Returns:
            The record, and the pieces of the answer.
        """
        sent, pieces = self._elapsed(), list[Piece]()
        self.flying[request.index] = sent, pieces
        status, error = RequestStatus.COMPLETED, None
        refusal: str | None = None
        cancelled = False
        try:
            async with asyncio.timeout(max(0.0, give_up_s - sent)):
                async with self._session.post(
                    self._url, data=body, headers=self._headers, allow_redirects=False
                ) as response:
                    if response.status != 200:
                        place = response.headers.get("Location")
                        refusal = f"HTTP {response.status}: {f'refers to {place[:200]} ' if place else ''}"
                        refusal += words_of((await response.content.read(_BODY_LIMIT)).decode("utf-8", "replace"))[:200]
                    else:
                        echo = len(body) * request.continues  # vLLM sends the prompt's tokens with the answer's
                        limit = _ANSWER_LIMIT + _TOKEN_LIMIT * request.max_tokens + echo
                        await self._receive(response.content, pieces, limit)
        except TimeoutError:
            status, error = RequestStatus.TIMED_OUT, "its deadline passed before its last token"
        except asyncio.CancelledError:
            cancelled = True
            status, error = RequestStatus.TIMED_OUT, "the run was ended before its last token"
        except (aiohttp.ClientError, HttpProcessingError, OSError) as reason:
            error = f"{type(reason).__name__}: {explained(reason) or reason}"
            status = RequestStatus.CONNECTION_LOST
        except MalformedError as reason:
            pieces.clear()
            status, error = RequestStatus.MALFORMED, str(reason)
        if refusal is not None:
            status, error = RequestStatus.REFUSED, refusal
        del self.flying[request.index]
        record = _record(request, len(body), sent, self._elapsed(), pieces, status, error)
        self._store(record)
        if cancelled:
            raise asyncio.CancelledError
        return record, pieces

    def in_flight(self) -> list[tuple[int, float, float | None]]:
        """Return number, time of sending and time of the first event of each request in flight."""
        return [
            (index, sent, next((at for at, piece in pieces if _DATA in piece), None))
            for index, (sent, pieces) in self.flying.items()
        ]

    async def _receive(self, content: aiohttp.StreamReader, pieces: list[Piece], limit: int) -> None:
        size = 0
        async for chunk in content.iter_any():
            pieces.append((self._elapsed(), chunk))
            size += len(chunk)
            if size > limit:
                raise MalformedError(f"an answer of more than {limit} bytes")


def record_without_answer(request: PlannedRequest, status: RequestStatus, error: str | None) -> RequestRecord:
    """Return the record of a request that has no answer: its plan and how it ended."""
    return RequestRecord(
        index=request.index,
        name=request.name,
        status=status,
        planned_input=request.prompt_tokens,
        planned_output=request.max_tokens,
        due_s=request.at_s,
        error=error,
        session=request.session,
        turn=request.turn,
    )


def _record(
    request: PlannedRequest,
    size: int,
    sent: float,
    ended: float,
    pieces: list[Piece],
    status: RequestStatus,
    error: str | None,
) -> RequestRecord:
    try:
        answer = read_answer(pieces)
        _check_counts(answer, request, size)
    except MalformedError as reason:
        return replace(record_without_answer(request, RequestStatus.MALFORMED, str(reason)), sent_s=sent, end_s=ended)
    if status is RequestStatus.COMPLETED or answer.finished:  # the connection may do anything after [DONE]
        status, error = _answer_status(answer, request)
    times = answer.times_s
    return replace(
        record_without_answer(request, status, error),
        sent_s=sent,
        first_token_s=times[0] if times else None,
        end_s=times[-1] if times and status is RequestStatus.COMPLETED else ended,
        input_tokens=answer.input_tokens,
        output_tokens=answer.output_tokens,
        gaps_s=tuple(later - earlier for earlier, later in pairwise(times)),
    )


def _check_counts(answer: StreamedAnswer, request: PlannedRequest, size: int) -> None:
    """Refuse token counts that no server has for a request whose body has `size` bytes."""
    if (answer.output_tokens or 0) > request.max_tokens:
        raise MalformedError(f"completion_tokens={answer.output_tokens}: more than the {request.max_tokens} asked for")
    most = size + _TEMPLATE_LIMIT  # a token of the body has a byte or more
    if (answer.input_tokens or 0) > most:
        raise MalformedError(f"prompt_tokens={answer.input_tokens}: more than {most}, for a body of {size} bytes")


def _answer_status(answer: StreamedAnswer, request: PlannedRequest) -> tuple[RequestStatus, str | None]:
    """Return the status of an answer whose stream ended, and the reason if it is not complete.

    An answer with a schema may be short, but is no valid JSON if the limit of tokens cut it.
    """
    if answer.error is not None:
        return RequestStatus.MALFORMED, f"the stream held an error: {answer.error}"
    if not answer.finished and answer.end is None:  # some servers send no [DONE]
        return RequestStatus.CONNECTION_LOST, "the stream ended without [DONE]"
    tokens = answer.output_tokens if answer.output_tokens is not None else len(answer.times_s)
    if request.json_schema is not None and answer.end == "length":
        return RequestStatus.INCOMPLETE, f"cut at {tokens} tokens, before the end of its JSON"
    if not answer.times_s or (request.json_schema is None and tokens < request.max_tokens):
        return RequestStatus.INCOMPLETE, f"{tokens} of {request.max_tokens} tokens"
    return RequestStatus.COMPLETED, None
