"""Send messages about ends of studies and drift to webhooks, as Standard Webhooks 1.0 describes it.

https://github.com/standard-webhooks/standard-webhooks/blob/main/spec/standard-webhooks.md
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import json
import threading
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta

from storage.service.records import AuditEntry, Message
from storage.service.store import ServiceStore
from tuner.http import HttpError, post
from tuner.service.scheduler.scheduler import QueueState, step_while_leading
from tuner.service.watching.webhooks import Webhook, Webhooks

WAITS_S = (5.0, 60.0, 600.0, 3_600.0, 6 * 3_600.0, 24 * 3_600.0)
"""Seconds between attempts. When all have failed, the message is given up."""

DEADLINE_S = 10.0
"""Seconds that a receiver has for its answer."""

Post = Callable[[str, bytes, Mapping[str, str], float], int]


def signature_of(secret: str, key: str, seconds: int, body: bytes) -> str:
    """Return the header `webhook-signature`: HMAC-SHA256 of key, time and body.

    Args:
        secret: after `whsec_`, base64 of the key; otherwise the key itself.
        key: header `webhook-id`.
        seconds: header `webhook-timestamp`, in seconds since 1970.
        body: of the request.
    """
    raw = secret.encode()
    if secret.startswith("whsec_"):
        try:
            raw = base64.b64decode(secret.removeprefix("whsec_"), validate=True)
        except binascii.Error:
            raw = secret.encode()
    signed = b".".join([key.encode(), str(seconds).encode(), body])
    return "v1," + base64.b64encode(hmac.digest(raw, signed, hashlib.sha256)).decode()


def body_of(message: Message) -> bytes:
    """Return the body of a message: `type`, `timestamp`, `data`, and a sentence as `text`, which chat servers show."""
    data, drift = message.data, message.data.get("drift")
    state, study = str(data["state"]), f"the study {data['id']} of {data['owner']}"
    document = {
        "type": f"study.{state.lower()}" if drift is None else "study.drifted",
        "timestamp": data["ended_at"] if drift is None else data["found_at"],
        "text": f"tuner: {study} is {state}" if drift is None else f"tuner: deployed servers of {study}: {drift}",
        "data": data,
    }
    return json.dumps(document).encode()


def request_of(message: Message, webhook: Webhook, now: datetime) -> tuple[bytes, dict[str, str]]:
    """Return body and headers of an attempt."""
    body, seconds = body_of(message), int(now.timestamp())
    headers = {"content-type": "application/json", "user-agent": "tuner"}
    headers |= {"webhook-id": message.key, "webhook-timestamp": str(seconds)}
    if webhook.secret is not None:
        headers["webhook-signature"] = signature_of(webhook.secret, message.key, seconds, body)
    return body, headers


class Messenger:
    """Sends messages while this process schedules, so that one process at a time sends.

    A receiver gets each message at least once: again if its answer was lost, with the same `webhook-id`.

    `note` gets a line about each failed attempt, and the study that it is about; `send` posts to an address, with body,
    headers and deadline, and returns the status.
    """

    def __init__(
        self,
        store: ServiceStore,
        webhooks: Webhooks,
        note: Callable[[str, str | None], None],
        state: QueueState,
        send: Post = post,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._store, self._webhooks, self._note = store, webhooks, note
        self._state, self._send, self._now = state, send, now

    def run(self, stop: threading.Event) -> None:
        """Step until `stop` is set."""
        step_while_leading(lambda: self.step(stop), self._state, stop, self._note, "no message was sent")

    def step(self, stop: threading.Event | None = None) -> None:
        """Make one attempt for each message that is due."""
        for message in self._store.due_messages(self._now()):
            if stop is not None and stop.is_set():
                return
            problem = self._attempt(message)
            if problem is None:
                self._store.drop_message(message.number)
            else:
                self._failed(message, problem)

    def _attempt(self, message: Message) -> str | None:
        """Send a message; return why it was not accepted, or None."""
        webhook = self._webhooks.by_name.get(message.webhook)
        if webhook is None:
            return "this server has no such webhook"
        body, headers = request_of(message, webhook, self._now())
        try:
            status = self._send(webhook.url, body, headers, DEADLINE_S)
        except HttpError as error:
            return str(error)
        return None if 200 <= status < 300 else f"the answer is HTTP {status}"

    def _failed(self, message: Message, problem: str) -> None:
        study, attempts, now = str(message.data["id"]), message.attempts + 1, self._now()
        about = f"webhook {message.webhook}, attempt {attempts}: {problem}"
        if attempts > len(WAITS_S):
            self._note(f"{about}; the message is given up", study)
            self._store.audit(AuditEntry(now, None, None, "webhook", study, "given up", {"webhook": message.webhook}))
            self._store.drop_message(message.number)
            return
        wait = WAITS_S[attempts - 1]
        self._note(f"{about}; the next attempt is in {wait:.0f} s", study)
        self._store.postpone_message(message.number, attempts, now + timedelta(seconds=wait))
