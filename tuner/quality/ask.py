"""Ask one server: the most likely tokens at each position of texts, and answers to questions."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

from tuner.cancellation import CancelToken
from tuner.http import HttpError, ReadLimits, post_json
from tuner.quality.compare import Position
from tuner.quality.task import Question

TOP = 20
"""Tokens that a server reports at each position; vLLM reports no more unless a flag is set."""

AT_A_TIME = 4
"""Requests that are sent at the same time: token probabilities of a prompt take memory that vLLM does not reserve."""

TIMEOUT_S = 300.0
_SIZE = 2**26

T = TypeVar("T")
U = TypeVar("U")


class AskFailed(Exception):
    """A server did not answer a request of the check; the message says why."""


@dataclass(frozen=True)
class Target:
    """A server: the URL of its completions, the model's name, and the headers of requests."""

    url: str
    model: str
    headers: Mapping[str, str]


def ask_positions(target: Target, texts: Sequence[str], cancelled: CancelToken) -> list[Position]:
    """Return the most likely tokens at each position of all texts but the first, given the tokens before it.

    Raises:
        AskFailed: if a request fails.
    """
    found = _each(lambda text: _text_positions(target, text), texts, cancelled)
    return [position for positions in found for position in positions]


def ask_questions(target: Target, questions: Sequence[Question], cancelled: CancelToken) -> list[str]:
    """Return the server's greedy answer to each question.

    Raises:
        AskFailed: if a request fails.
    """
    return _each(lambda each: str(_complete(target, each.prompt, max_tokens=each.tokens)["text"]), questions, cancelled)


def _each(ask: Callable[[T], U], items: Sequence[T], cancelled: CancelToken) -> list[U]:
    def one(item: T) -> U:
        if cancelled.is_set():
            raise AskFailed("cancelled")
        return ask(item)

    with ThreadPoolExecutor(AT_A_TIME) as pool:
        return list(pool.map(one, items))


def _text_positions(target: Target, text: str) -> list[Position]:
    reported = _complete(target, text, max_tokens=1, prompt_logprobs=TOP).get("prompt_logprobs")
    if not isinstance(reported, list):
        raise AskFailed("the server reports no probabilities of a prompt's tokens (`prompt_logprobs`)")
    return [_position(tokens) for tokens in reported if tokens]


def _position(tokens: Mapping[str, Mapping[str, Any]]) -> Position:
    """Return the `TOP` most likely tokens; the text's own token is reported, too, whatever its rank."""
    ranked = sorted(tokens.items(), key=lambda item: (-float(item[1]["logprob"]), int(item[0])))
    return [(int(token), round(float(entry["logprob"]), 5)) for token, entry in ranked[:TOP]]


def _complete(target: Target, prompt: str, **options: int) -> Mapping[str, Any]:
    """Return the one choice of a greedy completion."""
    body = {"model": target.model, "prompt": prompt, "temperature": 0, "seed": 0, **options}
    try:
        reply = post_json(target.url, body, ReadLimits(TIMEOUT_S, _SIZE), target.headers)
        content = json.loads(reply.body)
        if reply.status != 200:
            raise AskFailed(f"the server answers {reply.status}: {_message(content)}")
        choice = content["choices"][0]
        assert isinstance(choice, dict)
        return choice
    except (HttpError, ValueError, KeyError, IndexError, TypeError, AssertionError) as error:
        raise AskFailed(f"the server gives no valid completion ({error})") from None


def _message(content: Any) -> str:
    error = content.get("error", content) if isinstance(content, dict) else content
    text = error.get("message", error) if isinstance(error, dict) else error
    return " ".join(str(text).split())[:300]
