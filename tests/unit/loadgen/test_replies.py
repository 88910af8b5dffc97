"""Servers with invalid replies: each has a record with its status, and no exception is raised."""

import asyncio
import random
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from aiohttp.http_parser import HttpResponseParserPy

from tests.some import some
from tests.unit.loadgen.loads import (
    DONE,
    GOOD,
    HEAD,
    TOKEN,
    USAGE,
    Handler,
    asked,
    chunks,
    due,
    forever,
    load_against,
    replying,
    reset,
    stream,
)
from tuner.loadgen import run
from tuner.loadgen.result import read_records, write_records
from tuner.workloads.results import RequestRecord, RequestStatus

COMPLETED = RequestStatus.COMPLETED
INCOMPLETE = RequestStatus.INCOMPLETE
LOST = RequestStatus.CONNECTION_LOST
MALFORMED = RequestStatus.MALFORMED
REFUSED = RequestStatus.REFUSED
TIMED_OUT = RequestStatus.TIMED_OUT


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Start each run at once: these tests compare no start times."""
    monkeypatch.setattr(run, "LEAD_S", 0.0)


def one(handler: Handler, timeout_s: float = 10.0) -> RequestRecord:
    (record,) = load_against(handler, due(0.0, tokens=1), timeout_s=timeout_s).records
    return record


def plain(status: str, body: bytes, *headers: str) -> bytes:
    """Return a whole reply that is no stream."""
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", *headers, "", ""]
    return "\r\n".join(lines).encode("latin-1") + body


REPLIES: dict[str, tuple[bytes, RequestStatus, str]] = {
    "good": (GOOD, COMPLETED, "None"),
    "400": (plain("400 Bad Request", b'{"error": {"message": "too long"}}'), REFUSED, 'HTTP 400: {"error"'),
    "503 without a body": (plain("503 Busy", b""), REFUSED, "HTTP 503: "),
    "429 that is no text": (plain("429 No", b"\xff\xfe\x00a"), REFUSED, "HTTP 429: "),
    "500 of a megabyte": (plain("500 No", b"x" * 2**20), REFUSED, "HTTP 500: xxx"),
    "502 cut short": (plain("502 No", b"x" * 99)[:-50], REFUSED, "HTTP 502: "),
    "a proxy's page": (
        plain("524 No", b"<!DOCTYPE html>\n" + b" " * 300 + b"<title>llm.example | 524: A timeout</title>"),
        *(REFUSED, "HTTP 524: llm.example | 524: A timeout"),
    ),
    "204": (b"HTTP/1.1 204 No Content\r\n\r\n", REFUSED, "HTTP 204"),
    "101": (b"HTTP/1.1 101 S\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\nx", REFUSED, "HTTP 101"),
    "a redirect": (plain("307 T", b"", "Location: /v1/completions"), REFUSED, "HTTP 307: refers to /v1/completions"),
    "HTTP/1.0 until the end": (b"HTTP/1.0 200 OK\r\n\r\n" + TOKEN + USAGE + DONE, COMPLETED, "None"),
    "HTTP/1.0 cut short": (b"HTTP/1.0 200 OK\r\n\r\n" + TOKEN + USAGE, LOST, "ended without [DONE]"),
    "JSON with an error": (plain("200 OK", b'{"error": {"message": "overloaded"}}'), MALFORMED, "overloaded"),
    "JSON over lines": (plain("200 OK", b'{\n  "error": "overloaded"\n}'), MALFORMED, "overloaded"),
    "a redirect to nowhere": (plain("302 T", b"", "Location: http://[no"), REFUSED, "HTTP 302"),
    "an early hint": (b"HTTP/1.1 103 Early Hints\r\n\r\n" + GOOD, COMPLETED, "None"),
    "JSON and no stream": (plain("200 OK", b'{"choices": [{"text": "a"}]}'), MALFORMED, "no field of an event"),
    "a page": (plain("200 OK", b"<html>\n<body>hello</body>\n</html>\n"), MALFORMED, "no field of an event"),
    "an empty body": (plain("200 OK", b""), LOST, "ended without [DONE]"),
    "no [DONE]": (stream(TOKEN, USAGE), LOST, "ended without [DONE]"),
    "no [DONE] after the reason of the end": (
        stream(b'data: {"choices": [{"text": "a", "finish_reason": "length"}]}\n\n', USAGE),
        *(COMPLETED, "None"),
    ),
    "no token": (stream(USAGE.replace(b"1", b"0"), DONE), INCOMPLETE, "0 of 1 tokens"),
    "a usage but no token": (stream(USAGE, DONE), INCOMPLETE, "1 of 1 tokens"),
    "no usage": (stream(TOKEN, DONE), COMPLETED, "None"),
    "more tokens than asked for": (
        stream(TOKEN, USAGE.replace(b"1", b"1000000000000000000"), DONE),
        MALFORMED,
        "completion_tokens=1000000000000000000: more than the 1 asked for",
    ),
    "a prompt of too many tokens": (
        stream(TOKEN, USAGE.replace(b"3", b"300000"), DONE),
        MALFORMED,
        "prompt_tokens=300000",
    ),
    "a prompt with a template": (stream(TOKEN, USAGE.replace(b"3", b"9000"), DONE), COMPLETED, "None"),
    "an error event": (stream(b'data: {"error": {"message": "OOM"}}\n\n', DONE), MALFORMED, "OOM"),
    "an error that is no text": (stream(b'data: {"error": "\\ud800"}\n\n', DONE), MALFORMED, "held an error"),
    "a usage that is none": (stream(TOKEN, b'data: {"choices": [], "usage": 5}\n\n', DONE), MALFORMED, "a usage"),
    "an event that is no text": (stream(b"data: \xff\n\n", DONE), MALFORMED, "no JSON"),
    "an event that is too deep": (stream(b"data: " + b"[" * 99999 + b"\n\n"), MALFORMED, "no JSON"),
    "[DONE] and no last chunk": (HEAD + chunks(TOKEN, USAGE, DONE), COMPLETED, "None"),
    "no HTTP": (b"\x00\xff\xfe garbage\r\n\r\n", LOST, ""),
    "a head cut short": (HEAD[:40], LOST, ""),
    "a chunk that is none": (HEAD + chunks(TOKEN) + b"zz\r\nabc\r\n", LOST, ""),
    "a chunk of 2^160": (HEAD + b"f" * 40 + b"\r\nabc\r\n", LOST, ""),
    "fewer bytes than said": (plain("200 OK", b": ping" * 9)[:-3], LOST, "ClientPayloadError"),
    "a length that is none": (b"HTTP/1.1 200 OK\r\nContent-Length: -5\r\n\r\nabc", LOST, ""),
    "a header of 100 kB": (b"HTTP/1.1 200 OK\r\nX: " + b"a" * 100_000 + b"\r\n\r\n", LOST, ""),
    "a header that is none": (b"HTTP/1.1 200 OK\r\nX y z\r\n\r\n", LOST, ""),
    "a gzip that is none": (plain("200 OK", b"0123456789", "Content-Encoding: gzip"), LOST, ""),
    "a cookie that is none": (plain("500 OK", b"no", "Set-Cookie: \x01=;;=;\xff"), REFUSED, "HTTP 500: no"),
}


@pytest.mark.parametrize("name", REPLIES)
def test_a_reply_and_then_the_end_of_the_connection(name: str, tmp_path: Path) -> None:
    reply, status, message = REPLIES[name]
    record = one(replying(reply))
    assert record.status is status
    assert message in str(record.error)
    assert some(record.end_s) < 5.0
    write_records(tmp_path / "r.jsonl.gz", [record])
    assert read_records(tmp_path / "r.jsonl.gz") == [record]


async def close_at_once(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.close()


async def reset_at_once(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    reset(writer)


async def close_when_asked(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
    await asked(reader)


async def reset_when_asked(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await asked(reader)
    reset(writer)


async def reset_after_done(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Let the client read it all, and then reset the connection instead of ending the body."""
    await asked(reader)
    writer.write(HEAD + chunks(TOKEN, USAGE, DONE))
    await asyncio.sleep(0.1)
    reset(writer)


@pytest.mark.parametrize("handler", [close_at_once, reset_at_once, close_when_asked, reset_when_asked])
def test_a_connection_that_ends_without_an_answer_is_lost(handler: Handler) -> None:
    record = one(handler)
    assert record.status is LOST
    assert (record.first_token_s, record.gaps_s) == (None, ())
    assert record.sent_s is not None
    assert record.end_s is not None
    assert record.error


def test_an_answer_ends_with_done_whatever_the_connection_does_afterwards() -> None:
    assert one(reset_after_done).status is COMPLETED
    assert one(replying(HEAD + chunks(TOKEN, USAGE, DONE), stay=True), timeout_s=0.3).status is COMPLETED
    short = one(replying(HEAD + chunks(USAGE.replace(b"1", b"0"), DONE), stay=True), timeout_s=0.3)
    assert (short.status, short.error) == (INCOMPLETE, "0 of 1 tokens")


def test_an_answer_with_a_schema_may_be_short_but_not_cut() -> None:
    asked_for = [replace(request, json_schema={"type": "object"}) for request in due(0.0, tokens=9)]
    (record,) = load_against(replying(GOOD), asked_for).records
    assert (record.status, record.planned_output, record.output_tokens) == (COMPLETED, 9, 1)
    end = b'data: {"choices": [{"index": 0, "text": "a", "finish_reason": "length"}]}\n\n'
    (cut,) = load_against(replying(stream(end, USAGE, DONE)), asked_for).records
    assert (cut.status, cut.error) == (INCOMPLETE, "cut at 1 tokens, before the end of its JSON")
    (full,) = load_against(replying(stream(end, USAGE, DONE)), due(0.0, tokens=1)).records
    assert full.status is COMPLETED
    (without,) = load_against(replying(GOOD), due(0.0, tokens=9)).records
    assert (without.status, without.error) == (INCOMPLETE, "1 of 9 tokens")


async def never_reading(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.transport.pause_reading()  # type: ignore[attr-defined]
    await forever()


async def byte_by_byte(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Send a header that never ends, slowly."""
    await asked(reader)
    writer.write(b"HTTP/1.1 200 OK\r\nX: ")
    while True:
        writer.write(b"a")
        await writer.drain()
        await asyncio.sleep(0.02)


async def hints_without_end(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await asked(reader)
    while True:
        writer.write(b"HTTP/1.1 103 Early Hints\r\n\r\n")
        await writer.drain()
        await asyncio.sleep(0.02)


async def pings_without_end(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await asked(reader)
    writer.write(HEAD)
    while True:
        writer.write(chunks(b": ping\n\n"))
        await writer.drain()
        await asyncio.sleep(0.02)


@pytest.mark.parametrize(
    ("limit", "handler"),
    [
        ("timeout_s", replying(b"", stay=True)),
        ("timeout_s", never_reading),
        ("timeout_s", byte_by_byte),
        ("timeout_s", hints_without_end),
        ("timeout_s", pings_without_end),
        ("limit_s", replying(b"", stay=True)),
        ("limit_s", pings_without_end),
    ],
)
def test_no_reply_exceeds_its_deadline(limit: str, handler: Handler) -> None:
    changes = {"timeout_s": 10.0, "limit_s": 20.0, limit: 0.3}
    result = load_against(handler, due(0.0, tokens=1), **changes)
    (record,) = result.records
    assert record.status is TIMED_OUT
    assert 0.3 <= some(record.end_s) < 9.0  # a busy machine is late; without its limit, the request would take 10 s
    assert result.wall_s < 9.0


def test_an_unread_large_body_times_out() -> None:
    (request,) = due(0.0, tokens=1)
    large = replace(request, prompt="x" * 10_000_000)
    (record,) = load_against(never_reading, [large], timeout_s=0.5).records
    assert record.status is TIMED_OUT
    assert some(record.end_s) >= 0.5


def test_a_refusal_with_a_slow_body_is_a_refusal() -> None:
    record = one(replying(plain("503 Busy", b"no")[:-2], stay=True), timeout_s=0.4)
    assert (record.status, record.error) == (REFUSED, "HTTP 503: ")
    assert some(record.end_s) >= 0.4


def test_an_answer_above_the_limit_is_malformed_and_not_stored() -> None:
    async def flood(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await asked(reader)
        writer.write(HEAD)
        while True:
            writer.write(chunks(TOKEN, DONE, b": " + b"x" * 2**16 + b"\n"))
            await writer.drain()

    record = one(flood)
    assert (record.status, record.error) == (MALFORMED, "an answer of more than 1052672 bytes")
    assert (record.first_token_s, record.gaps_s) == (None, ())


@pytest.fixture(params=["C", "Python"])
def parser(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Both parsers of aiohttp, in C and in Python (used without a wheel); they fail differently."""
    if request.param == "Python":
        monkeypatch.setattr("aiohttp.client_proto.HttpResponseParser", HttpResponseParserPy)
    return str(request.param)


async def bad_chunk_later(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await asked(reader)
    writer.write(HEAD + chunks(TOKEN))
    await asyncio.sleep(0.05)
    writer.write(b"zz\r\nabc\r\n")
    await forever()


def test_a_bad_chunk_after_good_ones(parser: str) -> None:
    # The parser in C closes the connection without an error for the reader, so that only the deadline ends it.
    record = one(bad_chunk_later, timeout_s=0.5)
    assert record.status is (TIMED_OUT if parser == "C" else LOST)
    assert record.first_token_s is not None
    assert some(record.end_s) < 1.0


def mutants(count: int) -> list[list[bytes]]:
    """Return replies with bytes changed, lost, doubled or made up, each in one to three pieces."""
    chance = random.Random(7)
    made = []
    for _ in range(count):
        reply = bytearray(GOOD if chance.random() < 0.8 else plain("429 Too Many", b"no"))
        for _ in range(chance.randint(1, 2)):
            place = chance.randrange(len(reply))
            span = chance.randint(0, 12)
            new = [b"", chance.randbytes(span), bytes(reply[place : place + span]) * 2, b"\r\n", b"\n\n"]
            reply[place : place + span] = chance.choice(new)
        cuts = sorted(chance.randrange(len(reply)) for _ in range(chance.randint(0, 2)))
        made.append([bytes(reply[begin:end]) for begin, end in pairwise([0, *cuts, len(reply)])])
    return made


@pytest.mark.usefixtures("parser")
def test_no_reply_raises(tmp_path: Path) -> None:
    waiting = iter(mutants(150))

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            await asked(reader)
            for piece in next(waiting, [GOOD]):
                writer.write(piece)
                await asyncio.sleep(0.005)

    result = load_against(handle, due(*[None] * 150, tokens=1), users=10, timeout_s=0.2)
    assert [record.index for record in result.records] == list(range(150))
    found = {record.status for record in result.records}
    assert {COMPLETED, LOST, REFUSED, MALFORMED, TIMED_OUT} <= found
    assert RequestStatus.NOT_SENT not in found
    for record in result.records:
        assert some(record.end_s) - some(record.sent_s) < 2.0
    write_records(tmp_path / "r.jsonl.gz", result.records)
    assert read_records(tmp_path / "r.jsonl.gz") == result.records
