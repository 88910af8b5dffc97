"""`tuner presets`: every shipped preset, for people and for programs."""

from __future__ import annotations

import json
from pathlib import Path

from tests.cli.command import run_here
from tuner.workloads.presets import preset_names


def test_every_preset_is_listed_with_model_card_workload_and_slos(tmp_path: Path) -> None:
    listed = json.loads(run_here(tmp_path, "presets", "--json").out)
    assert [each["preset"] for each in listed] == preset_names()
    (chat,) = (each for each in listed if each["preset"] == "chat")
    assert (chat["model"], chat["hardware"]) == ("Qwen/Qwen2.5-0.5B", "t4")
    assert chat["workload"]["arrivals"] == {"process": "poisson", "rate": 20.0}
    assert chat["slos"] == ["chat.p95_ttft_ms<1000", "chat.p95_tpot_ms<50"]


def test_the_table_breaks_no_name(tmp_path: Path) -> None:
    shown = run_here(tmp_path, "presets").out
    words = set(shown.split())
    assert {*preset_names()} <= words
    assert {"Qwen/Qwen2.5-14B-Instruct", "rtx6000ada", "silo.p95_itl_ms<250"} <= words
    assert max(map(len, shown.splitlines())) <= 100
