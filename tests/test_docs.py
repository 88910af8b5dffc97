"""The pages say what the program does: commands parse, metrics, spaces and presets exist, links lead somewhere."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer

from storage.metrics import METRICS
from tuner.cli.main import app
from tuner.scoring.slo import parse_slo

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
GROUP = typer.main.get_command(app)

_BLOCK = re.compile(r"^```(?:console|bash|sh)\n(.*?)^```", re.DOTALL | re.MULTILINE)
_INLINE = re.compile(r"(?<!`)`(tuner [^`]+)`(?!`)")
_METRIC_LIKE = re.compile(r"\b(?:mean|median|std|p\d+)_(?:ttft|tpot|itl|e2el)_ms\b|\b\w+_throughput\b|\bsuccess_rate\b")
_ENDS = {"|", ">", ">>", "&&", ";", "2>"}


def commands_of(text: str) -> Iterator[list[str]]:
    """Yield the words after `tuner` of every command that a page's fenced blocks show."""
    for block in _BLOCK.findall(text):
        for line in block.replace("\\\n", " ").splitlines():
            words = shlex.split(line.removeprefix("$ "), comments=True)
            while words:
                end = next((i for i, word in enumerate(words) if word in _ENDS), len(words))
                one, words = words[:end], words[end + 1 :]
                if "tuner" in one[:3]:
                    yield one[one.index("tuner") + 1 :]


def parse(words: list[str]) -> None:
    """Let the command's own parser read the words; nothing is run.

    Raises:
        Exception: the parser's, for a command or an option that does not exist or a value of the wrong type.
    """
    command = GROUP.commands[words[0]]  # type: ignore[attr-defined]
    command.make_context(words[0], words[1:])


def shown() -> Iterator[tuple[str, list[str]]]:
    for page in PAGES:
        for words in commands_of(page.read_text(encoding="utf-8")):
            yield f"{page.name}: tuner {shlex.join(words)}", words


SHOWN = dict(shown())


@pytest.mark.parametrize("command", SHOWN)
def test_a_command_of_the_pages_parses(command: str) -> None:
    parse(SHOWN[command])


def test_the_pages_show_commands() -> None:
    assert ["optimize", "--trials", "60"] in SHOWN.values()


@pytest.mark.parametrize("words", [["optimize", "--trails", "3"], ["optimize", "--trials", "x"], ["show"]])
def test_the_checker_refuses(words: list[str]) -> None:
    with pytest.raises(typer.BadParameter.__mro__[1]):
        parse(words)


def test_the_checker_reads_blocks() -> None:
    page = (
        "`tuner nothing`\n```bash\npip install uv && uv run tuner optimize --trials 3 \\\n  --slo 'p99_ttft_ms<9'\n"
        "# tuner no\n```\n```yaml\ntuner: x\n```\n```console\n$ tuner trials --csv > x.csv\nout\n```\n"
    )
    assert list(commands_of(page)) == [
        ["optimize", "--trials", "3", "--slo", "p99_ttft_ms<9"],
        ["trials", "--csv"],
    ]


def test_commands_in_the_text_exist() -> None:
    wrong = []
    for page in PAGES:
        for text in _INLINE.findall(page.read_text(encoding="utf-8")):
            name, *rest = text.split()[1:]
            command = GROUP.commands.get(name)  # type: ignore[attr-defined]
            options = {option for parameter in command.params for option in parameter.opts} if command else set()
            wrong += [f"{page.name}: {text}" for word in rest if word.startswith("-") and word not in {*options, "--"}]
            wrong += [] if command or name in ("…", "--debug", "--help") else [f"{page.name}: {text}"]
    assert wrong == []


def test_metrics_in_the_pages_exist() -> None:
    named = {
        (page.name, name)
        for page in PAGES
        for code in re.findall(r"`([^`\n]+)`", page.read_text(encoding="utf-8"))
        for name in _METRIC_LIKE.findall(code)
    }
    assert ("README.md", "output_throughput") in named
    defined_by_an_example = {("metric.md", "input_throughput")}
    assert sorted(name for name in named - defined_by_an_example if name[1] not in METRICS) == []


def test_slos_in_the_pages_are_slos() -> None:
    slos = [words[index + 1] for words in SHOWN.values() for index, word in enumerate(words) if word == "--slo"]
    assert slos
    for slo in slos:
        parse_slo(slo)


def test_links_to_files_lead_somewhere() -> None:
    missing = [
        f"{page.name}: {target}"
        for page in PAGES
        for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8"))
        if "://" not in target and not (page.parent / target).exists()
    ]
    assert missing == []
