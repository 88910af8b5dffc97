"""The schedule of a run: all its requests, drawn from one seed before the first one is sent, and notes on its files.

The same seed gives the same schedule in every process. Arrivals, classes, lengths, documents, texts, adapters and
sessions have random streams of their own, so that, for instance, another length distribution does not move any arrival.

An arrival is a request, or a session with all its turns. The answers of a run decide when a later turn is due.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice, takewhile
from pathlib import Path

import numpy as np
from numpy.random import Generator, SeedSequence

from tuner.errors import UserError
from tuner.workloads.prefixes import Segment, shared_segments
from tuner.workloads.reading import MAX_REQUESTS, read_texts
from tuner.workloads.request_class import RequestClass, TextFile
from tuner.workloads.spec import Suite, Workload
from tuner.workloads.traces.formats import read_recording
from tuner.workloads.traces.recording import RecordedRequest
from tuner.workloads.traffic import Closed, TraceArrivals, Traffic


@dataclass(frozen=True)
class OfferedRequest:
    """One request of a schedule.

    Attributes:
        index: the request's number.
        at_s: when it is due, in seconds from the start; None in a closed loop, and for a later turn of a session.
        name: its class.
        input_tokens: tokens of its own part of the prompt, without system prompt, document, segments and earlier turns;
            None for a prompt from a file.
        output_tokens: tokens of the answer; None for the length of the recorded answer.
        document: number of the document that the prompt begins with; None without one.
        text_seed: seed of a generated prompt's text.
        text: number of the prompt in the class's file; None for a generated prompt.
        adapter: name of the LoRA adapter; None for the model itself.
        segments: parts of the prompt before its own part that other requests of its class have, too.
        session: number of its session; None: it stands alone.
        turn: number of its turn, from 0. The session goes on with the prompt and the answer of the first request of a
            turn.
        pause_s: from the last answer of the turn before it until it is due.
        context_tokens: tokens of the prompts and answers of earlier turns, without system prompt and document.
        afresh: whether a later turn does not begin with them, as in a recording whose prompts are others.
    """

    index: int
    at_s: float | None
    name: str
    input_tokens: int | None
    output_tokens: int | None
    document: int | None
    text_seed: int
    text: int | None = None
    adapter: str | None = None
    segments: tuple[Segment, ...] = ()
    session: int | None = None
    turn: int = 0
    pause_s: float = 0.0
    context_tokens: int = 0
    afresh: bool = False

    @property
    def goes_on(self) -> bool:
        """Whether the prompt begins with the earlier turns."""
        return self.turn > 0 and not self.afresh


def make_schedule(traffic: Traffic, seed: int, text_seed: int | None = None) -> list[OfferedRequest]:
    """Return every request of a run, in the order in which they, or their sessions, are due.

    The session with which the number of requests is reached is whole.

    Args:
        traffic: the load.
        seed: determines the schedule.
        text_seed: another seed of the texts, which leaves arrivals, classes and lengths as they are; None: `seed`.

    Raises:
        UserError: if a file of times or lengths cannot be read, no request is due within the duration, or too many
            requests are due.
    """
    arrivals, choice, lengths, documents, texts, adapters, sessions = _streams(seed, 7)
    if text_seed is not None:
        texts = _streams(text_seed, 7)[4]
    times = due_times(traffic, arrivals)
    if not times:
        raise UserError(f"no request is due within {traffic.duration_s:g} s; raise the rate or the duration")
    names = list(traffic.classes)
    weights = np.array([traffic.classes[name].weight for name in names], dtype=float)
    chosen = choice.choice(len(names), size=len(times), p=weights / weights.sum())
    counts = np.bincount(chosen, minlength=len(names)).tolist()
    drawn = [
        _drawn(traffic.classes[name], len(times), count, lengths, documents, texts)
        for name, count in zip(names, counts, strict=True)
    ]
    seeds = texts.integers(0, 2**31, len(times)).tolist()
    recorded = [_recorded_sessions(traffic.classes[name]) for name in names]
    offered: list[OfferedRequest] = []
    for number, (at, k) in enumerate(zip(times, chosen.tolist(), strict=True)):
        if len(offered) >= (traffic.requests or MAX_REQUESTS):
            break
        inputs, outputs, document, text, segments = next(drawn[k])
        kind = traffic.classes[names[k]]
        adapter = kind.adapters[int(adapters.integers(len(kind.adapters)))] if kind.adapters else None
        first = OfferedRequest(
            len(offered), at, names[k], inputs, outputs, document, seeds[number], text, adapter, segments
        )
        if kind.session is not None:
            offered += _session(kind, replace(first, session=number), sessions, texts)
        elif kind.has_sessions:
            offered += _recorded_session(kind, replace(first, session=number), next(recorded[k]), sessions, texts)
        else:
            offered.append(first)
    return offered


def _session(kind: RequestClass, first: OfferedRequest, random: Generator, texts: Generator) -> list[OfferedRequest]:
    """Return all requests of a session, turn by turn, from its first one."""
    shape = kind.session
    assert shape is not None
    assert kind.input is not None  # `RequestClass` refuses sessions without lengths
    assert kind.output is not None
    turns = shape.turns.draw(random, 1)[0]
    pauses = [0] * turns if shape.pause_ms is None else shape.pause_ms.draw(random, turns)
    calls = shape.fan_out.draw(random, turns)
    inputs, outputs = (length.draw(random, sum(calls)) for length in (kind.input, kind.output))
    seeds = texts.integers(0, 2**31, sum(calls)).tolist()
    found, context = list[OfferedRequest](), 0
    for turn, fan_out in enumerate(calls):
        begin = len(found)
        for place in range(begin, begin + fan_out):
            own = first
            if place:
                own = replace(first, input_tokens=inputs[place], output_tokens=outputs[place], text_seed=seeds[place])
            due, pause = (None, pauses[turn] / 1000.0) if turn else (first.at_s, 0.0)
            index = first.index + place
            found.append(replace(own, index=index, at_s=due, turn=turn, pause_s=pause, context_tokens=context))
        context += (found[begin].input_tokens or 0) + (found[begin].output_tokens or 0)
    return found


def _streams(seed: int, count: int) -> list[Generator]:
    return [np.random.default_rng(child) for child in SeedSequence(seed).spawn(count)]


def due_times(traffic: Traffic, random: Generator | None = None) -> list[float] | list[None]:
    """Return when each request is due, in seconds; None in a closed loop. A trace needs no random stream.

    Raises:
        UserError: if a file of times cannot be read, or too many requests are due.
    """
    if isinstance(traffic.arrivals, Closed):
        assert traffic.requests is not None  # `Traffic` refuses a closed loop without them
        return [None] * traffic.requests
    times = traffic.arrival_times(random or np.random.default_rng(0))
    if traffic.duration_s is not None:
        end = traffic.duration_s
        times = takewhile(lambda at: at < end, times)
    due = list(islice(times, traffic.requests or MAX_REQUESTS + 1))
    if len(due) > MAX_REQUESTS:
        raise UserError(f"the traffic has more than {MAX_REQUESTS} requests; lower its rate or its duration")
    if due and not math.isfinite(due[-1]):
        raise UserError("the last requests are never due; raise the rate, or the speed of the trace")
    return due


def _drawn(
    request_class: RequestClass, count: int, used: int, lengths: Generator, documents: Generator, texts: Generator
) -> Iterator[tuple[int | None, int | None, int | None, int | None, tuple[Segment, ...]]]:
    """Return input tokens, output tokens, document, text and segments of `count` requests of a class.

    The first `used` ones are sent: all classes draw as many, so that no class moves another one's requests.
    """
    inputs: Sequence[int | None] = (
        [None] * count if request_class.input is None else request_class.input.draw(lengths, count)
    )
    outputs: Sequence[int | None] = (
        [None] * count if request_class.output is None else request_class.output.draw(lengths, count)
    )
    segments: Sequence[tuple[Segment, ...]] = [()] * count
    if request_class.trace is not None and not request_class.has_sessions:
        inputs, outputs, segments = _recorded(request_class.trace.file, used)
    picked: list[int | None] = [None] * count
    if request_class.prefix is not None:
        picked = documents.choice(
            request_class.prefix.documents, size=count, p=request_class.prefix.probabilities()
        ).tolist()
    chosen: list[int | None] = [None] * count
    if isinstance(request_class.text, TextFile):
        chosen = _in_shuffled_rounds(len(read_texts(request_class.text.file).texts), count, texts)
    return zip(inputs, outputs, picked, chosen, segments, strict=False)


def _recorded(file: Path, count: int) -> tuple[list[int], list[int], list[tuple[Segment, ...]]]:
    """Return own tokens, output tokens and segments of `count` requests of a recording, which begins again at its end.

    Each round has segments of its own. The last token of a prompt is its own, because an engine computes it always.
    """
    recording = read_recording(file)
    inputs, outputs, segments = list[int](), list[int](), list[tuple[Segment, ...]]()
    while len(inputs) < count:
        requests = recording.requests[: count - len(inputs)]
        paths = _paths(requests, recording.block_tokens, segments)
        shared = [sum(each.tokens for each in path) for path in paths]
        inputs += [each.input_tokens - tokens for each, tokens in zip(requests, shared, strict=True)]
        outputs += [each.output_tokens for each in requests]
        segments += paths
    return inputs, outputs, segments


def _paths(
    requests: Sequence[RecordedRequest], block_tokens: int | None, known: Sequence[tuple[Segment, ...]]
) -> list[tuple[Segment, ...]]:
    """Return the segments of each prompt; new ones have numbers above those of known ones."""
    if block_tokens is None:
        return [()] * len(requests)
    first = max((each.number + 1 for path in known for each in path), default=0)
    most = [each.input_tokens - 1 for each in requests]
    return shared_segments([each.blocks for each in requests], most, block_tokens, first)


_Recorded = list[tuple[int, float | None, RecordedRequest, tuple[Segment, ...]]]
"""The requests of a recorded session: turn, pause (None: not known), request and segments."""


def _recorded_sessions(kind: RequestClass) -> Iterator[_Recorded]:
    """Yield the sessions of a recording, round after round without an end; each round has segments of its own."""
    if kind.trace is None or (found := kind.trace.sessions) is None:
        return
    recording, paths = read_recording(kind.trace.file), list[tuple[Segment, ...]]()
    while True:
        paths = _paths(recording.requests, recording.block_tokens, paths)
        for turns in found.sessions:
            yield [
                (number, turn.pause_s, recording.requests[place], paths[place])
                for number, turn in enumerate(turns)
                for place in turn.places
            ]


def _recorded_session(
    kind: RequestClass, first: OfferedRequest, recorded: _Recorded, random: Generator, texts: Generator
) -> list[OfferedRequest]:
    """Return all requests of a recorded session.

    A prompt goes on with the turn before it if `_follows` says so. Otherwise it begins afresh, as it is recorded.
    """
    assert kind.trace is not None
    size = read_recording(kind.trace.file).block_tokens
    seeds = texts.integers(0, 2**31, len(recorded)).tolist()
    found, main = list[OfferedRequest](), dict[int, RecordedRequest]()
    pause_s = 0.0
    for place, (turn, pause, request, path) in enumerate(recorded):
        if turn and turn not in main:
            drawn = kind.trace.pause_ms.draw(random, 1)[0] / 1000.0 if kind.trace.pause_ms is not None else 0.0
            pause_s = drawn if pause is None else pause
        main.setdefault(turn, request)
        before = main.get(turn - 1)
        context = 0
        if before is not None and _follows(before, request, size):
            context, path = before.input_tokens + before.output_tokens, ()
        own = request.input_tokens - context - sum(each.tokens for each in path)
        found.append(
            replace(
                first,
                index=first.index + place,
                at_s=None if turn else first.at_s,
                input_tokens=own,
                output_tokens=request.output_tokens,
                text_seed=seeds[place],
                segments=path,
                turn=turn,
                pause_s=pause_s if turn else 0.0,
                context_tokens=context,
                afresh=turn > 0 and not context,
            )
        )
    return found


def _follows(before: RecordedRequest, after: RecordedRequest, block_tokens: int | None) -> bool:
    """Return whether a prompt is longer than the prompt and answer before it, and begins with that prompt's blocks."""
    whole = 0 if block_tokens is None else before.input_tokens // block_tokens
    is_longer = after.input_tokens > before.input_tokens + before.output_tokens
    return is_longer and after.blocks[:whole] == before.blocks[:whole]


def _in_shuffled_rounds(texts: int, count: int, random: Generator) -> list[int | None]:
    """Return `count` numbers of texts in random order; each text comes once before any comes again."""
    rounds = [random.permutation(texts) for _ in range(-(-count // texts))]
    return [int(number) for number in np.concatenate(rounds)[:count]]


def file_notes(workload: Workload) -> list[str]:
    """Return a line for each trace whose times are sent, and for each file with entries that are left out."""
    loads = workload.loads.values() if isinstance(workload, Suite) else [workload]
    return list(dict.fromkeys(line for load in loads if isinstance(load, Traffic) for line in _notes(load)))


def _notes(traffic: Traffic) -> Iterator[str]:
    if isinstance(traffic.arrivals, TraceArrivals):
        times = due_times(traffic)
        span, speed = (times[-1] or 0.0) - (times[0] or 0.0), traffic.arrivals.speed
        what = "arrivals" if traffic.has_sessions else "requests"
        rate = f", {(len(times) - 1) / span:.3g} {what}/s" if span else ""
        faster = "" if speed == 1 else f" at speed {speed:g}"
        yield f"trace {traffic.arrivals.file.name}: {len(times)} {what} in {span:.4g} s{rate}{faster}"
    if traffic.has_sessions:
        yield f"sessions: {traffic.requests_per_arrival:.3g} requests for each arrival; rates below count requests"
    for each in traffic.sent_classes.values():
        if each.trace is not None:
            recording, name = read_recording(each.trace.file), each.trace.file.name
            for lacking, count in recording.left_out.items():
                yield from _left_out(count, name, lacking)
            yield from (f"{name}: {remark}" for remark in recording.remarks)
        if isinstance(each.text, TextFile):
            yield from _left_out(read_texts(each.text.file).left_out, each.text.file.name, "text of a human")


def _left_out(count: int, name: str, what: str) -> Iterator[str]:
    if count:
        yield f"{name}: {count} {'entry' if count == 1 else 'entries'} without {what} left out"
