"""The plan of a run: requests, times and server. Its file has one JSON line for the run and one per request."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

Prompt = str | list[int]
"""The prompt of a completion: a text, or the ids of its tokens, which the server takes as they are."""


@dataclass(frozen=True)
class PlannedRequest:
    """One request. `at_s` is when it is due (None in a closed loop), `prompt_tokens` and `max_tokens` its lengths.

    A server with priority scheduling admits requests of a lower `priority` first. `adapter` is the LoRA adapter that
    answers in the place of the model. An answer with a `json_schema` may end before `max_tokens`.

    A request of a later `turn` of a session has `at_s` None and, as `prompt`, what it adds to the conversation. It is
    due `pause_s` after the last answer of the turn before it. If it is `afresh`, its prompt is whole. `continues` says
    that the session goes on.
    """

    index: int
    name: str
    at_s: float | None
    prompt: Prompt
    prompt_tokens: int
    max_tokens: int
    priority: int = 0
    adapter: str | None = None
    json_schema: dict[str, Any] | None = None
    session: int | None = None
    turn: int = 0
    pause_s: float = 0.0
    afresh: bool = False
    continues: bool = False


Turn = list[PlannedRequest]
"""The requests that a turn of a session sends at once."""


def whole_prompt(request: PlannedRequest, before: Prompt | None) -> Prompt:
    """Return the prompt of a request with the conversation `before` it; both are texts, or both are tokens."""
    own = request.prompt
    if before is None or request.afresh:
        return own
    if isinstance(before, str):
        assert isinstance(own, str)
        return before + own
    assert not isinstance(own, str)
    return before + own


@dataclass(frozen=True)
class RequestPlan:
    """The settings of a run.

    In a closed loop, `users` send one request after another. Otherwise `users` is None: each request is sent when it is
    due, at most `max_in_flight` at a time (None: any number). A request times out `timeout_s` after it was due, in a
    closed loop after it was sent. The run ends after `limit_s`. Without `reuse_connections` each request has a
    connection of its own: llama.cpp's server closes one after a streamed answer, although it announces to keep it.
    """

    url: str
    model: str
    users: int | None
    max_in_flight: int | None
    timeout_s: float
    limit_s: float
    reuse_connections: bool = True

    def body(self, request: PlannedRequest, before: Prompt | None = None) -> bytes:
        """Return the body of a request for OpenAI's completions API, as `vllm bench serve --ignore-eos` sends it.

        A request with a schema leaves `ignore_eos` out, so that the answer can end with its JSON. A session of token
        ids needs those of the answer, which vLLM sends with `return_token_ids`.

        Args:
            request: the request.
            before: the conversation before a later turn.
        """
        form = {"type": "json_schema", "json_schema": {"name": request.name, "schema": request.json_schema}}
        fields = {
            "model": request.adapter or self.model,
            "prompt": whole_prompt(request, before),
            "max_tokens": request.max_tokens,
            "stream": True,
            "stream_options": {"include_usage": True},
            **({"ignore_eos": True} if request.json_schema is None else {"response_format": form}),
            **({"priority": request.priority} if request.priority else {}),
            **({"return_token_ids": True} if request.continues and not isinstance(request.prompt, str) else {}),
        }
        return json.dumps(fields).encode()


def write_plan(path: Path, plan: RequestPlan, requests: Iterable[PlannedRequest]) -> None:
    """Write a plan for `python -m tuner.loadgen`."""
    with path.open("w", encoding="utf-8") as file:
        file.write(json.dumps(asdict(plan)) + "\n")
        for request in requests:
            file.write(json.dumps(asdict(request)) + "\n")


def read_plan(path: Path) -> tuple[RequestPlan, list[PlannedRequest]]:
    """Read what `write_plan` wrote."""
    with path.open(encoding="utf-8") as file:
        plan = RequestPlan(**json.loads(file.readline()))
        return plan, [PlannedRequest(**json.loads(line)) for line in file]
