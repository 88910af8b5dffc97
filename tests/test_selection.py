"""Which tests run, what programs they need, and that they end what they start.

`.ci/fresh`, which `.ci/run` starts, runs the default tests where no program of tests/programs.py is installed.
"""

import os
import re
import shlex
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from tests import programs
from tests.conftest import SLOW_FOLDERS, may_have_markers, only_marked
from tests.ended_with import living

ROOT = Path(__file__).parents[1]
TESTS = ROOT / "tests"
OPTIONS = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["pytest"]["ini_options"]
LEAVES_OUT = ("-k", "--ignore", "--deselect", "--lf", "--ff", "--maxfail", "-x")
HARMLESS = {"-q", "--strict-markers", "--strict-config", "-n", "3", "--dist", "loadfile"}
HARMLESS |= {"-p", "no:schemathesis", "--no-loadscope-reorder", "--max-worker-restart=0"}


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
    left_out = [word for each in words for word in each if word.startswith((*LEAVES_OUT, "tests"))]
    assert left_out == ["--ignore=tests/test_distribution.py"]
    fresh = (ROOT / ".ci" / "fresh").read_text(encoding="utf-8")
    assert "\n.uv/bin/uv run pytest -n 0 -m slow tests/test_distribution.py\nEND\n" in fresh
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
    assert ".uv/bin/uv run --group dev pytest\n" in section


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


@pytest.mark.parametrize(
    ("expression", "only"),
    [
        ("(slow or program) and not alone and not release", True),
        ("alone", True),
        ("not slow", False),
        ("slow or not program", False),
        ("", False),
    ],
)
def test_files_without_markers_are_left_out_where_only_marked_tests_are_asked_for(expression: str, only: bool) -> None:
    assert only_marked(expression) is only


def test_a_file_with_a_marked_test_is_told_by_its_text() -> None:
    """A marked test in another file fails every run of the default tests."""
    unit = TESTS / "unit"
    assert may_have_markers(TESTS / "real" / "test_answers.py")
    assert may_have_markers(unit / "engines" / "sglang" / "test_engine.py")
    assert may_have_markers(unit / "storage" / "test_store_postgresql.py")
    assert not may_have_markers(unit / "study" / "test_builder.py")


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


@pytest.mark.parametrize(("ci", "result"), [("true", pytest.fail.Exception), ("", pytest.skip.Exception)])
def test_without_its_program_a_test_fails_in_ci_and_is_skipped_elsewhere(
    monkeypatch: pytest.MonkeyPatch, ci: str, result: type[BaseException]
) -> None:
    monkeypatch.setitem(programs.FIND, "haproxy", lambda: None)
    monkeypatch.setenv("CI", ci)
    with pytest.raises(result, match=r"^haproxy is not installed \(Debian: apt-get install haproxy\)$"):
        programs.needed("haproxy")


def test_the_newest_postgresql_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for version in ("9.6", "15", "17"):
        (tmp_path / version / "bin").mkdir(parents=True)
        (tmp_path / version / "bin" / "initdb").touch()
    monkeypatch.setattr(programs, "POSTGRESQL", tmp_path)
    assert programs.needed("postgresql") == tmp_path / "17" / "bin" / "initdb"


def test_ci_installs_every_program() -> None:
    script = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    (packages,) = re.findall(r"^packages=\((.*)\)$", script, re.MULTILINE)
    assert set(programs.FIND) <= {*packages.split(), *programs.ELSEWHERE}
    assert [how for how in programs.ELSEWHERE.values() if f"$({how} " not in script] == []


PATIENCE_S = 300.0
END_S = 30.0
"""A quiet machine takes two seconds."""

TESTS_FOLDER = """
import subprocess, sys, time
from pathlib import Path

def test_processes():
    daemon = "import subprocess; subprocess.Popen(['/bin/sleep', '600'], start_new_session=True)"
    subprocess.run([sys.executable, "-c", daemon])  # its parent has ended
    (Path(__file__).parent / "ready").touch()
    time.sleep(600)
"""


def until(condition: Callable[[], bool], within_s: float) -> bool:
    deadline = time.monotonic() + within_s
    while not (met := condition()) and time.monotonic() < deadline:
        time.sleep(0.05)
    return met


def of_the_run(place: Path) -> list[psutil.Process]:
    """Return the living processes that inherited this run's own variable."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get("PLACE_OF_THE_RUN") == str(place):
                found.append(process)
        except psutil.Error:
            continue
    return living(found)


def test_a_process_that_lost_its_parent_ends_with_a_killed_run(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text("from tests.conftest import end_what_tests_start, pytest_configure\n")
    (tmp_path / "test_waiting.py").write_text(TESTS_FOLDER)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    words = [sys.executable, "-m", "pytest", "-p", "no:xdist", "--rootdir", str(tmp_path)]
    variables = {**os.environ, "PYTHONPATH": str(ROOT), "PLACE_OF_THE_RUN": str(tmp_path)}
    variables.pop("PYTEST_ADDOPTS", None)
    with (
        (tmp_path / "log").open("wb") as log,
        subprocess.Popen(
            [*words, "--basetemp", str(tmp_path / "t"), str(tmp_path)],
            cwd=tmp_path,
            env=variables,
            stdout=log,
            stderr=log,
        ) as run,
    ):
        try:
            assert until(lambda: run.poll() is not None or (tmp_path / "ready").exists(), PATIENCE_S)
            assert run.poll() is None, (tmp_path / "log").read_text()
            seen = of_the_run(tmp_path)
            assert any(process.name() == "sleep" for process in seen)
        finally:
            run.kill()
    assert until(lambda: living(seen) == [] == of_the_run(tmp_path), END_S), (living(seen), of_the_run(tmp_path))
