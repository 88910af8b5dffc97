"""What is predicted to help a study that keeps its reference."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from tuner.engines.factory import EngineFactory
from tuner.settings.study import StudySettings
from tuner.study.specification.builder import build_spec
from tuner.study.specification.plan import plan_study
from tuner.use_cases.simulate import simulated_engine
from tuner.use_cases.would_help import LEAST_GAIN, SHOWN, would_help

SMALL: dict[str, Any] = {"max_concurrency": 20, "num_prompts": 40, "input_len": 128, "output_len": 256}


def lines_of(settings: StudySettings, gpu: str | None = None, base: dict[str, Any] | None = None) -> list[str]:
    """Return the lines of a simulated study that keeps its reference."""
    engine_settings, devices = simulated_engine(gpu, None, settings.preset, 1)
    engine = EngineFactory(engine_settings)(0).info()
    plan = plan_study(settings, simulated=True, card=devices.profile.key)
    spec = build_spec(plan, engine, devices.profile, Path("artifacts"))
    return [*would_help(plan, spec, engine, base or {})]


def ratio(line: str, name: str) -> float:
    found = re.search(rf"{name} ×([\d.]+)", line)
    assert found is not None, line
    return float(found[1])


def test_the_default_study_could_gain_twice_the_throughput_by_greedy_decoding_with_speculation() -> None:
    found = lines_of(StudySettings())
    assert found[0].startswith(
        "greedy decoding (temperature 0) with suffix speculation (changes the answers): score ×1.5"
    )
    # The simulator is fitted to 3,332 and 7,800 tok/s: x2.3.
    assert ratio(found[0], "output_throughput") == pytest.approx(2.24, abs=0.15)
    assert len(found) <= SHOWN
    assert min(ratio(line, "score") for line in found) >= round(LEAST_GAIN, 2)


def test_what_the_study_could_try_is_not_shown() -> None:
    assert [line for line in lines_of(StudySettings(temperature=0.0)) if "speculation" in line] == []
    only = StudySettings(temperature=0.0, only=("max_num_seqs",))
    assert lines_of(only)[0].startswith("suffix speculation: score ×")


def test_formats_that_keep_answers_forbade_are_shown() -> None:
    for keep, count in ((False, 0), (True, 1)):
        settings = StudySettings(model="Qwen/Qwen2.5-14B-Instruct", keep_answers=keep, **SMALL)
        assert sum(line.startswith("FP8 weights") for line in lines_of(settings, "h100")) == count


def test_no_line_misses_an_slo_that_the_reference_meets() -> None:
    slos = ("p99_ttft_ms<1250",)  # predicted: 1,181 ms, greedy with suffix drafts 1,322
    found = lines_of(StudySettings(slo=slos))
    assert [line for line in found if "suffix speculation" in line] == []
    assert any(line.startswith("greedy decoding") for line in found)


def test_several_workloads_are_not_predicted(tmp_path: Path) -> None:
    files = []
    for name in ("one", "two"):
        file = tmp_path / f"{name}.yaml"
        file.write_text("arrivals: {process: poisson, rate: 2}\nrequests: 4\nclasses: {a: {input: 8, output: 8}}\n")
        files.append(str(file))
    assert lines_of(StudySettings(workload=tuple(files))) == []
