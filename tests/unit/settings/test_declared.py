"""Declarations of settings: what a value must be, and what every surface makes of them."""

import inspect
import re
from typing import Any

import pytest

import tuner
from tests.cli.command import PATHS
from tuner.cli.options import option_of
from tuner.errors import SettingError
from tuner.service.asked.settings import FILES, described, schema
from tuner.settings.declared import PANELS, part, settings_of
from tuner.settings.serve import ServeSettings
from tuner.settings.study import SearchSettings, StudySettings
from tuner.settings.submit import SubmitSettings, SubmittedSettings

EVERY = {**settings_of(StudySettings), **settings_of(SubmitSettings), **settings_of(ServeSettings)}


def options(command: str) -> dict[str, Any]:
    return {name: each for each in PATHS[command].params for name in each.opts}


@pytest.mark.parametrize("name", EVERY)
def test_a_declaration_is_whole(name: str) -> None:
    _, setting = EVERY[name]
    assert setting.panel in PANELS
    assert setting.help.endswith(".")
    assert set(re.findall(r"(?<!\{)\{([a-z_]+)\}", setting.help)) <= set(EVERY)
    assert setting.more_of is None or setting.more_of in EVERY


@pytest.mark.parametrize(
    ("given", "line"),
    [
        ({"repeats": 0}, "repeats=0: at least 1 is needed; raise it"),
        ({"search_load": 1.5}, "search_load=1.5: at most 1 is possible; lower it"),
        ({"search_load": float("nan")}, "search_load=nan: at least 0 is needed; raise it"),
        ({"finalists": "3"}, "finalists='3': not a number; give one"),
        ({"sampler": "gp"}, "sampler='gp': no sampler has this name; samplers: auto, residual, tpe"),
        ({"timeout": "soon"}, "timeout='soon': not a duration; give for example 90s, 45m or 2h"),
        ({"timeout": 0}, "timeout=0: a duration is longer than 0; give seconds, or for example '2h'"),
        ({"startup_timeout": "x"}, "startup_timeout='x': not a duration; give for example 90s, 45m or 2h"),
        ({"slo": "p99_ttft_ms<9"}, "slo='p99_ttft_ms<9': not a list; give one, with square brackets"),
    ],
)
def test_a_value_that_no_study_can_have_is_refused_when_the_settings_are_made(given: Any, line: str) -> None:
    with pytest.raises(SettingError) as caught:
        StudySettings(**given)
    assert str(caught.value) == line


def test_lists_are_frozen_and_parts_are_read() -> None:
    settings = StudySettings(slo=["a<1"], seed=7, env={"A": "b"}, timeout="2h")
    assert settings.slo == ("a<1",)
    assert part(SearchSettings, settings) == SearchSettings(seed=7)


def test_every_setting_of_a_study_is_an_option_of_optimize_and_a_keyword() -> None:
    shown = {name for name, (_, each) in settings_of(StudySettings).items() if each.more_of is None}
    missing = {name for name in shown if option_of(name) not in options("optimize")}
    assert missing == {"server_arguments"}  # they follow `--`
    keywords = inspect.signature(tuner.optimize).parameters
    assert {*keywords} == {*settings_of(StudySettings), "progress"}
    assert all(f"    {name}: " in (tuner.optimize.__doc__ or "") for name in keywords)


def test_a_service_takes_what_is_asked_and_no_program_and_no_place() -> None:
    asked = {*settings_of(SubmittedSettings)}
    assert {*schema()["properties"]} == {*asked, FILES}
    assert schema()["additionalProperties"] is False
    assert {each["name"] for each in described()} == asked
    assert {*inspect.signature(tuner.Client.submit).parameters} == {"self", *settings_of(SubmitSettings)}
    assert {option_of(name) for name in settings_of(SubmitSettings)} - {*options("service submit")} == {
        "server argument"
    }
    alone = {*settings_of(StudySettings)} - asked
    assert {"vllm", "server_command", "ray_address", "storage", "output", "checkpoint", "draft_model"} <= alone
    assert not {option_of(name) for name in alone if name != "output"} & {*options("service submit")} - {"--engine"}


def test_each_surface_has_the_same_default() -> None:
    assert options("optimize")["--search-load"].default == options("service submit")["--search-load"].default == 0.5
    assert inspect.signature(tuner.optimize).parameters["search_load"].default == 0.5
    assert schema()["properties"]["search_load"]["default"] == StudySettings().search_load == 0.5


def test_the_schema_has_the_limits_and_the_help() -> None:
    known = schema()["properties"]
    assert (known["trials"]["minimum"], known["trials"]["maximum"]) == (1, 10_000)
    assert (known["slo"]["type"], known["slo"]["maxItems"]) == ("array", 50)
    assert known["sampler"]["enum"] == ["auto", "residual", "tpe"]
    assert "which auto stands for" in known["sampler"]["description"]
