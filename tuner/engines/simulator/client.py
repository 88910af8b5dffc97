"""Sends requests to the simulated server, as users in a closed loop or at the times of a workload."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from tuner.engines.simulator.block_pool import Chain
from tuner.engines.simulator.sequence import Prompt
from tuner.errors import SettingError
from tuner.workloads.reading import read_texts
from tuner.workloads.request_class import RequestClass, TextFile
from tuner.workloads.results import SESSION_ENDED, RequestStatus
from tuner.workloads.schedule import OfferedRequest, make_schedule
from tuner.workloads.sessions import sessions_of
from tuner.workloads.spec import ClosedLoop, SingleWorkload
from tuner.workloads.traces.texts import CHARACTERS_PER_TOKEN
from tuner.workloads.traffic import Traffic


@dataclass(slots=True, eq=False)
class SimulatedRequest:
    """A request in the view of its client. Times are in seconds from the start of the run; None before the event.

    Attributes:
        prompt: the lengths of prompt and answer.
        name: the request class.
        due_s: the scheduled time; None in a closed loop.
        deadline_s: when the client gives it up; None for never.
        sent_s: when it is sent.
        first_s: when the client receives its first token.
        end_s: when it ends.
        status: how it ended; `NOT_SENT` until it ends.
        in_flight: whether it is sent and has not ended.
        segments: the steps at which it got tokens, as in `Sequence`.
        session, turn, pause_s: as in `OfferedRequest`.
        error: the reason why it was not sent, if its session ended.
    """

    prompt: Prompt
    name: str
    due_s: float | None
    deadline_s: float | None
    sent_s: float | None = None
    first_s: float | None = None
    end_s: float | None = None
    status: RequestStatus = RequestStatus.NOT_SENT
    in_flight: bool = False
    segments: list[tuple[int, int]] = field(default_factory=list)
    session: int | None = None
    turn: int = 0
    pause_s: float = 0.0
    error: str | None = None


@dataclass(frozen=True)
class ScheduledSend:
    """A request and the time in seconds at which its client sends it."""

    at_s: float
    request: SimulatedRequest


class SimulatedClient:
    """Sends requests in a closed loop of `users`, or at their scheduled times with at most `max_in_flight` at once.

    What a user takes, and what is scheduled, are sessions. The next turn of one is sent when all requests of the turn
    before it have completed and its pause is over; see `tuner.loadgen.run`, which does the same.

    Attributes:
        requests: all requests.
        in_flight: number of requests that are sent and have not ended.
    """

    def __init__(
        self,
        requests: Sequence[SimulatedRequest],
        users: int | None,
        max_in_flight: int | None,
        timeout_s: float | None,
        pause_s: float,
    ) -> None:
        """Set up a client.

        Args:
            requests: all requests, in the order in which they are sent.
            users: users of a closed loop; None to send at the scheduled times.
            max_in_flight: requests in flight at most; None for no limit.
            timeout_s: seconds after which a request of a closed loop, or of a later turn, is given up; None for never.
            pause_s: seconds from the end of a request until the client sends the next one in its place.
        """
        self.requests = requests
        self._users = users
        self._max_in_flight = max_in_flight
        self._timeout_s = timeout_s
        self._pause_s = pause_s
        sessions = sessions_of(requests)
        self._later = {turns[0][0].session: deque(turns) for turns in sessions if turns[0][0].session is not None}
        self._firsts = deque(turns[0] for turns in sessions)
        self._waiting: deque[SimulatedRequest] = deque()
        self.in_flight = 0

    def initial_sends(self) -> Iterator[ScheduledSend]:
        """Yield the first requests of each user, or those of every session at their scheduled time."""
        for _ in range(min(self._users or len(self._firsts), len(self._firsts))):
            for request in self._firsts.popleft():
                yield ScheduledSend(request.due_s or 0.0, request)

    def try_send(self, request: SimulatedRequest, now: float) -> bool:
        """Send a request that is due; return False if it has to wait because `max_in_flight` are in flight."""
        if self._max_in_flight is not None and self.in_flight >= self._max_in_flight:
            self._waiting.append(request)
            return False
        self.in_flight += 1
        request.in_flight = True
        request.sent_s = now
        if self._users and self._timeout_s is not None:
            request.deadline_s = now + self._timeout_s
        return True

    def end(self, request: SimulatedRequest, now: float) -> ScheduledSend | None:
        """Count a request as ended, with any status; return the waiting one that is sent in its place."""
        if not request.in_flight:
            return None
        request.in_flight = False
        self.in_flight -= 1
        while self._waiting:
            following = self._waiting.popleft()
            if following.status is RequestStatus.NOT_SENT:
                return ScheduledSend(now + self._pause_s, following)
        return None

    def next_sends(self, request: SimulatedRequest, now: float) -> list[ScheduledSend]:
        """Return what is sent after a request that ended: the next turn of its session, or a user's next session."""
        turns = None if request.session is None else self._later.get(request.session)
        if turns:
            turn = turns[0]
            if any(each.status is RequestStatus.NOT_SENT for each in turn):
                return []
            turns.popleft()
            if turns and all(each.status is RequestStatus.COMPLETED for each in turn):
                return self._next_turn(turns[0], max(each.end_s or 0.0 for each in turn))
            for each in itertools.chain.from_iterable(turns):
                each.error = SESSION_ENDED
        if self._users and self._firsts:
            return [ScheduledSend(now + self._pause_s, each) for each in self._firsts.popleft()]
        return []

    def _next_turn(self, turn: list[SimulatedRequest], ended_s: float) -> list[ScheduledSend]:
        due = ended_s + turn[0].pause_s
        for each in turn if not self._users else ():
            each.due_s = due
            each.deadline_s = None if self._timeout_s is None else due + self._timeout_s
        return [ScheduledSend(max(due, ended_s + self._pause_s), each) for each in turn]


def workload_client(workload: SingleWorkload, seed: int, caching: bool, pause_s: float) -> SimulatedClient:
    """Return the client of a workload.

    Args:
        workload: the workload.
        seed: of lengths, times and classes.
        caching: whether the server has prefix caching; without it, shared prefixes are left out.
        pause_s: as in `SimulatedClient`.

    Raises:
        UserError: for requests whose cost is not modelled.
    """
    if isinstance(workload, ClosedLoop):
        lengths, users = (workload.input_len, workload.output_len), workload.max_concurrency
        equal = [SimulatedRequest(Prompt(index, *lengths), "", None, None) for index in range(workload.num_prompts)]
        return SimulatedClient(equal, users, users, None, pause_s)
    for request_class in workload.sent_classes.values():
        refuse_unmodelled(request_class)
    prefixes = _SharedPrefixes(workload) if caching else None
    requests = list(_requests(workload, make_schedule(workload, seed), prefixes))
    return SimulatedClient(requests, workload.users, workload.max_in_flight, workload.timeout_s, pause_s)


def refuse_unmodelled(request_class: RequestClass) -> None:
    """Refuse a class whose requests cost what the simulator does not model.

    Raises:
        SettingError: naming the class's field.
    """
    unmodelled = {"adapters": "LoRA adapters are", "json_schema": "structured output is"}
    for name, subject in unmodelled.items():
        if getattr(request_class, name):
            remedy = "measure with {engine} vllm, or leave it out of the class"
            raise SettingError("workload", name, f"{subject} not simulated", remedy)


Shared = tuple[tuple[Chain, int], ...]
"""The chains that a prompt begins with, each with its length in tokens."""


class _SharedPrefixes:
    """The chains of the shared prefixes: the system prompt, each class's documents, and segments of recordings."""

    def __init__(self, traffic: Traffic) -> None:
        self._system_prompt = Chain()
        self._system_tokens = traffic.system_prompt
        self._documents: dict[tuple[str, int], Chain] = {}
        self._segments: dict[tuple[str, int], Chain] = {}

    def of(self, request_class: RequestClass, offered: OfferedRequest) -> Shared:
        """Return the chains that a prompt begins with, each with its length in tokens."""
        chains = [(self._system_prompt, self._system_tokens)] if self._system_tokens else []
        if offered.document is not None and request_class.prefix is not None:
            chain = self._documents.setdefault((offered.name, offered.document), Chain())
            chains.append((chain, request_class.prefix.tokens))
        for each in offered.segments:
            chains.append((self._segments.setdefault((offered.name, each.number), Chain()), each.tokens))
        return tuple(chains)


def _requests(
    traffic: Traffic, schedule: Sequence[OfferedRequest], prefixes: _SharedPrefixes | None
) -> Iterator[SimulatedRequest]:
    """Yield the requests of a schedule. A later turn's prompt begins with the first one before it and its answer."""
    for turns in sessions_of(schedule):
        before: Shared | None = None
        for number, turn in enumerate(turns):
            first, *others = [_request(traffic, each, prefixes, before if each.goes_on else None) for each in turn]
            if prefixes is not None and number + 1 < len(turns):
                prompt = first.prompt
                first.prompt = replace(prompt, continued=(chain := Chain()))
                own = prompt.tokens - sum(tokens for _, tokens in prompt.shared)
                before = (*prompt.shared, (chain, own + prompt.output))
            yield from (first, *others)


def _request(
    traffic: Traffic, offered: OfferedRequest, prefixes: _SharedPrefixes | None, before: Shared | None
) -> SimulatedRequest:
    request_class = traffic.classes[offered.name]
    own_tokens, output = offered.input_tokens, offered.output_tokens
    if own_tokens is None or output is None:
        own_tokens, output = _estimated_lengths(request_class, offered, own_tokens, output)
    prefix_tokens = traffic.system_prompt + (request_class.prefix.tokens if request_class.prefix is not None else 0)
    prefix_tokens += offered.context_tokens + sum(each.tokens for each in offered.segments)
    shared: Shared = before or (() if prefixes is None else prefixes.of(request_class, offered))
    repetitive = request_class.text == "repetitive"
    prompt = Prompt(
        offered.index, prefix_tokens + own_tokens, output, shared, repetitive, priority=request_class.priority
    )
    deadline = None if offered.at_s is None else offered.at_s + traffic.timeout_s
    return SimulatedRequest(
        prompt,
        offered.name,
        offered.at_s,
        deadline,
        session=offered.session,
        turn=offered.turn,
        pause_s=offered.pause_s,
    )


def _estimated_lengths(
    request_class: RequestClass, offered: OfferedRequest, own_tokens: int | None, output: int | None
) -> tuple[int, int]:
    """Return the tokens of prompt and answer of the user's own text, estimated from its characters where unknown."""
    assert isinstance(request_class.text, TextFile)
    assert offered.text is not None
    text = read_texts(request_class.text.file).texts[offered.text]
    return (
        own_tokens if own_tokens is not None else max(1, len(text.prompt) // CHARACTERS_PER_TOKEN),
        output if output is not None else text.output_tokens or max(1, len(text.answer or "") // CHARACTERS_PER_TOKEN),
    )
