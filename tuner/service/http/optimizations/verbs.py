"""The verbs of clients: suggest, complete, infeasible and heartbeat.

They are requests of programs in loops, so they run without a thread of their own: the operations of all clients share
transactions, and answers are written without a second check of their form.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Coroutine
from datetime import datetime
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute

from storage.service.optimizations.records import (
    Beat,
    Beaten,
    ClientTrialState,
    Finish,
    Finished,
    Operation,
    Proposal,
    Suggest,
)
from storage.service.records import Role, Token
from tuner.errors import SettingError
from tuner.service.http.access import caller, caller_of, given_digest
from tuner.service.http.context import context_of
from tuner.service.http.optimizations.bodies import (
    BeatBody,
    Beating,
    CompleteBody,
    Ending,
    InfeasibleBody,
    SuggestBody,
    Suggestion,
    TrialNumber,
)
from tuner.service.http.optimizations.refusals import refusals
from tuner.service.http.problems import Problem
from tuner.service.optimizer.batches import Maker
from tuner.service.optimizer.clients import Clients


class TokenFirst(APIRoute):
    """A route that refuses the token of a request before its body; a body that is right costs no check of its own."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return the handler of requests."""
        handle = super().get_route_handler()

        async def checked(request: Request) -> Response:
            try:
                return await handle(request)
            except RequestValidationError:
                await run_in_threadpool(caller, request, context_of(request))
                raise

        return checked


router = APIRouter(prefix="/v1/optimizations", tags=["optimizations"], route_class=TokenFirst)


async def digest_of_caller(request: Request) -> str:
    """Return the digest of the caller's token, which is looked up together with what they ask."""
    return given_digest(request)


Digest = Annotated[str, Depends(digest_of_caller)]


def _clients(request: Request) -> Clients:
    clients: Clients = request.app.state.clients
    return clients


def _maker(operation: Callable[[str | None], Operation]) -> Maker:
    """Return the maker of an operation, which gets the caller's owner, or None for an admin."""

    def make(token: Token | None, now: datetime) -> Operation | Exception:
        try:
            who = caller_of(token, now)
        except Problem as problem:
            return problem
        if who.role is Role.VIEWER:
            return Problem(403, f"the token {who.token!r} may only read; ask an admin for one of a user")
        return operation(None if who.is_admin else who.owner)

    return make


def _answer(body: object) -> Response:
    return Response(json.dumps(body, separators=(",", ":")), media_type="application/json")


@router.post("/{id}:suggest", response_model=Suggestion)
async def suggest(id: str, body: SuggestBody, digest: Digest, request: Request) -> Response:
    """Return the client's trials; if they are fewer than `count`, also those of lost clients and new ones."""

    def make(proposal: Proposal | None) -> Maker:
        return _maker(lambda owner: Suggest(id, owner, body.client_id, body.count, proposal))

    with refusals():
        found = await _clients(request).suggest(digest, make)
    trials = [{"number": each.number, "params": each.params, "attempts": each.attempts} for each in found.trials]
    return _answer({"state": found.state, "trials": trials})


@router.post("/{id}:heartbeat", response_model=Beating)
async def heartbeat(id: str, body: BeatBody, digest: Digest, request: Request) -> Response:
    """Keep the client's trials from being handed to others, and return their numbers."""
    with refusals():
        make = _maker(lambda owner: Beat(id, owner, body.client_id))
        found = await _clients(request).result(digest, make)
    assert isinstance(found, Beaten)
    return _answer({"state": found.state, "trials": found.numbers})


@router.post("/{id}/trials/{number}:complete", response_model=Ending)
async def complete(id: str, number: TrialNumber, body: CompleteBody, digest: Digest, request: Request) -> Response:
    """Store what the client measured. A repeated request has the same answer."""
    state = ClientTrialState.SUCCEEDED
    if not body.metrics:
        if not any(value > 0 for value in body.constraints.values()):
            rule = "without metrics, a constraint has to be above 0"
            raise SettingError("metrics", None, rule, "give every objective, or call the trial infeasible")
        state = ClientTrialState.INFEASIBLE
    values = {"metrics": body.metrics or None, "constraints": body.constraints}
    return await _ended(id, number, body.client_id, digest, request, state, values)


@router.post("/{id}/trials/{number}:infeasible", response_model=Ending)
async def infeasible(id: str, number: TrialNumber, body: InfeasibleBody, digest: Digest, request: Request) -> Response:
    """Store that the configuration of a trial cannot work, and why. The sampler avoids similar ones."""
    values = {"reason": body.reason}
    return await _ended(id, number, body.client_id, digest, request, ClientTrialState.INFEASIBLE, values)


async def _ended(
    id: str, number: int, client: str, digest: str, request: Request, state: ClientTrialState, values: dict[str, Any]
) -> Response:
    with refusals():
        make = _maker(lambda owner: Finish(id, owner, client, number, state, **values))
        found = await _clients(request).result(digest, make)
    assert isinstance(found, Finished)
    return _answer({"number": found.number, "state": found.state})
