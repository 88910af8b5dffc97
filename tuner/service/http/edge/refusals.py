"""Refused requests and log-ins in the audit log, in so few lines that a stranger cannot fill the database."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from fastapi.concurrency import run_in_threadpool
from starlette.types import Scope

from storage.errors import StorageError
from storage.service.records import AuditEntry
from storage.service.store import ServiceStore
from tuner.service.http.access import SAFE, Caller
from tuner.service.http.edge.connections import network_of
from tuner.service.http.edge.rates import HEALTH, LOGGING_IN, Rate, Rates
from tuner.service.http.problems import Problem

REFUSED = frozenset({401, 403, 421, 429})
"""Statuses of requests that are refused whatever they ask."""

LINES = Rate(1 / 60, 20)
"""Lines of an owner, or of an address without a valid token."""

LINES_OF_STRANGERS = Rate(1 / 30, 500)
"""Lines of all addresses without a valid token."""

_LONGEST = 200


@dataclass(frozen=True)
class _Who:
    """Whom a line is about: an owner with a token, or an address."""

    address: str
    token: str | None = None
    owner: str | None = None

    @property
    def key(self) -> str:
        return network_of(self.address) if self.owner is None else f"owner {self.owner}"


class Refusals:
    """Writes a line for each refused request and each log-in, as far as the rates allow; `/metrics` counts all.

    It belongs to the thread of its loop.
    """

    def __init__(self, store: ServiceStore, clock: Callable[[], datetime], rates: Rates | None = None) -> None:
        self._store, self._clock = store, clock
        self._rates = Rates() if rates is None else rates

    async def note(self, scope: Scope, status: int) -> None:
        """Write the line of an answer, if it needs one."""
        state = scope.get("state") or {}
        problem: Problem | None = state.get("problem")
        is_log_in = (scope["method"], scope["path"]) in LOGGING_IN
        if not (is_log_in or _is_refusal(scope, status, problem)):
            return
        caller: Caller | None = state.get("caller")
        address = scope["client"][0] if scope.get("client") else ""
        who = _Who(address) if caller is None else _Who(address, caller.token, caller.owner)
        if self._may_write(who):
            await self._write(who, *_named(scope, is_log_in=is_log_in), status, _rule_of(problem))

    def _may_write(self, who: _Who) -> bool:
        if self._rates.wait((who.key, LINES)) is not None:
            return False
        return who.owner is not None or self._rates.wait(("", LINES_OF_STRANGERS)) is None

    async def _write(self, who: _Who, action: str, resource: str, status: int, rule: Mapping[str, Any]) -> None:
        detail = {"address": who.address, "status": status, **rule}
        result = "refused" if status >= 400 else "done"
        given = {name: value for name, value in detail.items() if value}
        entry = AuditEntry(self._clock(), who.token, who.owner, action, resource, result, given)
        with suppress(StorageError):  # the answer stands without its line
            await run_in_threadpool(self._store.audit, entry)


def _is_refusal(scope: Scope, status: int, problem: Problem | None) -> bool:
    """Return whether an answer refuses who asks, or what is asked by a rule; a mistake in the form is no refusal."""
    if scope["path"] in HEALTH:
        return False
    if status in REFUSED:
        return True
    if problem is None:
        return False
    return problem.hides or (status == 422 and scope["method"] not in SAFE)


def _named(scope: Scope, *, is_log_in: bool) -> tuple[str, str]:
    if is_log_in:
        return "log in", "session"
    path = getattr(scope.get("route"), "path", None) or scope["path"]
    resource = next((value for value in (scope.get("path_params") or {}).values() if isinstance(value, str)), "")
    return f"{scope['method']} {path}"[:_LONGEST], resource[:_LONGEST]


def _rule_of(problem: Problem | None) -> dict[str, Any]:
    """Return the field and the rule of a problem, but not the value: it may be a secret."""
    if problem is None:
        return {}
    return {"field": problem.field, "rule": None if problem.rule is None else problem.rule[:_LONGEST]}
