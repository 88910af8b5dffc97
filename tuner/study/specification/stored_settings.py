"""Settings that the first run of a study fixes: later runs take them from the database."""

from __future__ import annotations

import math
from dataclasses import replace

from search_spaces import Price
from storage.records import StudyRecord
from storage.store import Store
from tuner.errors import SettingError
from tuner.study.specification.spec import StudySpec

_SAME = 1e-9
"""The relative difference up to which two prices are the same."""


def with_stored_settings(spec: StudySpec, store: Store) -> StudySpec:
    """Return the study with the settings that are fixed by its first run, if there was one.

    These are the search's number of prompts and the price, since trials of two workloads or costs at two prices cannot
    be compared, and the source studies where none are given.
    """
    stored = store.study(spec.name)
    if stored is None:
        return spec
    learn_from = spec.search.learn_from or tuple(stored.facts.get("learn_from", ()))
    prompts = stored.premise.get("search", {}).get("num_prompts")
    search = replace(spec.search, learn_from=learn_from)
    return replace(spec, search_prompts=prompts, search=search, price=Price.from_dict(stored.facts.get("price")))


def refuse_other_price(given: Price | None, stored: StudyRecord | None) -> None:
    """Refuse a given price that is not the stored study's; a list price gives way to the stored one.

    Raises:
        SettingError: with the stored price.
    """
    if given is None or given.list_price is not None or stored is None:
        return
    known = Price.from_dict(stored.facts.get("price"))
    if known is not None and math.isclose(known.per_gpu_hour, given.per_gpu_hour, rel_tol=_SAME):
        return
    rule = f"the study {stored.name!r} has {'no price' if known is None else known}"
    raise SettingError("price", given.per_gpu_hour, rule, "leave it out, or give another {study}")
