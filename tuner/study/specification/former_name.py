"""Continue a study of an earlier version: under the name that it had, with the parameters that it searches."""

from __future__ import annotations

from dataclasses import replace

from storage.store import Store
from tuner.engines.base import EngineInfo
from tuner.study.specification.builder import StudyPlan, resolve
from tuner.study.specification.spec import StudySpec, changes
from tuner.study.specification.stored_settings import has_other_price, with_stored_settings


def named_as_before(
    plan: StudyPlan, spec: StudySpec, engine: EngineInfo, devices: list[str], store: Store
) -> StudySpec:
    """Return the study, with its stored parameters; under the preset's name if a study of that name is the same.

    Args:
        plan: the study's settings; a study with a given name is unchanged.
        spec: the study under its default name.
        engine: the engine that runs the study.
        devices: the workers' devices.
        store: the database.
    """
    spec = with_stored_parameters(plan, spec, engine, store)
    former = plan.preset.name
    if plan.settings.name is not None or spec.name == former or store.study(spec.name) is not None:
        return spec
    stored = store.study(former)
    if stored is None or stored.provenance is not engine.provenance:
        return spec
    older = replace(spec, name=former, artifacts=spec.artifacts.parent / former)
    older = with_stored_settings(with_stored_parameters(plan, older, engine, store), store)
    other = has_other_price(spec.price, stored) or changes(
        stored.premise, older.premise(engine, devices), older.offered_values
    )
    return spec if other else older


def with_stored_parameters(plan: StudyPlan, spec: StudySpec, engine: EngineInfo, store: Store) -> StudySpec:
    """Return the study with the parameters that it stored, also those that make no difference and are offered no more.

    A study that is not stored, or whose parameters the space no longer has, is unchanged.
    """
    stored = store.study(spec.name)
    names = [] if stored is None else list(stored.premise.get("space", {}).get("parameters", ()))
    if not names or names == [parameter.name for parameter in spec.space.parameters]:
        return spec
    wider = resolve(plan, engine, spec.space.context.hardware, names)
    return replace(spec, space=wider) if names == [each.name for each in wider.parameters] else spec
