"""Continue a study that was stored under the preset's name, which every study without a name had before."""

from __future__ import annotations

from dataclasses import replace

from storage.store import Store
from tuner.engines.base import EngineInfo
from tuner.study.specification.builder import StudyPlan, with_stored_settings
from tuner.study.specification.spec import StudySpec, difference


def named_as_before(
    plan: StudyPlan, spec: StudySpec, engine: EngineInfo, devices: list[str], store: Store
) -> StudySpec:
    """Return the study under the preset's name if a study of that name has the same premise; else unchanged.

    Args:
        plan: the study's settings; a study with a given name is unchanged.
        spec: the study under its default name.
        engine: the engine that runs the study.
        devices: the workers' devices.
        store: the database.
    """
    former = plan.preset.name
    if plan.settings.name is not None or spec.name == former or store.study(spec.name) is not None:
        return spec
    stored = store.study(former)
    if stored is None or stored.provenance is not engine.provenance:
        return spec
    older = with_stored_settings(replace(spec, name=former, artifacts=spec.artifacts.parent / former), store)
    return spec if difference(stored.premise, older.premise(engine, devices)) else older
