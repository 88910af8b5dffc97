"""Helps, names of studies, and presets."""

import functools
import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.cli.command import PATHS, TREE, ran, refused, run_here
from tuner.cli.help import FIRST_WEEK
from tuner.settings.study import StudySettings
from tuner.study.specification.plan import default_name
from tuner.study.specification.spec import difference, summary_of
from tuner.workloads.presets import load_preset, preset_names

ROOT = Path(__file__).parents[2]
GROUPS = [path for path, each in PATHS.items() if hasattr(each, "commands")]
COMMANDS: dict[str, Any] = {path: each for path, each in PATHS.items() if path not in GROUPS}
MANY = 12
"""Options from which the help has panels."""

NO_DEFAULT = {"--checkpoint", "--draft-model", "--env", "--secret", "--only", "--enqueue", "--learn-from"}
ONE_OF_THREE = {"--preset", "--workload", "--study"}
"""Options of `tuner server load` of which exactly one is given."""


@functools.cache
def help_of(command: str) -> str:
    return run_here(ROOT, *command.split(), "--help-all" if "--help-all" in names(command) else "--help").out


def names(command: str) -> set[str]:
    return {name for option in options_of(command) for name in option.opts}


def options_of(command: str) -> list[Any]:
    return [each for each in COMMANDS[command].params if each.param_type_name == "option"]


def sections(text: str) -> dict[str, str]:
    _, *parts = re.split(r"^(\w[^\n]*):\n", text, flags=re.MULTILINE)
    return dict(zip(parts[::2], parts[1::2], strict=True))


def entries(section: str) -> dict[str, str]:
    """Return the text of each option in a section on one line, by the option's longest name."""
    found: dict[str, str] = {}
    for entry in re.split(r"^  (?=-)", section, flags=re.MULTILINE)[1:]:
        text = " ".join(entry.split())
        found[re.findall(r"--[a-z-]+", text)[0]] = text
    return found


def all_entries(text: str) -> dict[str, str]:
    return {name: entry for section in sections(text).values() for name, entry in entries(section).items()}


@pytest.mark.parametrize("command", ["", *GROUPS, *COMMANDS])
def test_help_is_one_screen_of_80_columns(tmp_path: Path, command: str) -> None:
    lines = run_here(tmp_path, *command.split(), "--help").out.splitlines()
    assert len(lines) <= 40
    assert max(map(len, lines)) <= 80


def test_the_list_of_commands_has_whole_sentences(tmp_path: Path) -> None:
    for words in ("--help",), ("--help-all",), *((group, "--help") for group in GROUPS):
        assert "..." not in run_here(tmp_path, *words).out.replace("[ARGS]...", "")


def test_the_help_has_the_commands_and_names_those_of_groups(tmp_path: Path) -> None:
    shown = run_here(tmp_path, "--help").out
    assert sorted(re.findall(r"^  ([a-z][a-z-]+)  ", shown, re.MULTILINE)) == sorted(TREE.commands)
    assert "server Measure and watch servers that run already: load, verify, compare, drift." in " ".join(shown.split())
    assert "--help-all  Show every command" in shown
    every = re.findall(r"^  ([a-z][a-z -]+?)  ", run_here(tmp_path, "--help-all").out, re.MULTILINE)
    assert sorted(every) == sorted(COMMANDS)


@pytest.mark.parametrize(
    ("words", "wrong", "meant"),
    [
        ("submit", "submit", ["service submit"]),
        ("study submit --help", "study submit", ["service submit"]),
        ("study optimize", "study optimize", ["optimize"]),
        ("compare 0 1", "compare", ["study compare", "server compare"]),
        ("studies", "studies", ["study"]),
        ("study trails", "study trails", ["study trials", "study trial"]),
        ("traffic imprt x", "traffic imprt", ["traffic import"]),
        ("exprot", "exprot", ["study export"]),
        ("nothing", "nothing", []),
    ],
)
def test_a_wrong_command_is_refused_with_the_one_that_exists(
    tmp_path: Path, words: str, wrong: str, meant: list[str]
) -> None:
    asked = f"did you mean {' or '.join(f'`tuner {path}`' for path in meant)}?" if meant else "see `tuner --help-all`"
    refused(run_here(tmp_path, *words.split()), tmp_path, f"tuner: there is no command {wrong!r}; {asked}\n")


@pytest.mark.parametrize("path", [path for path in COMMANDS if " " in path])
def test_a_command_without_its_group_is_found(tmp_path: Path, path: str) -> None:
    name = path.split()[-1]
    found = run_here(tmp_path, name)
    assert (f"`tuner {path}`" in found.err) is (name not in TREE.commands)


def test_the_help_of_optimize_shows_the_options_of_a_first_study_and_names_the_rest(tmp_path: Path) -> None:
    first = "--preset --trials --timeout --study --model --engine --gpu --workload --users --objective --slo --baseline"
    assert [*all_entries(run_here(tmp_path, "optimize", "--help").out)] == [*first.split(), "--help-all", "--help"]
    assert {"--repeats", "--warm-start", "--sglang", "--output"} <= {*all_entries(help_of("optimize"))}


def test_every_name_of_a_first_week_exists() -> None:
    for command, first in FIRST_WEEK.items():
        assert first - {parameter.name for parameter in (COMMANDS.get(command) or TREE).params} == set(), command


@pytest.mark.parametrize("command", COMMANDS)
def test_values_are_named_in_words(command: str) -> None:
    text = help_of(command)
    assert re.findall(r"<(?:str|int|float|bool|path|list|file|dir)\b|\brange>|list\[|<=x|x>=", text) == []
    for option in options_of(command):
        if not option.is_flag:
            assert f"{option.opts[0]} {option.metavar}" in text
            assert option.metavar == option.metavar.upper()


@pytest.mark.parametrize("command", COMMANDS)
def test_every_option_is_in_a_panel(command: str) -> None:
    panels = sections(help_of(command))
    options = options_of(command)
    if len(options) < MANY:
        assert {*panels} <= {"Arguments", "Options"}
        return
    assert "Options" not in panels
    for option in options:
        assert max(option.opts, key=len) in entries(panels[option.rich_help_panel])


@pytest.mark.parametrize("command", COMMANDS)
def test_defaults_are_shown(command: str) -> None:
    text = all_entries(help_of(command))
    without = NO_DEFAULT | (ONE_OF_THREE if command == "server load" else set())
    for option in options_of(command):
        name = max(option.opts, key=len)
        expected = not option.required and not (option.is_flag and option.default is False) and name not in without
        assert ("default: " in text[name]) is expected, text[name]
        if expected and option.default not in (None, True) and not isinstance(option.show_default, str):
            assert f"default: {option.default}" in text[name]


@pytest.mark.parametrize("command", COMMANDS)
def test_repeatable_is_said_once(command: str) -> None:
    text = all_entries(help_of(command))
    for option in options_of(command):
        name = max(option.opts, key=len)
        assert text[name].count("repeatable") == int(option.multiple), text[name]


LLAMA = "meta-llama/Llama-3.1-8B-Instruct"
FLAGS = ("--engine", "simulated", "--prompts", "8", "--users", "4", "--trials", "1", "--confirm-rounds", "0")


@pytest.mark.parametrize(
    ("settings", "card", "name"),
    [
        (StudySettings(), None, "qwen2.5-0.5b-t4"),
        (StudySettings(), "t4", "qwen2.5-0.5b-t4"),
        (StudySettings(), "h100", "qwen2.5-0.5b-h100"),
        (StudySettings(model=LLAMA), "h100", "llama-3.1-8b-instruct-h100"),
        (
            StudySettings(model=LLAMA, max_concurrency=32, input_len=1024, output_len=256),
            "t4",
            "llama-3.1-8b-instruct-users32-in1024-out256",
        ),
        (
            StudySettings(workload=("docs/day time.yaml",), rate=2.5),
            "t4",
            "qwen2.5-0.5b-t4-day-time-rate2.5",
        ),
        (StudySettings(preset="chat"), "t4", "chat"),
        (StudySettings(preset="chat", model="./My Model/"), "l4", "chat-my-model-l4"),
    ],
)
def test_the_name_has_what_the_settings_change(settings: StudySettings, card: str | None, name: str) -> None:
    assert default_name(settings, load_preset(settings.preset), card) == name


def test_two_models_in_one_folder_are_two_studies(tmp_path: Path) -> None:
    first = run_here(tmp_path, "optimize", *FLAGS)
    again = run_here(tmp_path, "optimize", *FLAGS)
    other = run_here(tmp_path, "optimize", *FLAGS, "--model", "Qwen/Qwen2.5-1.5B")
    assert [printed.code for printed in (first, again, other)] == [0, 0, 0], other.err
    assert "study qwen2.5-0.5b-t4-users4-prompts8: 1 trial (1 finished before)" in again.err
    assert "study qwen2.5-1.5b-users4-prompts8: 1 trial," in other.err


def test_a_changed_premise_is_one_short_line(tmp_path: Path) -> None:
    run_here(tmp_path, "optimize", *FLAGS, "--study", "s")
    changed = ["--model", "Qwen/Qwen2.5-1.5B", "--gpu", "h100", "--input-len", "99", "--slo", "p99_tpot_ms<9"]
    printed = run_here(tmp_path, "optimize", *FLAGS, "--study", "s", *changed)
    assert printed.code == 2
    assert printed.err == (
        "tuner: --study 's': the study of this name has another model ('Qwen/Qwen2.5-0.5B' -> 'Qwen/Qwen2.5-1.5B'), "
        "device (Tesla T4 -> NVIDIA H100 80GB HBM3), workload (input_len: 512 -> 99) and 4 more; "
        "give the same settings, or another name\n"
    )


def test_the_order_of_differences() -> None:
    old = {"space": {"parameters": [1]}, "slos": ["a"], "workload": {"input_len": 1, "users": 1}}
    new = {"space": {"parameters": [2]}, "slos": ["b"], "workload": {"input_len": 2, "users": 2}}
    assert summary_of(difference(old, new)) == "workload (input_len: 1 -> 2), SLOs (a -> b), search space"


def test_a_second_study_in_a_folder_keeps_the_script_of_the_first(tmp_path: Path) -> None:
    load = ("--engine", "simulated", "--users", "2", "--prompts", "4", "--trials", "1", "--confirm-rounds", "0")
    script = tmp_path / "best_serve.sh"
    ran(tmp_path, "optimize", *load, "--study", "one", "--plain")
    first = script.read_text()
    second = ran(tmp_path, "optimize", *load, "--study", "two", "--plain")
    assert "best_serve.sh is a file of study 'one' and stays" in second.err
    assert script.read_text() == first
    assert "# study     two, trial 0" in (tmp_path / "best_serve-two.sh").read_text()
    refused = run_here(tmp_path, "optimize", *load, "--study", "three", "-o", "best_serve-two.sh")
    assert (refused.code, len(refused.err.splitlines())) == (2, 1)
    exported = run_here(tmp_path, "study", "export", "two")
    assert (exported.code, script.read_text()) == (2, first)
    ran(tmp_path, "study", "export", "one")


def test_every_preset_is_listed_with_model_card_workload_and_slos(tmp_path: Path) -> None:
    listed = json.loads(run_here(tmp_path, "study", "presets", "--json").out)
    assert [each["preset"] for each in listed] == preset_names()
    (chat,) = (each for each in listed if each["preset"] == "chat")
    assert (chat["model"], chat["hardware"]) == ("Qwen/Qwen2.5-0.5B", "t4")
    assert chat["workload"]["arrivals"] == {"process": "poisson", "rate": 20.0}
    assert chat["slos"] == ["chat.p95_ttft_ms<1000", "chat.p95_tpot_ms<50"]


def test_the_table_breaks_no_name(tmp_path: Path) -> None:
    shown = run_here(tmp_path, "study", "presets").out
    words = set(shown.split())
    assert {*preset_names()} <= words
    assert {"Qwen/Qwen2.5-14B-Instruct", "rtx6000ada", "silo.p95_itl_ms<250"} <= words
    assert max(map(len, shown.splitlines())) <= 100
