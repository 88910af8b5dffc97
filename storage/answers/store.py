"""The part of the store with what servers answered."""

from __future__ import annotations

from sqlalchemy import select

from records.answers import AnswersKey, AnswersRecord
from storage.tables import mapping
from storage.tables.models import AnswersRow
from storage.transactions import Transactions


class AnswersStore(Transactions):
    """Reads and writes what servers answered."""

    def answers(self, key: AnswersKey) -> AnswersRecord | None:
        """Return what a server answered; None if it was not asked."""
        with self._reading() as session:
            row = session.scalar(select(AnswersRow).where(AnswersRow.digest == key.digest))
            if row is None:
                return None
            return AnswersRecord(key, row.model, row.created_at, row.seconds, row.answers)

    def add_answers(self, record: AnswersRecord) -> None:
        """Store what a server answered, in place of an earlier record of the same key.

        Raises:
            StorageError: if a value is not JSON.
        """
        key = record.key
        with self._writing() as session:
            row = session.scalar(select(AnswersRow).where(AnswersRow.digest == key.digest))
            if row is None:
                row = AnswersRow(digest=key.digest)
                session.add(row)
            row.weights, row.formats, row.engine, row.device = key.weights, list(key.formats), key.engine, key.device
            row.asked, row.model = key.asked, record.model
            row.created_at, row.seconds = record.created_at, record.seconds
            row.answers = mapping.to_json_value("answers", record.answers)
