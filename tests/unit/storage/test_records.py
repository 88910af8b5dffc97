"""Values that records derive from their fields."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from tests import store_samples as samples

EFFECTS = [{"name": "max_num_seqs", "ratio": 1.2}]


@pytest.mark.parametrize(("round_", "name"), [(0, "#12"), (2, "#12 r2")])
def test_a_trial_has_a_short_name(round_: int, name: str) -> None:
    assert samples.pending(12, round_).name == name


@pytest.mark.parametrize(
    ("conclusion", "effects"),
    [
        ({"winner": 1, "flag_effects": EFFECTS}, EFFECTS),
        ({"winner": 1, "flag_effects": []}, []),
        ({"winner": 1}, ()),
        (None, ()),
    ],
)
def test_flag_effects_are_those_of_the_conclusion(conclusion: Mapping[str, Any] | None, effects: object) -> None:
    assert replace(samples.study(), conclusion=conclusion).flag_effects == effects
