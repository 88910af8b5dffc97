"""The confirmation: the finalists and the defaults are measured again in alternation.

The best of sixty noisy measurements looks better than it is, so the search only nominates finalists. A round measures
each configuration of a group once. Within a round all use the same prompts and the same device; the order rotates
from round to round. A finalist that fails or misses an SLO is disqualified and not measured again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from records.trials import Config, TrialKind, TrialRecord
from search_spaces import ENGINE
from storage.store import Store
from tuner.scoring.goals import Goals
from tuner.scoring.rounds import fault_of
from tuner.study.protocols import WorkItem
from tuner.study.specification.spec import StudySpec

_NOT_NOMINATED = (TrialKind.BASELINE, TrialKind.CURRENT, TrialKind.REDUCED, TrialKind.CAPACITY)
"""Kinds of trials that are no finalists of their own."""


def nominate(
    records: Sequence[TrialRecord], count: int, ranking: Sequence[int] = (), engines: Sequence[str] = ()
) -> list[TrialRecord]:
    """Return the `count` best feasible trials of the search, best first, without the defaults and reduced finalists.

    Args:
        records: the study's trials.
        count: how many to return at most, before the best one of each engine that has none among them.
        ranking: trial numbers, best first, by the sampler's model; the other trials follow by their measured score.
        engines: of a study of several, the default engine first.
    """
    candidates = [
        record for record in records if record.round == 0 and record.kind not in _NOT_NOMINATED and record.state == "ok"
    ]
    scored = [(record.verdict.score, record) for record in candidates if record.verdict and record.verdict.score]
    places = {number: place for place, number in enumerate(ranking)}
    scored.sort(key=lambda pair: (places.get(pair[1].number, len(places)), -pair[0], pair[1].number))
    best, rest = [record for _, record in scored[:count]], [record for _, record in scored[count:]]
    for engine in engines:
        if not any(record.config.get(ENGINE, engines[0]) == engine for record in best):
            best += [record for record in rest if record.config.get(ENGINE, engines[0]) == engine][:1]
    return best


def label_of(finalists: Sequence[TrialRecord]) -> str:
    """Return the name of a confirmation, which is unique to its finalists."""
    return "finals " + ",".join(str(record.number) for record in finalists)


def rounds_after(records: Sequence[TrialRecord], label: str, done: int, count: int) -> list[int]:
    """Return the numbers of the next `count` rounds with a label after the first `done`: known ones, then new ones."""
    known = sorted({record.round for record in records if record.round and record.label == label})
    following = max((record.round for record in records), default=0) + 1
    return [*known[done : done + count], *range(following, following + count)][:count]


class Confirmation:
    """The `Source` of some rounds of the finalists. The r-th of them runs on slot r modulo the number of slots."""

    def __init__(
        self,
        spec: StudySpec,
        store: Store,
        group: Sequence[TrialRecord],
        slots: int,
        label: str,
        done: int = 0,
        count: int | None = None,
        goals: Goals | None = None,
    ) -> None:
        """Plan `count` rounds of a group, by default as many as the study has, of which `slots` run at the same time.

        The label has had `done` rounds before. The goals, whose SLOs disqualify a finalist, are by default the study's.
        """
        self._spec, self._store, self._slots = spec, store, slots
        self._goals = goals or spec.goals
        self._queues: dict[int, deque[WorkItem]] = {slot: deque() for slot in range(slots)}
        self.label = label
        records = store.trials(spec.name)
        known = {(r.number, r.round): r for r in records if r.round and r.label == self.label}
        self.rounds = rounds_after(records, label, done, spec.confirmation.confirm_rounds if count is None else count)
        for turn, round_ in enumerate(self.rounds, done):
            start = turn % len(group)
            for finalist in (*group[start:], *group[:start]):
                self._plan(finalist.number, finalist.config, round_, known.get((finalist.number, round_)))

    def _plan(self, number: int, config: Config, round_: int, known: TrialRecord | None) -> None:
        if known is not None and known.outcome is not None:
            return
        item = WorkItem(number, round_, TrialKind.CONFIRM, config, self.label, known=known is not None)
        self._queues[self._slot(item)].append(item)

    def _slot(self, item: WorkItem) -> int:
        return self.rounds.index(item.round) % self._slots

    def next(self, slot: int) -> WorkItem | None:
        """Return the next measurement for this slot; None if it has none left, and for one beside a worker's own."""
        queue = self._queues.get(slot, deque())
        disqualified = self._disqualified() if queue else set()
        while queue:
            item = queue.popleft()
            if item.known or item.number not in disqualified:
                return item
        return None

    def _disqualified(self) -> set[int]:
        """Return the numbers of the finalists that failed or missed an SLO in a round."""
        records = self._store.trials(self._spec.name, TrialKind.CONFIRM, finished=True)
        mine = [record for record in records if record.label == self.label]
        return {record.number for record in mine if fault_of(self._goals, record) is not None}

    def exhausted(self) -> bool:
        return not any(self._queues.values())

    def give_back(self, item: WorkItem) -> None:
        """Take back a measurement that the infrastructure failed; its slot gets it next."""
        self._queues[self._slot(item)].appendleft(item)
