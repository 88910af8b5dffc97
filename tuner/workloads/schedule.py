"""The requests of a load, made before the run from one seed: data, the same in every process.

Arrivals, classes, lengths, documents and texts are drawn from streams of their own, so that another length
distribution leaves every arrival where it was.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice, takewhile

import numpy as np
from numpy.random import Generator, SeedSequence

from tuner.errors import UserError
from tuner.workloads.arrivals import Closed
from tuner.workloads.texts import read_texts
from tuner.workloads.traffic import RequestClass, TextFile, Traffic


@dataclass(frozen=True)
class OfferedRequest:
    """One request that the load offers to the server.

    `at_s` is when it is due, in seconds from the start; None in a closed loop, where a user sends it when it is free.
    `input_tokens` are the prompt's own, without the system prompt and the document; None for a prompt of the user's,
    which is number `text` of its file. `output_tokens` is None where the answer is as long as the recorded one.
    `document` is the prefix's number, None without one. `text_seed` makes a made prompt's own text.
    """

    index: int
    at_s: float | None
    name: str
    input_tokens: int | None
    output_tokens: int | None
    document: int | None
    text_seed: int
    text: int | None = None


def make_schedule(traffic: Traffic, seed: int) -> list[OfferedRequest]:
    """Return every request of the load, in the order in which they are due.

    Raises:
        UserError: when a file of times or lengths cannot be read, or nothing falls into the duration.
    """
    arrivals, choice, lengths, documents, texts = _streams(seed, 5)
    times = _times(traffic, arrivals)
    if not times:
        raise UserError(f"no request falls into {traffic.duration_s:g} s; raise the rate or the duration")
    names = list(traffic.classes)
    weights = np.array([traffic.classes[name].weight for name in names], dtype=float)
    chosen = choice.choice(len(names), size=len(times), p=weights / weights.sum())
    drawn = [_drawn(traffic.classes[name], len(times), lengths, documents, texts) for name in names]
    seeds = texts.integers(0, 2**31, len(times)).tolist()
    offered = []
    for index, (at, k) in enumerate(zip(times, chosen.tolist(), strict=True)):
        inputs, outputs, document, text = next(drawn[k])
        offered.append(OfferedRequest(index, at, names[k], inputs, outputs, document, seeds[index], text))
    return offered


def _streams(seed: int, count: int) -> list[Generator]:
    return [np.random.default_rng(child) for child in SeedSequence(seed).spawn(count)]


def _times(traffic: Traffic, random: Generator) -> list[float] | list[None]:
    if isinstance(traffic.arrivals, Closed):
        assert traffic.requests is not None  # a closed loop without is refused where the workload is read
        return [None] * traffic.requests
    times = traffic.arrivals.times(random, traffic.duration_s)
    if traffic.duration_s is not None:
        end = traffic.duration_s
        times = takewhile(lambda at: at < end, times)
    return list(islice(times, traffic.requests))


def _drawn(
    kind: RequestClass, count: int, lengths: Generator, documents: Generator, texts: Generator
) -> Iterator[tuple[int | None, int | None, int | None, int | None]]:
    """Return input tokens, output tokens, document and text for as many requests as there may be of a class."""
    inputs: Sequence[int | None] = [None] * count if kind.input is None else kind.input.draw(lengths, count)
    outputs: Sequence[int | None] = [None] * count if kind.output is None else kind.output.draw(lengths, count)
    picked: list[int | None] = [None] * count
    if kind.prefix is not None:
        picked = documents.choice(kind.prefix.documents, size=count, p=kind.prefix.probabilities()).tolist()
    chosen: list[int | None] = [None] * count
    if isinstance(kind.text, TextFile):
        chosen = _each_in_turn(len(read_texts(kind.text.file)), count, texts)
    return zip(inputs, outputs, picked, chosen, strict=True)


def _each_in_turn(texts: int, count: int, random: Generator) -> list[int | None]:
    """Return `count` numbers of texts, each text once before any is there again."""
    rounds = [random.permutation(texts) for _ in range(-(-count // texts))]
    return [int(number) for number in np.concatenate(rounds)[:count]]
