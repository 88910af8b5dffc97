"""The part of the service's store that counts."""

from __future__ import annotations

from collections import Counter

from sqlalchemy import func, select

from storage.service.models import SubmissionRow
from storage.service.records import ACTIVE, SubmissionState
from storage.service.watching.records import Figures, Waiting
from storage.transactions import Transactions


class FigureStore(Transactions):
    """Figures of all submissions."""

    def figures(self) -> Figures:
        """Return the queue in numbers. The answer has a few rows, however many submissions there are."""
        row = SubmissionRow
        groups = select(row.state, row.kind, func.count(), func.min(row.queued_at)).group_by(row.state, row.kind)
        granted = select(row.granted).where(row.state.in_([state.value for state in ACTIVE]))
        states: Counter[str] = Counter()
        waiting = {}
        with self._reading() as session:
            for state, kind, count, since in session.execute(groups):
                states[state] += count
                if state == SubmissionState.QUEUED:
                    waiting[kind] = Waiting(count, since)
            names = tuple(name for each in session.scalars(granted) for name in each)
        return Figures({state: states[state.value] for state in SubmissionState}, waiting, names)
