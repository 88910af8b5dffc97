"""Trials of a configuration with fewer flags: the ablation resets one, the reduction several with small effects.

The ablation has one trial per flag, with the search's workload. The sampler observes these trials like all others, so
the flag effects (`tuner.sampler.flag_effects`) rest on neighbours of the best configuration, and a reduced
configuration may become a finalist. A single trial does not decide about its flag: it is as noisy as any other.

The sampler's model proposes the order in which flags are reset (`tuner.sampler.flag_effects`). A smaller form is
measured once with the search's workload, which shows whether it runs and meets the SLOs, and then in rounds beside the
whole.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from records.trials import Config, TrialKind, TrialRecord
from search_spaces import ResolvedSpace
from storage.store import Store
from tuner.sampler.flag_effects import Elimination
from tuner.study.optuna_study import OptunaStudy
from tuner.study.protocols import WorkItem
from tuner.study.specification.spec import StudySpec


@dataclass(frozen=True)
class GivenConfiguration:
    """A configuration to measure; `hints` are the engine's values of other parameters, for the sampler only."""

    label: str
    config: Config
    hints: Config


class GivenTrials:
    """The `TrialSource` of given configurations, in their order, for any slot."""

    def __init__(self, optuna_study: OptunaStudy, kind: TrialKind, given: Sequence[GivenConfiguration]) -> None:
        self._optuna_study, self._kind = optuna_study, kind
        self._queue = deque(given)
        self._again: deque[WorkItem] = deque()
        self.planned = [each.label for each in given]

    def next(self, slot: int) -> WorkItem | None:
        if self._again:
            return self._again.popleft()
        if not self._queue:
            return None
        given = self._queue.popleft()
        asked = self._optuna_study.ask_fixed(given.config, given.hints)
        return WorkItem(asked.number, 0, self._kind, asked.config, given.label)

    def exhausted(self) -> bool:
        return not self._queue and not self._again

    def give_back(self, item: WorkItem) -> None:
        self._again.append(item)


class Ablation(GivenTrials):
    """The `TrialSource` of those trials. A continued study runs the ones that it lacks, and none twice."""

    def __init__(self, spec: StudySpec, store: Store, optuna_study: OptunaStudy, best: TrialRecord | None) -> None:
        """Plan the trials for the configuration whose ablation an earlier run began, or else for `best`.

        If `best` is itself a trial of an ablation, no other ablation is planned.
        """
        records = {record.number: record for record in store.trials(spec.name) if record.round == 0}
        begun = {owner for record in records.values() if (owner := _owner(record)) in records}
        subjects = [*sorted(begun, reverse=True), *([best.number] if best is not None and _owner(best) is None else [])]
        tried = [record.config for record in records.values()]
        given: list[GivenConfiguration] = []
        for number in subjects:
            if not given:
                found = reductions(spec.space, records[number].config, tried)
                given = [GivenConfiguration(f"#{number} without {name}", *rest) for name, *rest in found]
        super().__init__(optuna_study, TrialKind.ENQUEUED, given)


def reductions(space: ResolvedSpace, config: Config, tried: Sequence[Config]) -> list[tuple[str, Config, Config]]:
    """Return the configuration with each single parameter reset to its default.

    Configurations that break a rule of the space are left out, and so are those that were tried.

    Returns:
        For each: the name of the parameter, the reduced configuration, and the default's value where it is known.
    """
    defaults = space.engine_defaults()
    seen = [space.render(each) for each in tried]
    found: list[tuple[str, Config, Config]] = []
    for name in space.changed(config):
        reduced = space.without(config, name)
        if not space.violations(reduced) and (rendered := space.render(reduced)) not in seen:
            found.append((name, reduced, {name: defaults[name]} if name in defaults else {}))
            seen.append(rendered)
    return found


def _owner(record: TrialRecord) -> int | None:
    """Return the number of the trial whose configuration this one reduces; None if it reduces none."""
    number, separator, _ = (record.label or "").partition(" without ")
    return int(number[1:]) if separator and number[:1] == "#" and number[1:].isdigit() else None


def order_of_reset(space: ResolvedSpace, config: Config, order: Elimination, redundant: Sequence[str]) -> list[str]:
    """Return the flags of a configuration in the order in which they are left out.

    First come redundant ones, then those that are predicted to bring nothing, those whose defaults the model does not
    know, and the others.
    """
    names = [name for name in order.names if name not in redundant]
    idle = sum(name not in redundant for name in order.names[: order.idle])
    unknown = [name for name in without_known_default(space, config) if name not in redundant]
    return [*redundant, *names[:idle], *unknown, *names[idle:]]


def without_known_default(space: ResolvedSpace, config: Config) -> list[str]:
    """Return the flags that the model cannot reset: their defaults are unknown, and it has no value for their lack."""
    known = space.known_defaults()
    unknown = {each.name for each in space.parameters if each.name not in known and not each.contains(None)}
    conditional = {each.name for each in space.parameters if each.spec.when is not None}
    return [name for name in space.changed(config) if name in unknown - conditional]


def without_flags(space: ResolvedSpace, record: TrialRecord, names: Sequence[str]) -> GivenConfiguration | None:
    """Return a trial's configuration with parameters reset; None if it is the same, the reference, or breaks a rule.

    Values that are the engine's defaults are left out, so that they are no flags of the server.
    """
    config, changed = dict(record.config), space.changed(record.config)
    for name in names:
        config = space.without(config, name)
    for name in [name for name in config if name not in changed]:
        shorter = space.without(config, name)
        config = shorter if space.same_server(config, shorter) else config
    if space.is_reference(config) or space.render(config) == space.render(record.config) or space.violations(config):
        return None
    flags = f"{len(space.changed(config))} of {len(space.changed(record.config))} flags"
    return GivenConfiguration(f"#{record.number} with {flags}", config, space.defaults_beside(config))


def measured_as(space: ResolvedSpace, records: Sequence[TrialRecord], config: Config) -> TrialRecord | None:
    """Return the first trial with a configuration, else the first with the same server; None if there is none."""
    trials = [record for record in records if not record.round]
    rendered = space.render(config)
    same = [record for record in trials if space.render(record.config) == rendered]
    return next(iter(same or (record for record in trials if space.same_server(record.config, config))), None)
