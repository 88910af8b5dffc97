"""The reduction: smaller forms of a configuration, with some of its flags reset to their defaults.

The sampler's model proposes the order in which flags are reset (`tuner.sampler.reduction`). A smaller form is measured
once with the search's workload, which shows whether it runs and meets the SLOs, and then in rounds beside the whole.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from search_spaces import ResolvedSpace
from storage.records import Config, TrialKind, TrialRecord
from tuner.sampler.reduction import Elimination
from tuner.study.trial_sources.confirmation import label_of
from tuner.study.trial_sources.given import GivenConfiguration

LEAST_MEASUREMENTS = 30
"""The rounds may take as many measurements as the search had trials, and so many in any case."""


def smaller_forms(
    space: ResolvedSpace,
    record: TrialRecord,
    order: Elimination,
    *,
    cautious: bool = False,
    redundant: Sequence[str] = (),
) -> list[GivenConfiguration]:
    """Return a configuration without the idle flags, and without all whose effect may be noise.

    No form has a redundant flag.

    Args:
        space: the search space.
        record: the trial of the configuration.
        order: of the resetting of its flags.
        cautious: whether those were worse: then without half of the idle flags and a quarter. Where none is known to
            be idle, all flags count.
        redundant: flags with the value that the engine chooses by itself.
    """
    names = [step.name for step in order.steps if step.name not in redundant]
    several = order.idle or len(names)
    unknown = [name for name in _without_known_default(space, record.config) if name not in redundant]
    names[order.idle : order.idle] = unknown
    wide = {order.idle + len(unknown), len(order.unproved()) + len(unknown)}
    counts = {several // 2, several // 4} if cautious else wide
    counts = counts | {0} if redundant else counts - {0}
    found = [without_flags(space, record, [*redundant, *names[:count]]) for count in sorted(counts, reverse=True)]
    return [given for given in found if given is not None]


def _without_known_default(space: ResolvedSpace, config: Config) -> list[str]:
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
    defaults = space.engine_defaults()
    hints = {name: defaults[name] for name in names if name in defaults}
    flags = f"{len(space.changed(config))} of {len(space.changed(record.config))} flags"
    return GivenConfiguration(f"#{record.number} with {flags}", config, hints)


def measured_as(space: ResolvedSpace, records: Sequence[TrialRecord], config: Config) -> TrialRecord | None:
    """Return the first trial with a configuration, else the first with the same server; None if there is none."""
    trials = [record for record in records if not record.round]
    rendered = space.render(config)
    same = [record for record in trials if space.render(record.config) == rendered]
    return next(iter(same or (record for record in trials if space.same_server(record.config, config))), None)


def unmeasured(
    space: ResolvedSpace, given: Sequence[GivenConfiguration], records: Sequence[TrialRecord]
) -> list[GivenConfiguration]:
    """Return the configurations whose server no trial had, each once."""
    seen = [record.config for record in records if not record.round]
    found = []
    for each in given:
        if not any(space.same_server(each.config, config) for config in seen):
            seen.append(each.config)
            found.append(each)
    return found


def measured_of(
    space: ResolvedSpace, records: Sequence[TrialRecord], given: Sequence[GivenConfiguration]
) -> list[TrialRecord]:
    """Return the trials of those configurations that have one."""
    found = [measured_as(space, records, each.config) for each in given]
    return [record for record in found if record is not None]


def fits(
    space: ResolvedSpace,
    records: Sequence[TrialRecord],
    group: Mapping[int, TrialRecord],
    given: Sequence[GivenConfiguration],
    rounds: int,
    label: str | None,
    reserve: int,
) -> bool:
    """Return whether the rounds of a group are within what all rounds may take: as many as the search had trials.

    Measurements of these rounds and of later ones do not count: a continued study decides as before.

    Args:
        space: the search space.
        records: every trial of the study.
        group: trials that take part, by number.
        given: further configurations that take part.
        rounds: number of rounds.
        label: name of the rounds; None for that of a group of its own.
        reserve: configurations for which later rounds are left.
    """
    measured = measured_of(space, records, given)
    every = {**group, **{record.number: record for record in measured if record.state == "ok"}}
    if label is None and len(measured) == len(given):
        label = label_of(list(every.values()))
    searched = sum(record.round == 0 and record.kind is not TrialKind.REDUCED for record in records)
    own = min((record.round for record in records if record.round and record.label == label), default=math.inf)
    others = sum(0 < record.round < own for record in records)
    return others + (len(group) + len(given) + reserve) * rounds <= max(LEAST_MEASUREMENTS, searched)
