"""Every command that a page shows is run, and every output that it shows is compared.

A page has a folder of its own, in which its commands run in order, as a reader would. README and quickstart share one,
and a study that both show runs once. The quickstart comes first, because it shows the trials of its first study before
it runs another. Without a GPU the studies are simulated, and seeded ones repeat exactly.
"""

import json
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.cli.command import CommandOutput, run_here
from tests.cli.conftest import short_traffic
from tests.fakes import WITHOUT_MLFLOW
from tests.pages import PAGES, ROOT, Step, commands_in, missing_lines, python_of, steps_of, tuner_words
from tests.service.running import Service, running_service

FIRST = ("docs/quickstart.md", "README.md")
RUN = [page for page in PAGES if page.parent.name != "reports" and steps_of(page)]

NOT_RUN = {
    "git clone": "the test runs in a clone",
    "pip install uv": ".ci/fresh runs this line",
    "uv sync": ".ci/fresh and .ci/run install the groups",
    "source .venv/bin/activate": "the tests run in the environment",
    "uv build": "tests/test_distribution.py builds the wheel and installs it",
    "pytest": "this is such a run",
    "uv run ruff": ".ci/run runs it",
    "uv run mypy": ".ci/run runs it",
    "export TUNER_SERVER": "the test's service has an address and a token of its own",
    "install-vllm": "installs 3 GB from a package index",
    "--model tiny": "needs that vLLM: tests/real runs such studies",
    "pip install vllm": "installs 10 GB from a package index",
    "--timeout 45m": "needs a GPU with 24 GB",
    "--confirm 2": "needs H200s: tests/unit/use_cases/size confirms with a fake vLLM",
    "study kernels": "needs a GPU",
    "./best_serve.sh": "needs vLLM: tests/unit/export/test_verify.py has a fake one",
    "bin/vllm": "needs an installation of vLLM: tests/cli/test_recheck.py has fake ones",
    "--engine llama.cpp": "needs llama.cpp and a model: tests/real/test_llama_cpp.py",
    "--sglang ~": "needs SGLang",
    "--max_seq_len": "needs TensorRT-LLM",
    "my-server": "needs a server of the reader",
    "10.0.0.": "needs servers at these addresses",
    "HEAD:6379": "needs a Ray cluster: tests/cli/test_cluster.py joins one",
    "ray start": "starts a Ray cluster",
    "hf download": "needs the hub",
    "docker": "needs Docker",
    "kubectl": "needs Kubernetes",
    "helm install": "needs Kubernetes: tests/unit/deploy/test_chart.py renders the chart",
    "deploy/postgres_password": "belongs to Docker",
    "mcp": "speaks with an agent: tests/cli/test_agent.py",
    "oidc": "needs a provider: tests/browser signs in at one",
    "webhook": "needs a receiver: tests/unit/service sends messages to one",
    "pg_dump": "needs the service's PostgreSQL",
    "sqlite3": "needs the operator's database",
    "ssh -N": "needs another machine",
    "uvx": "needs the package index: tests/browser opens optuna-dashboard",
}
"""Parts of command lines that are not run here, with the reason."""

PROGRAMS = {"docs/service.md": ("curl",)}
"""Programs that a page needs, and README.md does not install."""

WIDTH = 100
PATIENCE_S = 600


@dataclass
class Reader:
    """A reader who tries a page: the folder, the result of each command, and the service that runs."""

    folder: Path
    printed: dict[str, CommandOutput] = field(default_factory=dict)
    service: Service | None = None
    stack: ExitStack = field(default_factory=ExitStack)

    def run(self, words: list[str]) -> CommandOutput:
        """Run a command of the tuner once."""
        line = shlex.join(words)
        if line not in self.printed:
            self.printed[line] = run_here(self.folder, *map(os.path.expandvars, words))
        return self.printed[line]

    def serve(self) -> CommandOutput:
        """Start the service, on a free port, and use it from now on."""
        self.service = self.stack.enter_context(running_service(self.folder))
        self.stack.callback(lambda: os.environ.pop("TUNER_SERVER") and os.environ.pop("TUNER_TOKEN"))
        os.environ.update(TUNER_SERVER=self.service.address, TUNER_TOKEN=self.service.token)
        return CommandOutput(0, "", "")

    def run_shell(self, line: str) -> CommandOutput:
        """Run the line of another program."""
        line = line.replace("uv run python ", f"{shlex.quote(sys.executable)} ")
        environment = {**os.environ, "PYTHONPATH": f"{ROOT}:{WITHOUT_MLFLOW['PYTHONPATH']}"}
        done = subprocess.run(
            ["bash", "-c", line],
            cwd=self.folder,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=PATIENCE_S,
        )
        return CommandOutput(done.returncode, done.stdout, done.stderr)


def new_reader(folder: Path) -> Reader:
    """Return a reader with the examples, of which no page shows what the traffic gives, and with a trace of its own."""
    shutil.copytree(ROOT / "docs" / "examples", folder / "docs" / "examples")
    short_traffic(folder / "docs" / "examples" / "traffic.yaml")
    shutil.copy(ROOT / "docs" / "examples" / "search_space.yaml", folder)
    requests = [
        {"timestamp": 250 * i, "input_length": 600, "output_length": 40 + i % 50, "hash_ids": [i % 3, 100 + i]}
        for i in range(400)
    ]
    (folder / "trace.jsonl").write_text("".join(json.dumps(each) + "\n" for each in requests))
    return Reader(folder)


@pytest.fixture(scope="module")
def reader(home: Path, tmp_path_factory: pytest.TempPathFactory) -> Reader:
    return new_reader(tmp_path_factory.mktemp("reader"))


@pytest.fixture
def own_reader(home: Path, tmp_path: Path) -> Iterator[Reader]:
    found = new_reader(tmp_path)
    with found.stack:
        yield found


@pytest.fixture(autouse=True)
def terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(WIDTH))


def reason_against(line: str) -> str | None:
    """Return why a line is not run; None if it is."""
    return next((reason for part, reason in NOT_RUN.items() if part.lower() in line.lower()), None)


def outputs(step: Step, reader: Reader) -> list[CommandOutput]:
    """Run the commands of a step; none if there is a reason against it."""
    if reason_against(step.line):
        return []
    found = [tuner_words(words) for words in commands_in(step.line)]
    if None in found:
        return [reader.run_shell(step.line)]
    return [reader.serve() if words == ["serve"] else reader.run(words) for words in found if words is not None]


def follow(page: Path, reader: Reader) -> None:
    """Run the commands of a page in order, and compare what it shows of their output.

    Raises:
        AssertionError: if a command fails, or prints something else.
    """
    for step in steps_of(page):
        printed = outputs(step, reader)
        assert [each for each in printed if each.code != 0] == [], f"{page.name}: {step.line}"
        if step.shown and printed:
            assert len(printed) == 1, f"{page.name}: whose output is shown after {step.line}?"
            assert missing_lines(step.shown, printed[0].out) == [], f"{page.name}: {step.line}"


@pytest.mark.slow
@pytest.mark.parametrize("page", FIRST)
def test_every_command_of_a_first_page_runs_and_prints_what_is_shown(page: str, reader: Reader) -> None:
    follow(ROOT / page, reader)


@pytest.mark.slow
@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, id=name, marks=[pytest.mark.program(each) for each in PROGRAMS.get(name, ())])
        for page in RUN
        if (name := str(page.relative_to(ROOT))) not in FIRST
    ],
)
def test_every_command_of_a_page_runs_and_prints_what_is_shown(page: Path, own_reader: Reader) -> None:
    follow(page, own_reader)


def test_every_reason_is_needed() -> None:
    lines = [step.line.lower() for page in RUN for step in steps_of(page)]
    assert [part for part in NOT_RUN if not any(part.lower() in line for line in lines)] == []
    assert sum(reason_against(line) is None for line in lines) > 50


@pytest.mark.slow
def test_the_python_of_the_pages_runs(own_reader: Reader) -> None:
    programs = [program for page in FIRST for program in python_of(ROOT / page)]
    assert programs
    for program in programs:
        done = own_reader.run_shell(shlex.join([sys.executable, "-c", program]))
        assert done.code == 0, done.err
        assert done.out.strip()


@pytest.mark.slow
def test_the_first_command_writes_the_files_that_the_pages_name(reader: Reader) -> None:
    assert reader.run(["optimize", "--trials", "60"]).code == 0
    assert (reader.folder / "best_serve.sh").is_file()
    assert (reader.folder / "tuner_study" / "tuner.db").is_file()


def test_glossary_terms_are_in_order_of_sections_and_defined_once() -> None:
    page = (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8")
    terms = [line.split("|")[1].strip() for line in page.splitlines() if line.startswith("| ")]
    names = [name.strip() for term in terms if term != "term" for name in term.split(",")]
    assert len(names) > 40
    assert sorted({name for name in names if names.count(name) > 1}) == []
