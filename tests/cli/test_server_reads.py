"""Commands that read a database print the same, byte for byte, of a server's studies."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.cli.command import refused, run_here
from tests.served import Served, serving

TRAFFIC = """\
arrivals: {process: poisson, rate: 4}
requests: 24
classes:
  chat: {weight: 2, input: 128, output: 32}
  code: {weight: 1, input: 512, output: 64}
slo:
  chat: {ttft_ms: 2000}
  code: {ttft_ms: 200}
"""
SIMULATED = ("--engine", "simulated", "--gpu", "t4", "--no-reduce", "--confirm-rounds", "1", "--trials", "3")


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory, home: Path) -> Iterator[Served]:
    """A service whose database has a study of a closed loop, one of traffic, and one that has not begun."""
    folder = tmp_path_factory.mktemp("served")
    (folder / "traffic.yaml").write_text(TRAFFIC)
    with serving(folder) as found, pytest.MonkeyPatch.context() as patch:
        patch.setenv("TUNER_TOKEN", found.tokens["ada"])
        loads = {"loop": ("--prompts", "12", "--users", "4"), "mix": ("--workload", "traffic.yaml")}
        for study, load in loads.items():
            found.submit(study, shared=study == "mix")
            words = ("optimize", "--study", study, "--storage", found.storage, *SIMULATED, *load)
            printed = run_here(folder, *words)
            assert printed.code in (0, 3), printed.err
        found.submit("waits")
        found.submit("bens", "ben")
        yield found


COMMANDS = [
    "study list",
    "study list --json",
    "study trials",
    "study trials loop --csv",
    "study trials loop --json",
    "study trials loop --sort score --top 2",
    "study trials loop --failed",
    "study show loop",
    "study show loop --json",
    "study show loop --pareto --csv",
    "study show loop --objective output_throughput",
    "study trial loop#1",
    "study trial loop#2 --json",
    "study trial loop#99",
    "study compare loop#0 loop#1",
    "study compare mix#0 mix#1 --json",
    "study compare loop#0 mix#1",
    "study tradeoff mix",
    "study tradeoff loop",
    "study requests mix --trial 0",
    "study show mix --csv",
]


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_prints_the_same(served: Served, folder: Path, command: str) -> None:
    own = run_here(folder, *command.split(), "--storage", served.storage)
    theirs = run_here(folder, *command.split(), "--server", served.url)
    places = (f"--server {served.url}", f"--storage {served.storage}")  # which commands to paste repeat
    assert replace(theirs, out=theirs.out.replace(*places), err=theirs.err.replace(*places)) == own
    assert own.code in (0, 2)
    assert own.out or own.code == 2
    assert [*folder.iterdir()] == []


@pytest.mark.parametrize(
    "form", ["script", "command", "vllm-config", "compose", "kubernetes", "kserve", "ray-serve", "systemd"]
)
def test_an_export_is_the_same(served: Served, folder: Path, form: str) -> None:
    files = []
    for place in (("--storage", served.storage), ("--server", served.url)):
        made = folder / place[0].strip("-")
        made.mkdir()
        printed = run_here(made, "study", "export", "loop", "--trial", "1", "--format", form, "-o", "x", *place)
        files.append((printed, {path.name: path.read_bytes() for path in made.iterdir()}))
    assert files[0] == files[1]
    assert files[0][1]


@pytest.mark.parametrize("names", ["", "loop mix"])
def test_a_report_is_the_same(served: Served, folder: Path, names: str) -> None:
    for output, place in (("a.html", ("--storage", served.storage)), ("b.html", ("--server", served.url))):
        printed = run_here(folder, "study", "report", *names.split(), "-o", output, *place)
        assert (printed.code, printed.out) == (0, f"wrote {output}; open it in a browser\n")
    assert (folder / "a.html").read_bytes() == (folder / "b.html").read_bytes()


@pytest.mark.parametrize(
    ("command", "part"),
    [
        ("study trials waits", "the study 'waits' has not begun yet"),
        ("study trials bens", "there is no study 'bens' that you may read"),
        ("study show nope", "there is no study 'nope'"),
        ("study export loop --format odd", "--format 'odd'"),
        ("study report nope", "there is no study 'nope'"),
        ("study report waits", "there is no finished trial of the study 'waits'"),
        ("study report --bundle", "--bundle needs the server's database"),
        ("study report loop -o no/r.html", "-o 'no/r.html': the file cannot be written"),
        ("study list --storage x.db", "--server and --storage exclude each other"),
    ],
)
def test_mistakes_are_one_line(served: Served, folder: Path, command: str, part: str) -> None:
    refused(run_here(folder, *command.split(), "--server", served.url), folder, part)


def test_without_a_study_that_has_begun(served: Served, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    served.service.share("mix", False)
    try:
        monkeypatch.setenv("TUNER_TOKEN", served.tokens["ben"])
        for command in ("trials", "list", "report"):
            refused(
                run_here(folder, "study", command, "--server", served.url),
                folder,
                "no study that you may read has begun",
            )
    finally:
        served.service.share("mix", True)
