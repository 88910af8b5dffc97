"""The part of the service's store for messages to webhooks."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import delete, select, update

from storage.service.models import MessageRow
from storage.service.watching.records import Message
from storage.transactions import Transactions


class MessageStore(Transactions):
    """Messages that are still to be sent. Each is stored by the transaction that ends its submission."""

    def due_messages(self, now: datetime, limit: int = 20) -> list[Message]:
        """Return messages whose time has come, those first that have waited longest."""
        query = select(MessageRow).where(MessageRow.next_at <= now).order_by(MessageRow.next_at, MessageRow.id)
        with self._reading() as session:
            return [
                Message(row.id, row.webhook, row.key, row.data, row.created_at, row.attempts)
                for row in session.scalars(query.limit(limit))
            ]

    def postpone_message(self, number: int, attempts: int, next_at: datetime) -> None:
        """Say how many attempts have failed, and when the next one is due."""
        change = update(MessageRow).where(MessageRow.id == number).values(attempts=attempts, next_at=next_at)
        with self._writing() as session:
            session.execute(change)

    def drop_message(self, number: int) -> None:
        """Forget a message that was sent, or given up."""
        with self._writing() as session:
            session.execute(delete(MessageRow).where(MessageRow.id == number))
