"""Values that records derive from their fields."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from storage.records import TrialKind, kept_by, with_keeps
from tests import store_samples as samples

EFFECTS = [{"name": "max_num_seqs", "ratio": 1.2}]


@pytest.mark.parametrize(("round_", "name"), [(0, "#12"), (2, "#12 r2")])
def test_a_trial_has_a_short_name(round_: int, name: str) -> None:
    assert samples.pending(12, round_).name == name


@pytest.mark.parametrize(
    ("conclusion", "effects"),
    [
        ({"winner": 1, "flag_effects": EFFECTS}, EFFECTS),
        ({"winner": 1, "earned": EFFECTS}, EFFECTS),
        ({"winner": 1, "flag_effects": []}, []),
        ({"winner": 1}, ()),
        (None, ()),
    ],
)
def test_flag_effects_are_read_from_conclusions_of_every_version(
    conclusion: Mapping[str, Any] | None, effects: object
) -> None:
    assert replace(samples.study(), conclusion=conclusion).flag_effects == effects


@pytest.mark.parametrize(
    ("conclusion", "keeps"),
    [
        ({"winner": 1, "keeps": "baseline", "keep_defaults": False}, "baseline"),
        ({"winner": 0, "keeps": "defaults", "keep_defaults": True}, "defaults"),
        ({"winner": 2, "keeps": None, "keep_defaults": False}, None),
        ({"winner": 1, "keep_defaults": True}, "baseline"),  # of a version without `keeps`
        ({"winner": 0, "keep_defaults": True}, "defaults"),
        ({"winner": 2, "keep_defaults": False}, None),
        (None, None),
    ],
)
def test_a_kept_baseline_is_not_the_defaults(conclusion: Mapping[str, Any] | None, keeps: str | None) -> None:
    trials = [samples.pending(0, kind=TrialKind.BASELINE), samples.pending(1, kind=TrialKind.CURRENT)]
    assert kept_by(conclusion, trials) == keeps
    if conclusion is not None:
        assert with_keeps(conclusion, trials)["keep_defaults"] is (keeps == "defaults")
