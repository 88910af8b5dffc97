"""The best configuration with one flag after another left to the engine: what each is worth, measured.

One trial a flag, of the search's own load, taught to the sampler like any other: its model then knows the
neighbourhood that the estimates of `sampling.ablation` rest on, and what does better without a flag may become a
finalist. One measurement alone would not tell: it is as noisy as all others.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from search_spaces import ResolvedSpace
from storage.records import Config, TrialKind, TrialRecord
from storage.store import Store
from tuner.study.optuna_study import OptunaStudy
from tuner.study.protocols import WorkItem
from tuner.study.specification.spec import StudySpec


class Ablation:
    """The source of those trials: see `Source`. A study that goes on takes up those that it lacks, and none twice."""

    def __init__(self, spec: StudySpec, store: Store, learner: OptunaStudy, best: TrialRecord | None) -> None:
        """Plan them for what an earlier run began to take apart, or else for `best`.

        Where `best` is a trial without a flag, the one that it was taken from has been taken apart.
        """
        self._learner = learner
        records = {record.number: record for record in store.trials(spec.name) if record.round == 0}
        begun = {owner for record in records.values() if (owner := _owner(record)) in records}
        subjects = [*sorted(begun, reverse=True), *([best.number] if best is not None and _owner(best) is None else [])]
        tried = [record.config for record in records.values()]
        self._queue: deque[tuple[str, Config, Config]] = deque()
        for number in subjects:
            if not self._queue:
                found = reductions(spec.space, records[number].config, tried)
                self._queue.extend((f"#{number} without {name}", reduced, hints) for name, reduced, hints in found)
        self._again: deque[WorkItem] = deque()
        self.planned = [label for label, *_ in self._queue]

    def next(self, slot: int) -> WorkItem | None:
        """Return the next trial for any slot."""
        if self._again:
            return self._again.popleft()
        if not self._queue:
            return None
        label, config, hints = self._queue.popleft()
        asked = self._learner.ask_fixed(config, hints)
        return WorkItem(asked.number, 0, TrialKind.ENQUEUED, asked.config, label)

    def exhausted(self) -> bool:
        """Return True if every trial was handed out."""
        return not self._queue and not self._again

    def give_back(self, item: WorkItem) -> None:
        """Take back a trial that infrastructure failed."""
        self._again.append(item)


def reductions(space: ResolvedSpace, config: Config, tried: Sequence[Config]) -> list[tuple[str, Config, Config]]:
    """Return a configuration without each parameter that is not at its default: name, what is left, its known default.

    What breaks a rule is left out: that is why the parameter is needed; so is what was tried.
    """
    defaults = space.engine_defaults()
    seen = [space.render(each) for each in tried]
    found: list[tuple[str, Config, Config]] = []
    for name, value in config.items():
        if value is None or (name in defaults and defaults[name] == value):
            continue
        reduced = space.without(config, name)
        if not space.violations(reduced) and (rendered := space.render(reduced)) not in seen:
            found.append((name, reduced, {name: defaults[name]} if name in defaults else {}))
            seen.append(rendered)
    return found


def _owner(record: TrialRecord) -> int | None:
    """Return the number of the trial that this one takes a flag from; None if it does not."""
    number, separator, _ = (record.label or "").partition(" without ")
    return int(number[1:]) if separator and number[:1] == "#" and number[1:].isdigit() else None
