"""Send one request, time stamp its answer as it arrives, and record how it ended."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

import aiohttp
from aiohttp.http_exceptions import HttpProcessingError

from tuner.loadgen.plan import PlannedRequest
from tuner.loadgen.stream import MalformedError, Piece, StreamedAnswer, read_answer
from tuner.transport import explained
from tuner.workloads.results.requests import RequestRecord, RequestStatus

API_KEY_VARIABLE = "TUNER_API_KEY"
"""The environment variable with the server's key; it is not `OPENAI_API_KEY`, which belongs to another server."""

_BODY_LIMIT = 4096
_TEMPLATE_LIMIT = 100_000
"""Most tokens that a server's chat template adds to a prompt."""
_ANSWER_LIMIT = 2**20
_TOKEN_LIMIT = 2**12
"""The largest answer has `_ANSWER_LIMIT` bytes and `_TOKEN_LIMIT` for each token; an event has about 300."""


class RequestSender:
    """Sends requests to one server, with one connection pool and one clock (seconds since the run began)."""

    def __init__(
        self,
        session: aiohttp.ClientSession,
        url: str,
        elapsed: Callable[[], float],
        store: Callable[[RequestRecord], None],
    ) -> None:
        self._session = session
        self._url = url
        self._elapsed = elapsed
        self._store = store
        key = os.environ.get(API_KEY_VARIABLE)
        self._headers = {"Content-Type": "application/json", **({"Authorization": f"Bearer {key}"} if key else {})}

    async def send(self, request: PlannedRequest, body: bytes, give_up_s: float) -> None:
        """Send a request and store its record, also when cancelled; failures of the server raise no exception.

        Args:
            request: the request.
            body: its encoded body.
            give_up_s: when the request times out, in seconds since the run began.
        """
        sent, pieces = self._elapsed(), list[Piece]()
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
                        refusal += (await response.content.read(_BODY_LIMIT)).decode("utf-8", "replace")[:200]
                    else:
                        limit = _ANSWER_LIMIT + _TOKEN_LIMIT * request.max_tokens
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
        self._store(_record(request, len(body), sent, self._elapsed(), pieces, status, error))
        if cancelled:
            raise asyncio.CancelledError

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
    """Refuse token counts that no server has for a request whose body has `size` bytes.

    Raises:
        MalformedError: with the count.
    """
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
    if not answer.finished:
        return RequestStatus.CONNECTION_LOST, "the stream ended without [DONE]"
    tokens = answer.output_tokens if answer.output_tokens is not None else len(answer.times_s)
    if request.json_schema is not None and answer.cut:
        return RequestStatus.INCOMPLETE, f"cut at {tokens} tokens, before the end of its JSON"
    if not answer.times_s or (request.json_schema is None and tokens < request.max_tokens):
        return RequestStatus.INCOMPLETE, f"{tokens} of {request.max_tokens} tokens"
    return RequestStatus.COMPLETED, None
