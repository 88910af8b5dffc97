"""Which tests run: the default leaves out what is marked slow, `.ci/run` what is marked release, and nothing else.

`.ci/fresh`, which `.ci/run` starts, runs the default tests where no program of tests/programs.py is installed.
"""

from __future__ import annotations

import re
import shlex
import tomllib
from pathlib import Path

import pytest

from tests.conftest import SLOW_FOLDERS

ROOT = Path(__file__).parents[1]
TESTS = ROOT / "tests"
OPTIONS = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["pytest"]["ini_options"]
LEAVES_OUT = ("-k", "--ignore", "--deselect", "--lf", "--ff", "--maxfail", "-x")
HARMLESS = {"-q", "--strict-markers", "--strict-config", "-n", "2", "--dist", "loadfile", "--max-worker-restart=0"}


def test_the_default_leaves_out_slow_tests_only() -> None:
    words = shlex.split(OPTIONS["addopts"])
    assert words[words.index("-m") + 1] == "not slow"
    assert {*words} - {"-m", "not slow"} == HARMLESS
    assert OPTIONS["testpaths"] == ["tests"]


def test_ci_runs_every_test_but_those_of_a_release() -> None:
    """The default tests run as in README.md; two runs have the others, and one failure fails the whole."""
    script = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    lines = [shlex.split(line) for line in re.findall(r"^.*\bpytest -.*$", script, re.MULTILINE)]
    words = [line[line.index("pytest") + 1 :] for line in lines]
    assert [each[:2] for each in words] == [["-m", "(slow or program) and not alone$without"], ["-m", "alone$without"]]
    cases = dict(re.findall(r"^  (\S+)\) without='(.*)' ;;$", script, re.MULTILINE))
    assert cases == {"''": " and not release", "--release": ""}
    assert [each[-2:] for each in words] == [["||", "failed=1"]] * 2
    assert [word for each in words for word in each if word.startswith((*LEAVES_OUT, "tests"))] == []
    assert "\n.ci/fresh || failed=1\n" in script
    assert script.endswith('exit "$failed"\n')
    assert "export CI=true" in script, "without CI a test that lacks vLLM or PostgreSQL is skipped"


def test_ci_runs_the_commands_of_the_readme_before_it_installs_more() -> None:
    """Nothing but what `.ci/fresh` itself needs is installed before; that is not in its chroot."""
    script = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    installed = re.findall(r"^install (.*)$", script.partition(".ci/fresh")[0], re.MULTILINE)
    assert installed == ["debootstrap python3-venv"]
    fresh = (ROOT / ".ci" / "fresh").read_text(encoding="utf-8")
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert "'/^## Try it$/,/^## /p' README.md" in fresh
    section = readme.partition("\n## Try it\n")[2].partition("\n## ")[0]
    assert "`sudo apt install git python3-venv`" in section
    assert ".uv/bin/uv run pytest\n" in section


def test_every_marker_is_explained_to_contributors() -> None:
    names = [marker.partition(":")[0] for marker in OPTIONS["markers"]]
    assert sorted(names) == ["alone", "program(name)", "release", "slow", "vllm"]
    page = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    assert [name for name in names if f"-m {name.partition('(')[0]}" not in page] == []


def test_a_slow_folder_has_fast_tests_of_the_same_code() -> None:
    for folder, fast in SLOW_FOLDERS.items():
        assert any((TESTS / folder).glob("test_*.py")), folder
        assert any((ROOT / fast).glob("test_*.py")), fast


def test_a_file_has_fast_tests_beside_its_slow_ones() -> None:
    """A file of slow tests only would not run for a newcomer at all."""
    for path in sorted(TESTS.rglob("test_*.py")):
        text = path.read_text(encoding="utf-8")
        if path.relative_to(TESTS).parts[0] in SLOW_FOLDERS or "mark.slow" not in text or path == Path(__file__):
            continue
        assert not re.search(r"^pytestmark\b.*?mark\.slow", text.partition("\ndef ")[0], re.DOTALL | re.MULTILINE), path
        slow, tests = len(re.findall(r"^\s*@pytest\.mark\.slow", text, re.MULTILINE)), text.count("def test_")
        assert slow < tests, path


def test_hangs_are_found_and_busy_machines_are_not() -> None:
    """A test on a busy machine may take ten times as long as on a quiet one, where none takes three minutes."""
    assert OPTIONS["timeout"] >= 1800
    lower = [
        (path.name, int(seconds))
        for path in TESTS.rglob("test_*.py")
        for seconds in re.findall(r"mark\.timeout\((\d+)\)", path.read_text(encoding="utf-8"))
        if int(seconds) < OPTIONS["timeout"]
    ]
    assert lower == []


@pytest.mark.slow
def test_this_one_is_left_out_by_default(request: pytest.FixtureRequest) -> None:
    assert request.config.getoption("markexpr") != "not slow"
