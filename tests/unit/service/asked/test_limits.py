"""The limits of what a service takes: each setting has one, and a value beyond it is refused in one line."""

from __future__ import annotations

from typing import Any

import pytest

from tuner.errors import SettingError
from tuner.service.asked.settings import names, read_settings
from tuner.settings.declared import Number, Text, settings_of
from tuner.settings.study import StudySettings

DECLARED = settings_of(StudySettings)


def test_every_setting_but_a_switch_and_a_choice_has_a_limit() -> None:
    without = {name for name in names() if (each := DECLARED[name][1]).limit is None and each.choices is None}
    assert {name for name in without if DECLARED[name][0] is not bool} == set()


def _beyond() -> list[tuple[str, Any]]:
    """Return a value beyond each limit."""
    found: list[tuple[str, Any]] = []
    for name in names():
        limit = DECLARED[name][1].limit
        if isinstance(limit, Number):
            found += [(name, limit.least - 1), (name, limit.most + 1), (name, float("nan"))]
        elif isinstance(limit, Text):
            found.append((name, "x" * (limit.longest + 1)))
        elif limit is not None and name == "env":
            found += [(name, {str(index): "" for index in range(limit.most + 1)}), (name, {"A": "x" * 10_001})]
        elif limit is not None:
            found += [(name, ["x"] * (limit.most + 1)), (name, ["x" * (limit.longest + 1)])]
    return found


@pytest.mark.parametrize(("name", "value"), _beyond(), ids=lambda each: str(each)[:20])
def test_a_value_beyond_its_limit_is_refused(name: str, value: Any) -> None:
    with pytest.raises(SettingError) as caught:
        read_settings({name: value}, "a")
    assert caught.value.field == name
    assert len(str(caught.value)) < 400
    assert "\n" not in str(caught.value)
