"""The limits of each setting."""

from __future__ import annotations

from typing import Any

import pytest

from tuner.errors import SettingError
from tuner.service.asked.settings import names, read_settings
from tuner.settings.declared import Entries, Number, Text, check_limits, settings_of
from tuner.settings.study import AskedSettings

DECLARED = settings_of(AskedSettings)
SWITCHES = {name for name, (kind, _) in DECLARED.items() if kind is bool}
LIMITS = {name: each.limit for name, (_, each) in DECLARED.items() if each.limit is not None}


def test_every_setting_but_a_switch_has_a_limit() -> None:
    assert set(LIMITS) == set(names()) - SWITCHES


def _beyond() -> list[tuple[str, object]]:
    """Return a value beyond each limit."""
    found: list[tuple[str, object]] = []
    for name, limit in LIMITS.items():
        if isinstance(limit, Number):
            found += [(name, limit.least - 1), (name, limit.most + 1), (name, float("nan"))]
        elif isinstance(limit, Text):
            found.append((name, "x" * (limit.longest + 1)))
        elif name == "env":
            found += [(name, {str(index): "" for index in range(limit.most + 1)}), (name, {"A": "x" * 10_001})]
        else:
            found += [(name, ("x",) * (limit.most + 1)), (name, ("x" * (limit.longest + 1),))]
    return found


@pytest.mark.parametrize(("name", "value"), _beyond(), ids=lambda each: str(each)[:20])
def test_a_value_beyond_its_limit_is_refused(name: str, value: Any) -> None:
    with pytest.raises(SettingError) as caught:
        check_limits(AskedSettings(**{name: value}))
    assert caught.value.field == name
    assert caught.value.remedy
    assert len(str(caught.value)) < 200
    assert "\n" not in str(caught.value)


def _at_limits() -> list[tuple[str, Any]]:
    found: list[tuple[str, Any]] = []
    for name, limit in LIMITS.items():
        if name == "timeout":  # 0 is no duration
            found.append((name, limit.most))  # type: ignore[union-attr]
        elif isinstance(limit, Number):
            found += [(name, limit.least), (name, limit.most)]
        elif isinstance(limit, Text) and DECLARED[name][1].choices is None:
            found.append((name, "x" * limit.longest))
        elif isinstance(limit, Entries) and name != "env":
            found.append((name, ("x",) * limit.most))
    return found


def test_values_at_their_limits_are_taken() -> None:
    for name, value in _at_limits():
        check_limits(AskedSettings(**{name: value}))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"sampler": "x" * 5000}, f"sampler={'x' * 60!r}: no sampler has this name; samplers: auto, residual, tpe"),
        ({"timeout": "x" * 5000}, f"timeout={'x' * 60!r}: not a duration; give for example 90s, 45m or 2h"),
        ({"trials": 10**12}, "trials=1000000000000: a service takes 1 to 10,000; lower it"),
        ({"gpus_per_trial": 10**9}, "gpus_per_trial=1000000000: a service takes 1 to 1,024; lower it"),
        ({"learn_from": ["a"] * 50_000}, "learn_from has 50,000 entries, and 20 are the most; leave some out"),
        ({"model": "m" * 5000}, "model has 5,000 characters, and 4,096 are the most; shorten it"),
        ({"timeout": "9999999d"}, "timeout=8.64e+11: a service takes 0 to 31,622,400; lower it"),
    ],
)
def test_a_submission_is_refused_with_one_line(given: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingError) as caught:
        read_settings(given)
    assert str(caught.value) == message
