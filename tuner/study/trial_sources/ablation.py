"""The ablation: trials of the best configuration with one flag at a time reset to its default.

There is one trial per flag, with the search's workload. The sampler observes these trials like all others, so the flag
effects (`tuner.sampler.flag_effects`) rest on neighbours of the best configuration, and a reduced configuration may
become a finalist. A single trial does not decide about its flag: it is as noisy as any other.
"""

from __future__ import annotations

from collections.abc import Sequence

from search_spaces import ResolvedSpace
from storage.records import Config, TrialKind, TrialRecord
from storage.store import Store
from tuner.study.optuna_study import OptunaStudy
from tuner.study.specification.spec import StudySpec
from tuner.study.trial_sources.given import GivenConfiguration, GivenTrials


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
