"""Conversion of rows: what the database of an earlier version contains has the names of this one."""

from __future__ import annotations

from dataclasses import replace

import pytest

from storage.tables import mapping
from tests import store_samples as samples

EFFECTS = [{"name": "max_num_seqs", "ratio": 1.2}]


@pytest.mark.parametrize("key", ["flag_effects", "earned"])
def test_a_conclusion_of_any_version_has_its_flag_effects_under_one_key(key: str) -> None:
    stored = {"winner": 1, key: EFFECTS, "rounds": 3}
    record = mapping.study_record(mapping.study_row(replace(samples.study(), conclusion=stored)))
    assert record.conclusion == {"winner": 1, "flag_effects": EFFECTS, "rounds": 3}
    assert list(record.conclusion) == ["winner", "flag_effects", "rounds"]


def test_a_study_without_conclusion_stays_without() -> None:
    record = mapping.study_record(mapping.study_row(replace(samples.study(), conclusion=None)))
    assert record.conclusion is None
