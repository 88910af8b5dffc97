"""Server-sent events, from bytes written by hand to tokens and their times; and llama.cpp's."""

import json
from itertools import pairwise

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tuner.loadgen.client import MalformedError, Piece, StreamedAnswer, read_answer

FIRST = b'data: {"choices": [{"text": "a"}]}\n\n'
SECOND = b'data: {"choices": [{"text": " b"}]}\r\n\r\n'
USAGE = b'data: {"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 2}}\n\n'
DONE = b"data: [DONE]\n\n"
WHOLE = b": hello\n\n" + FIRST + b": ping\r\n\r\n" + SECOND + USAGE + DONE
ENDS = (len(b": hello\n\n") + len(FIRST), len(WHOLE) - len(USAGE) - len(DONE) - 1)
"""The number of bytes after which each of the two tokens is whole: a CR ends a line, before its LF."""

ANY_PACE = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True)
"""No deadline, so that a busy machine fails no test; the same examples in every run."""

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
USAGES = JSON | st.fixed_dictionaries({"prompt_tokens": JSON, "completion_tokens": JSON})


def answer_to(*events: bytes) -> StreamedAnswer:
    """Read events that all arrived after one second."""
    return read_answer([(1.0, b"".join(events))])


def cut(stream: bytes, *places: int) -> list[Piece]:
    """Cut a stream; each piece's time is the number of bytes that have arrived with it."""
    return [(float(end), stream[begin:end]) for begin, end in pairwise([0, *places, len(stream)])]


def times_of(*places: int) -> tuple[float, ...]:
    """Return when each token of `WHOLE` is whole, cut like that: with the first piece that reaches its end."""
    return tuple(float(min(place for place in (*places, len(WHOLE)) if place >= end)) for end in ENDS)


def test_a_cut_at_any_byte_changes_the_times_only() -> None:
    for place in range(1, len(WHOLE)):
        assert read_answer(cut(WHOLE, place)) == StreamedAnswer(times_of(place), 7, 2, True), place


def test_single_bytes_give_the_same_answer() -> None:
    # ": hello\n\n" has 9 bytes and the first event 36, ": ping\r\n\r\n" has 10 and the second event 39, less its LF.
    assert read_answer(cut(WHOLE, *range(1, len(WHOLE)))) == StreamedAnswer((45.0, 93.0), 7, 2, True)


def test_a_beginning_of_an_answer_is_not_malformed_and_ends_with_its_mark() -> None:
    for end in range(len(WHOLE)):
        answer = answer_to(WHOLE[:end])
        assert answer.finished == (end >= len(WHOLE) - len(b"\n\n")), end
        assert len(answer.times_s) == sum(end >= whole for whole in ENDS), end


def test_each_event_has_the_time_of_its_last_byte() -> None:
    pieces = [(1.0, FIRST + FIRST[:10]), (2.0, FIRST[10:]), (3.5, FIRST + FIRST), (9.0, DONE)]
    assert read_answer(pieces).times_s == (1.0, 2.0, 3.5, 3.5)


def test_an_empty_stream() -> None:
    assert read_answer([]) == StreamedAnswer((), None, None, False)
    assert read_answer([(1.0, b"")]) == StreamedAnswer((), None, None, False)


@pytest.mark.parametrize("end", [b"data: [DONE]", b"data:[DONE]\n", b"data: [DONE]\r", b"data: [DONE] \r\n"])
@pytest.mark.parametrize("before", [b"", b": ping\n\n", b"event: end\n", USAGE[:-1]])
def test_the_last_event_needs_no_empty_line(end: bytes, before: bytes) -> None:
    answer = answer_to(FIRST, before, end)
    assert (answer.finished, answer.times_s) == (True, (1.0,))
    assert answer.output_tokens == (2 if before.startswith(b"data") else None)


@pytest.mark.parametrize("end", [b"data: [DON", b"[DONE]\n\n"[:0], b": [DONE]\n\n", FIRST[:-1], USAGE[:-2]])
def test_another_end_is_none(end: bytes) -> None:
    answer = answer_to(FIRST, end)
    assert (answer.finished, answer.times_s, answer.output_tokens) == (False, (1.0,), None)


WORD = '{"choices": [{"text": "a"}]}'
ENDED = "data: [DONE]\n\n"


@pytest.mark.parametrize("line_end", ["\n", "\r", "\r\n"])
@pytest.mark.parametrize("mark", ["", "\ufeff"])
@pytest.mark.parametrize(
    ("stream", "times"),
    [
        (f"data: {WORD}\n\ndata: {WORD}\n\n{ENDED}", (1, 2)),
        (f"data\n\ndata:\n\n: ping\n:\n\ndata: {WORD}\n\ndata: \n\n{ENDED}", (1,)),
        ('data: {"choices":\ndata: [{"text": "a"}\ndata:]}\n\n' + ENDED, (1,)),
        ('data: {"choices":\n: ping\nid: 7\ndata: [{"text": "a"}]}\n\n' + ENDED, (1,)),
        (f"data: {WORD}\ndata: {WORD}\ndata: [DONE]\n", (1, 2)),
        (f"event: completion\nretry\ndata: {WORD}\n\nevent: end\n{ENDED}", (1,)),
        (f'event: ping\ndata: {{"now": 1}}\n\ndata: {{"type": "ping"}}\n\ndata: {WORD}\n\n{ENDED}', (1,)),
        (f"event: ping\ndata: 2026-11-30 10:00:00\n\ndata: {WORD}\n\n{ENDED}", (1,)),
        (f"data: : OPENROUTER PROCESSING\n\ndata: {{}}\n\ndata: {WORD}\n\n{ENDED}", (1,)),
        (f'data: {{"object": "chat.completion.chunk", "choices": null}}\n\ndata: {WORD}\n\n{ENDED}', (1,)),
    ],
)
def test_the_forms_of_a_stream(stream: str, times: tuple[int, ...], mark: str, line_end: str) -> None:
    content = (mark + stream).replace("\n", line_end).encode()
    places, counted = [], 0
    for place in range(1, len(content)):  # the shortest beginning with one more token ends with that token's event
        pieces = [(float(each + 1), content[each : each + 1]) for each in range(place)]
        found = len(read_answer(pieces).times_s)
        places += [place] if found > counted else []
        counted = found
    assert len(read_answer([(1.0, content)]).times_s) == len(times)
    whole = read_answer([(float(place), content[place - 1 : place]) for place in range(1, len(content) + 1)])
    assert (whole.finished, len(whole.times_s), whole.error) == (True, len(times), None)
    assert all(at <= place for at, place in zip(whole.times_s, places, strict=True))


@pytest.mark.parametrize(
    "event",
    [
        'event: error\ndata: {"message": "overloaded"}\n\n',
        'event: error\ndata: {"error": {"message": "overloaded"}}\n\n',
        "event: error\ndata: overloaded\n\n",
        'error: {"code": 503, "message": "overloaded"}\n\n',
        'data: {"object": "error", "message": "overloaded", "code": 500}\n\n',
        'data: {"error": "overloaded", "choices": [{"text": "", "finish_reason": "error"}]}\n\n',
        'data: {"choices": [{"text": "", "finish_reason": "abort"}], "why": "overloaded"}\n\n',
    ],
)
def test_an_error_within_a_stream_is_kept(event: str) -> None:
    answer = answer_to(FIRST, event.encode(), DONE)
    assert answer.finished
    assert answer.error is not None
    assert "overloaded" in answer.error


def test_every_event_with_a_text_is_a_token_even_an_empty_text() -> None:
    empty = b'data: {"choices": [{"text": ""}]}\n\n'
    assert answer_to(FIRST, empty, DONE).times_s == (1.0, 1.0)


@pytest.mark.parametrize(
    ("delta", "tokens"),
    [
        ({"content": "a"}, 1),
        ({"reasoning_content": "hm"}, 1),
        ({"reasoning": "hm", "content": None}, 1),
        ({"content": "", "reasoning_details": [{"type": "reasoning.text", "text": "hm"}]}, 1),
        ({"thinking": "hm"}, 1),
        ({"tool_calls": [{"index": 0, "function": {"name": "f", "arguments": ""}}]}, 1),
        ({"tool_calls": [{"index": 0, "function": {"arguments": "{}"}}], "content": None}, 1),
        ({"tool_calls": []}, 0),
        ({"refusal": "no"}, 1),
        ({"role": "assistant", "content": ""}, 0),
        ({"role": "assistant"}, 0),
        ({}, 0),
        (None, 0),
    ],
)
def test_in_a_chat_only_content_is_a_token(delta: object, tokens: int) -> None:
    event = b"data: " + json.dumps({"choices": [{"index": 0, "delta": delta}]}).encode() + b"\n\n"
    assert len(answer_to(event, DONE).times_s) == tokens


def test_the_last_usage_counts_and_none_is_no_usage() -> None:
    running = b'data: {"choices": [{"text": "a"}], "usage": {"prompt_tokens": 7, "completion_tokens": 1}}\n\n'
    absent = b'data: {"choices": [{"text": "a"}], "usage": null}\n\n'
    assert answer_to(running, USAGE, absent, DONE) == StreamedAnswer((1.0, 1.0), 7, 2, True)


def test_a_usage_may_leave_a_count_out() -> None:
    answer = answer_to(b'data: {"choices": [], "usage": {"prompt_tokens": 0}}\n\n', DONE)
    assert (answer.input_tokens, answer.output_tokens) == (0, None)


COUNTS = ("true", "2.5", "NaN", "Infinity", "9223372036854775808", "1e19", '"7"', "-1")
"""No whole numbers that a column holds."""


@pytest.mark.parametrize("usage", ["5", "[1]", '"x"', *(f'{{"completion_tokens": {count}}}' for count in COUNTS)])
def test_a_usage_that_counts_nothing_is_malformed(usage: str) -> None:
    with pytest.raises(MalformedError, match="a usage without token counts"):
        answer_to(f'data: {{"choices": [], "usage": {usage}}}\n\n'.encode())


@pytest.mark.parametrize("count", ["4", "4.0", "4e0"])
@pytest.mark.parametrize(
    "form", ['{{"choices": [], "usage": {}}}', '{{"usage": {}}}', '{{"choices": null, "usage": {}}}']
)
def test_a_usage_needs_no_choices_and_a_whole_count_may_be_a_float(count: str, form: str) -> None:
    usage = form.format(f'{{"completion_tokens": {count}}}')
    answer = answer_to(FIRST, f"data: {usage}\n\n".encode(), b'data: {"usage": null}\n\n', DONE)
    assert (answer.output_tokens, type(answer.output_tokens), answer.finished) == (4, int, True)


def test_a_text_of_null_is_no_token() -> None:
    assert answer_to(b'data: {"choices": [{"text": null}]}\n\n', FIRST, DONE).times_s == (1.0,)


def test_an_error_event_is_stored_and_parsing_continues() -> None:
    answer = answer_to(FIRST, b'data: {"error": {"message": "out of memory"}}\n\n', FIRST, DONE)
    assert answer == StreamedAnswer((1.0, 1.0), None, None, True, '{"error": {"message": "out of memory"}}')


@pytest.mark.parametrize("error", [b"null", b"false", b'""', b"{}"])
def test_an_empty_error_is_none(error: bytes) -> None:
    answer = answer_to(b'data: {"error": %s, "choices": [{"text": "a"}]}\n\n' % error, DONE)
    assert answer == StreamedAnswer((1.0,), None, None, True)


def test_any_error_text_can_be_stored() -> None:
    error = answer_to(b'data: {"error": "\\ud800' + b"x" * 999 + b'"}\n\n').error
    assert error is not None
    assert error.encode("utf-8").startswith(b'{"error": "\\ud800xxx')
    assert len(error) == 200


@pytest.mark.parametrize(
    ("event", "message"),
    [
        (b'data: {"choices": [\n\n', "no JSON"),
        (b"data: a\ndata: b\n\n", "no JSON"),
        (b"data: \xff\n\n", "no JSON"),
        (b"data: " + b"[" * 100_000 + b"\n\n", "no JSON"),
        (b'data: "text"\n\n', "no object"),
        (b"data: 5\n\n", "no object"),
        (b'data: {"text": "a"}\n\n', "an event without choices"),
        (b'data: {"choices": {"text": "a"}}\n\n', "an event without choices"),
        (b'data: {"choices": ["a"]}\n\n', "no object but a str"),
        (b"<html>\n\n", "no field of an event: b'<html>'"),
        (b'{"object": "error", "message": "no"}', "no field of an event"),
        (b'{"object": "error"}\n\n', "no field of an event"),
        (b"Not found", "no field of an event"),
    ],
)
def test_an_event_of_another_form_is_malformed(event: bytes, message: str) -> None:
    with pytest.raises(MalformedError, match=message):
        answer_to(FIRST, event)


def test_events_in_the_last_piece_are_read() -> None:
    with pytest.raises(MalformedError, match="no JSON"):
        answer_to(FIRST, DONE, b"data: {\n\n")


@ANY_PACE
@given(st.lists(st.tuples(st.floats(0, 9), st.binary(max_size=40) | st.sampled_from([FIRST, DONE, b"data: ", b"\n"]))))
def test_any_bytes_are_an_answer_or_malformed(pieces: list[Piece]) -> None:
    try:
        answer = read_answer(pieces)
    except MalformedError as reason:
        str(reason).encode("utf-8")
    else:
        assert set(answer.times_s) <= {at for at, _ in pieces}


@ANY_PACE
@given(st.fixed_dictionaries({}, optional={"choices": JSON | st.just([]), "usage": USAGES, "error": JSON}))
def test_any_object_is_an_event_or_malformed(event: dict[str, object]) -> None:
    try:
        answer = answer_to(b"data: " + json.dumps(event).encode() + b"\n\n")
    except MalformedError:
        return
    assert (answer.error is None) == (not event.get("error"))
    for count in (answer.input_tokens, answer.output_tokens):
        assert count is None or (type(count) is int and 0 <= count < 2**63)


def test_an_endless_event_is_read_in_linear_time() -> None:
    # 64 MiB in 4,096 pieces; joining each to all before it would copy 128 GiB.
    pieces = [(1.0, b"data: ")] + [(1.0, b"x" * 2**14)] * 2**12
    assert read_answer(pieces) == StreamedAnswer((), None, None, False)


TEXT = b'data: {"choices": [{"text": " ba", "finish_reason": null}]}\n\n'
END = (
    b'data: {"choices": [{"text": "", "finish_reason": "length"}], '
    b'"usage": {"prompt_tokens": 7, "completion_tokens": 2}, "timings": {}}\n\n'
)


def test_the_last_event_is_no_token() -> None:
    answer = read_answer([(1.0, TEXT), (2.0, TEXT), (3.0, END + DONE)])
    assert answer == StreamedAnswer((1.0, 2.0), 7, 2, True, end="length")


def test_an_answer_of_bytes_that_are_no_text_ends_with_its_last_event() -> None:
    assert read_answer([(3.0, END + DONE)]) == StreamedAnswer((3.0,), 7, 2, True, end="length")
