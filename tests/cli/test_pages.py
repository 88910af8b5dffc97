"""README and quickstart: every command that they show is run, and every output that they show is compared.

One folder, in the order of the pages, as a reader would; seeded simulated studies repeat exactly. The quickstart comes
first, because it shows the trials of its first study before it runs another. A study that both pages show runs once.
"""

import shlex
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.cli.command import CommandOutput, run_apart, run_here
from tests.pages import ROOT, Step, commands_in, missing_lines, python_of, steps_of, tuner_words

RUN = ("docs/quickstart.md", "README.md")
NOT_TUNER = {
    ("git", "clone"): "the test runs in a clone",
    ("cd", "tuner"): "the test runs in a clone",
    ("python3", "-m"): ".ci/fresh runs this line",
    (".uv/bin/pip", "install"): ".ci/fresh runs this line",
    (".uv/bin/uv", "sync"): ".ci/run runs it",
    ("uv", "build"): "tests/test_distribution.py builds the wheel",
    ("pip", "install"): "tests/test_distribution.py installs the wheel",
    (".uv/bin/uv", "run"): "this is such a run",
    ("source", ".venv/bin/activate"): "the tests run in the environment",
}
NOT_HERE = {"--ray-address": "needs a Ray cluster: tests/unit/executors joins one"}
WIDTH = 100


@dataclass
class Reader:
    """A reader who tries a page: the folder, and the result of each command."""

    folder: Path
    printed: dict[str, CommandOutput] = field(default_factory=dict)

    def run(self, words: list[str]) -> CommandOutput:
        """Run a command once; a study in a process of its own, all others in this one."""
        line = shlex.join(words)
        if line not in self.printed:
            run = run_apart if words[0] == "optimize" else run_here
            self.printed[line] = run(self.folder, *words)
        return self.printed[line]


@pytest.fixture(scope="module")
def reader(home: Path, tmp_path_factory: pytest.TempPathFactory) -> Reader:
    folder = tmp_path_factory.mktemp("reader")
    shutil.copytree(ROOT / "docs" / "examples", folder / "docs" / "examples")
    return Reader(folder)


@pytest.fixture(autouse=True)
def terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(WIDTH))


def commands(step: Step) -> list[list[str]]:
    """Return the words after `tuner` of each command of a step that can run here.

    Raises:
        AssertionError: if a command is neither run nor excused.
    """
    found = []
    for words in commands_in(step.line):
        rest = tuner_words(words)
        if rest is None:
            assert tuple(words[:2]) in NOT_TUNER, f"{step.page}: nobody runs {shlex.join(words)}"
        elif not any(option in rest for option in NOT_HERE):
            found.append(rest)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("page", RUN)
def test_every_command_runs_and_prints_the_output_of_the_page(page: str, reader: Reader) -> None:
    ran = 0
    for step in steps_of(ROOT / page):
        outputs = []
        for words in commands(step):
            printed = reader.run(words)
            assert printed.code == 0, f"{step.line}: {printed.err}"
            outputs.append(printed.out)
            ran += 1
        if step.shown:
            assert len(outputs) == 1, f"{page}: whose output is shown after {step.line}?"
            assert missing_lines(step.shown, outputs[0]) == [], f"{page}: {step.line}"
    assert ran >= 3


@pytest.mark.slow
def test_the_python_of_the_pages_runs(home: Path, tmp_path: Path) -> None:
    programs = [program for page in RUN for program in python_of(ROOT / page)]
    assert programs
    for program in programs:
        done = subprocess.run(
            [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        assert done.stdout.strip()


@pytest.mark.slow
def test_the_first_command_writes_the_files_that_the_pages_name(reader: Reader) -> None:
    assert reader.run(["optimize", "--trials", "60"]).code == 0
    assert (reader.folder / "best_serve.sh").is_file()
    assert (reader.folder / "tuner_study" / "tuner.db").is_file()


def test_glossary_terms_are_in_order_of_sections_and_defined_once() -> None:
    page = (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8")
    terms = [line.split("|")[1].strip() for line in page.splitlines() if line.startswith("| ")]
    names = [name.strip() for term in terms if term != "term" for name in term.split(",")]
    assert len(names) > 50
    assert sorted({name for name in names if names.count(name) > 1}) == []
