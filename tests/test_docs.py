"""The pages against the program: commands parse, metrics, tests and options exist, links and anchors lead somewhere.

`tests/cli/test_pages.py` runs what README, quickstart and glossary show.
"""

import html
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from records.metrics import METRICS
from tests.cli.command import PATHS, TREE
from tests.pages import PAGES, ROOT, Step, commands_in, missing_lines, steps_of, tuner_words
from tuner.scoring.goals import parse_slo

INPUT_METRIC = "input_throughput"
"""A metric that docs/examples/metric.md adds, and the program lacks."""

_INLINE = re.compile(r"(?<!`)`(tuner [^`]+)`(?!`)")
_METRIC_LIKE = re.compile(r"\b(?:mean|median|std|p\d+)_(?:ttft|tpot|itl|e2el)_ms\b|\b\w+_throughput\b|\bsuccess_rate\b")
_LINK = re.compile(r"\]\(([^)\s]+)\)")


def parse(words: list[str]) -> None:
    """Let the command's own parser read the words; nothing is run.

    Raises:
        Exception: the parser's, for a command or an option that does not exist or a value of the wrong type.
    """
    command, context = TREE, TREE.context_class(TREE, **TREE.context_settings)
    while hasattr(command, "commands") and not words[0].startswith("-"):
        command, words = command.commands[words[0]], words[1:]
    if command is not TREE:
        command.make_context(command.name, words, context)  # without its parent, it would forget `-h` for other tests


def shown() -> Iterator[tuple[str, list[str]]]:
    """Yield every `tuner` command in a fenced block of a page, with its name for pytest."""
    for page in PAGES:
        for step in steps_of(page):
            for words in commands_in(step.line):
                rest = tuner_words(words)
                if rest:
                    yield f"{page.name}: tuner {shlex.join(rest)}", rest


SHOWN = dict(shown())


def prose_of(page: Path) -> str:
    """Return a page without its fenced blocks."""
    return re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)


def anchors_of(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", prose_of(page), re.MULTILINE)
    plain = [re.sub(r"[`*]|\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower() for heading in headings]
    return {re.sub(r"[^\w\- ]", "", heading).replace(" ", "-") for heading in plain}


@pytest.mark.parametrize("command", SHOWN)
def test_a_command_of_the_pages_parses(command: str) -> None:
    parse(SHOWN[command])


def test_the_pages_show_commands() -> None:
    assert ["optimize", "--trials", "60"] in SHOWN.values()


@pytest.mark.parametrize("words", [["optimize", "--trails", "3"], ["optimize", "--trials", "x"], ["study", "trial"]])
def test_the_checker_refuses(words: list[str]) -> None:
    with pytest.raises(typer.BadParameter.__mro__[1]):
        parse(words)


def test_the_reader_of_pages_finds_commands_and_their_output(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "`tuner nothing`\n```bash\npip install uv && uv run tuner optimize --trials 3 \\\n  --slo 'p99_ttft_ms<9'\n"
        "# tuner no\n```\n```yaml\ntuner: x\n```\n```console\n$ tuner study trials --csv > x.csv\n```\n"
        "\n```text\nout\n```\n"
    )
    optimize, trials = steps_of(page)
    assert [tuner_words(words) for words in commands_in(optimize.line)] == [
        None,
        ["optimize", "--trials", "3", "--slo", "p99_ttft_ms<9"],
    ]
    assert trials == Step("page.md", "tuner study trials --csv > x.csv", ("out",))
    assert next(tuner_words(words) for words in commands_in(trials.line)) == ["study", "trials", "--csv"]


@pytest.mark.parametrize(
    ("shown", "missing"),
    [
        (("a 3 s", "c"), []),
        (("…", "c", "d"), []),
        (("a 9 s", "…", "d"), []),
        (("b", "a 3 s"), ["a <duration>"]),
        (("a 3 s", "d"), ["d"]),
        (("e",), ["e"]),
    ],
)
def test_shown_output_is_compared_in_order_but_for_durations(shown: tuple[str, ...], missing: list[str]) -> None:
    result = "a 5.1 s\nc\nd\n" if "b" not in shown else "a 3 s\nb\n"
    assert missing_lines(shown, result) == missing


def named(words: list[str]) -> tuple[str, Any]:
    """Return the command that words after `tuner` name, by its path, and itself; empty and None without one."""
    path = ""
    for word in words:
        longer = f"{path} {word}".strip()
        if longer not in PATHS:
            break
        path = longer
    return path, PATHS.get(path)


def wrong_options(text: str) -> list[str]:
    """Return the options of `tuner …` in a text that the command lacks, or the text if there is no such command."""
    words = text.split()[1:]
    _, command = named(words)
    if command is None:
        return [] if words[0] in ("…", "--debug", "--help", "--version") else [text]
    options = {option for parameter in command.params for option in parameter.opts}
    return [f"{text}: {word}" for word in words if word.startswith("-") and word not in {*options, "--", "--help"}]


def test_commands_in_the_text_exist() -> None:
    texts = [text for page in PAGES for text in _INLINE.findall(page.read_text(encoding="utf-8")) if is_current(page)]
    assert [wrong for text in texts for wrong in wrong_options(text)] == []


def is_current(page: Path) -> bool:
    """Return whether a page says what holds today; a dated report says what was run."""
    return ROOT / "docs" / "reports" not in page.parents


TOLD = (
    *("*.md", "*.toml", "*.yml", ".ci", ".github", "docs", "deploy", "scripts", "benchmarks"),
    *("tuner", "dashboards", "storage", "records", "search_spaces"),
)
"""Files and folders that may name a command."""

_NO_TEXT = {".png", ".gz", ".pyc", ".zip"}
_QUOTED = re.compile(r"""(?:[`"'!$:>] ?|\n\n *)tuner ([a-z][a-z-]*)(?![\w:=.])(?: ([a-z][a-z-]*))?""")
_ANYWHERE = re.compile(r"(?<!from )\btuner ([a-z][a-z-]*)(?![\w:=.])")
PROSE = {"finds", "serves"}
"""Words behind `tuner` at the start of a text."""


def test_every_command_that_a_file_names_exists() -> None:
    inner = {path.split()[-1] for path in PATHS} - {*TREE.commands}
    files = [file for place in TOLD for found in ROOT.glob(place) for file in (found, *found.rglob("*"))]
    told = [file for file in files if file.is_file() and file.suffix not in _NO_TEXT and is_current(file)]
    wrong, names = [], set()
    for file in told:
        text = file.read_text(encoding="utf-8").replace("&#160;", " ")
        lost = [word for word in _ANYWHERE.findall(text) if word in inner]
        for word, second in _QUOTED.findall(text):
            path, command = named([word, second])
            names.add(path)
            is_command = command is not None and (not second or path != word or not hasattr(command, "commands"))
            lost += [] if word in PROSE or is_command else [f"{word} {second}".strip()]
        wrong += [f"{file.relative_to(ROOT)}: tuner {word}" for word in lost]
    assert wrong == []
    assert {"optimize", "study show", "server load", "service token", "traffic import"} <= names


def test_metrics_in_the_pages_exist() -> None:
    named = {
        (page.name, name)
        for page in PAGES
        for code in re.findall(r"`([^`\n]+)`", page.read_text(encoding="utf-8"))
        for name in _METRIC_LIKE.findall(code)
    }
    assert any(name == "output_throughput" for _, name in named)
    assert sorted(name for name in named if name[1] not in METRICS and name[1] != INPUT_METRIC) == []


def test_slos_in_the_pages_are_slos() -> None:
    slos = [words[index + 1] for words in SHOWN.values() for index, word in enumerate(words) if word == "--slo"]
    assert slos
    for slo in slos:
        parse_slo(slo)


def test_links_lead_to_files_and_headings() -> None:
    missing = []
    for page in PAGES:
        for target in _LINK.findall(prose_of(page)):
            name, _, anchor = target.partition("#")
            file = page.parent / name if name else page
            if "://" in target:
                continue
            if not file.exists() or (anchor and anchor not in anchors_of(file)):
                missing.append(f"{page.name}: {target}")
    assert missing == []


def test_files_that_the_pages_name_exist() -> None:
    """A dated report may name a file that has moved since. The files of TensorRT-LLM are elsewhere."""
    folders = "tuner|records|storage|search_spaces|dashboards|benchmarks|tests|scripts|docs"
    named = re.compile(rf"`((?:{folders})/[\w./-]+|(?!tensorrt_llm/)[\w./-]+\.py)`")
    modules = [str(path) for folder in folders.split("|") for path in (ROOT / folder).rglob("*.py")]
    pages = [page for page in PAGES if page.parent.name != "reports"]
    missing = [
        f"{page.name}: {name}"
        for page in pages
        for name in named.findall(prose_of(page))
        if not (ROOT / name).exists()
        and not any(module.endswith(f"/{name}") for module in modules)
        and page.name != "CHANGELOG.md"
    ]
    assert missing == []


def test_every_page_is_reached_from_the_readme() -> None:
    reached, pending = set(), {ROOT / "README.md"}
    while pending:
        page = pending.pop()
        reached.add(page)
        links = {(page.parent / target.partition("#")[0]).resolve() for target in _LINK.findall(prose_of(page))}
        pages = {link for link in links if link.suffix == ".md" and link.exists()}
        folders = {page for link in links if link.is_dir() for page in link.glob("*.md")}
        pending |= (pages | folders) - reached
    assert sorted(str(page.relative_to(ROOT)) for page in PAGES if page not in reached) == []


def test_a_report_is_dated_and_every_table_of_it_has_a_caption() -> None:
    """A caption is a line in italics above the table, or below it."""
    for page in sorted((ROOT / "docs" / "reports").glob("*.md")):
        assert re.match(r"\d{4}-\d{2}-\d{2}-[a-z0-9.-]+\.md$", page.name), page.name
        blocks = re.split(r"\n\n+", prose_of(page))
        for number, block in enumerate(blocks):
            if block.startswith("|"):
                around = [blocks[number - 1], *blocks[number + 1 : number + 2]]
                assert any(re.match(r"\*[^*]", other) for other in around), f"{page.name}: {block[:80]}"


def test_the_recording_shows_the_verdict_of_the_readme() -> None:
    drawn = html.unescape((ROOT / "docs" / "images" / "first-study.svg").read_text(encoding="utf-8"))
    (first, *_) = [step for step in steps_of(ROOT / "README.md") if step.shown]
    assert first.line[first.line.index("tuner ") :] in drawn.replace("\xa0", " ")
    _, verdict, _, _, throughput, *_ = first.shown
    for line in (verdict, throughput):
        assert line in drawn.replace("\xa0", " ")


def test_ci_installs_uv_as_the_readme_says() -> None:
    (line,) = [step.line for step in steps_of(ROOT / "CONTRIBUTING.md") if "-m venv" in step.line]
    readme = [step.line for step in steps_of(ROOT / "README.md")]
    assert line in readme
    assert line in (ROOT / ".ci" / "run").read_text(encoding="utf-8").splitlines()
