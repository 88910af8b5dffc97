"""Settings of a submission: types and unknown names."""

from __future__ import annotations

from typing import Any

import pytest

from tuner.errors import SettingError
from tuner.service.asked.settings import names, read_settings
from tuner.settings.study import LARGEST_CONTENT


def test_settings_are_the_keywords_of_optimize_without_the_name() -> None:
    keywords = read_settings({"trials": 12, "slo": ["p99_ttft_ms<500"], "reduce": False}, "s")
    assert (keywords.study, keywords.trials, keywords.slo, keywords.reduce) == ("s", 12, ("p99_ttft_ms<500",), False)
    assert keywords.preset == "qwen2.5-0.5b-t4"
    assert "study" not in names()
    assert {"trials", "slo", "workload", "server_arguments"} <= set(names())


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"trials": "many"}, "trials"),
        ({"slo": "p99_ttft_ms<500"}, "slo"),
        ({"env": {"A": 1}}, "env"),
        ({"nonsense": 1}, "nonsense"),
        ({"storage": "/etc/passwd"}, "storage"),
        ({"vllm": "/bin/sh"}, "vllm"),
        ({"ray_address": "host:1"}, "ray_address"),
        ({"output": "/etc/cron.d/x"}, "output"),
        ({"study": "other"}, "study"),
        ({"space": "x" * (LARGEST_CONTENT + 1)}, "space"),
        ({"workload": ["a: 1", "x" * (LARGEST_CONTENT + 1)]}, "workload"),
    ],
)
def test_what_is_no_setting_is_refused_by_name(given: dict[str, Any], field: str) -> None:
    with pytest.raises(SettingError) as caught:
        read_settings(given, "s")
    assert caught.value.field == field
    assert "\n" not in str(caught.value)
