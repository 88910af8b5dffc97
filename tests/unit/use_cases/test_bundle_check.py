"""`tuner study report --check`: what a bundle of a stranger must have, and what it may not."""

import json
import zipfile
from pathlib import Path

import pytest
import yaml

from tests.cli.command import one_line, run_here
from tuner.use_cases.bundle import archive

HARDWARE = {
    "numbers": "measured",
    "card": {"Tesla T4": 2},
    "engine": {"name": "vllm", "version": "0.32.0"},
    "model": {"name": "a/b"},
}
GOOD = {
    "trials.csv": "number,round,kind,score\n0,0,baseline,1\n1,0,search,1.2\n0,1,confirm,1\n1,1,confirm,1.1\n",
    "conclusion.json": json.dumps({"reason": "trial 1 is better"}),
    "hardware.json": json.dumps(HARDWARE),
}
FORM = Path(__file__).parents[3] / ".github" / "ISSUE_TEMPLATE" / "study.yaml"


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    return tmp_path / "b.zip"


def test_a_complete_bundle_is_told_in_five_lines(bundle: Path, tmp_path: Path) -> None:
    bundle.write_bytes(archive({"README.txt": "", **GOOD}))
    printed = run_here(tmp_path, "study", "report", "--check", "b.zip")
    assert (printed.code, printed.err) == (0, "")
    assert printed.out.splitlines() == [
        "card          2 × Tesla T4",
        "engine        vllm 0.32.0",
        "model         a/b",
        "measurements  2 of the search, 2 of the finals",
        "conclusion    trial 1 is better",
        "b.zip is complete",
    ]


@pytest.mark.parametrize(
    ("files", "part"),
    [
        ({"trials.csv": None}, "trials.csv left out, and the gallery needs it"),
        ({"../x": ""}, "'../x' is no file of a bundle"),
        ({"hardware.json": '{"numbers": "simulated"}'}, "its numbers are 'simulated'; the gallery has measured ones"),
        ({"hardware.json": "[1]"}, "hardware.json is no JSON object"),
        ({"conclusion.json": "null"}, "the study has not ended"),
        ({"conclusion.json": "{"}, "no bundle of `tuner study report`"),
        ({"trials.csv": "number,round\n0,0\n"}, "trials.csv has no kind, score"),
        ({"trials.csv": ""}, "trials.csv has no number"),
        ({"hardware.json": json.dumps({"numbers": "\x1b[2J"})}, r"its numbers are '\x1b[2J'"),
    ],
)
def test_what_the_gallery_cannot_use_is_one_line(
    bundle: Path, tmp_path: Path, files: dict[str, str | None], part: str
) -> None:
    bundle.write_bytes(archive({name: text for name, text in {**GOOD, **files}.items() if text is not None}))
    one_line(run_here(tmp_path, "study", "report", "--check", "b.zip"), part)


def test_control_characters_do_not_reach_the_terminal(bundle: Path, tmp_path: Path) -> None:
    reason = {"conclusion.json": json.dumps({"reason": "keep\x1b[2J the\n\ud800 defaults"})}
    bundle.write_bytes(archive({**GOOD, **reason}))
    printed = run_here(tmp_path, "study", "report", "--check", "b.zip")
    assert (printed.code, printed.out.splitlines()[4]) == (0, "conclusion    keep [2J the   defaults"), printed.err


def test_a_damaged_file_is_refused(bundle: Path, tmp_path: Path) -> None:
    """The first byte after a local header of 30 bytes and the name; a block of type 3 is none that deflate has."""
    content = bytearray(archive(GOOD))
    content[30 + len("trials.csv")] = 0xFF
    bundle.write_bytes(content)
    one_line(run_here(tmp_path, "study", "report", "--check", "b.zip"), "no bundle of `tuner study report`")


def test_a_file_that_is_compressed_in_another_way_is_refused(bundle: Path, tmp_path: Path) -> None:
    """The options of LZMA begin 4 bytes after a local header of 30 bytes and the name; none begin with 0xFF."""
    with zipfile.ZipFile(bundle, "w", zipfile.ZIP_LZMA) as packed:
        for name, text in GOOD.items():
            packed.writestr(name, text)
    content = bytearray(bundle.read_bytes())
    content[30 + len("trials.csv") + 4] = 0xFF
    bundle.write_bytes(content)
    one_line(run_here(tmp_path, "study", "report", "--check", "b.zip"), "'trials.csv' is no file of a bundle")


def test_the_check_takes_no_other_words(tmp_path: Path) -> None:
    for words in (["a-study"], ["--bundle"], ["--output", "x.html"], ["--storage", "a.db"]):
        printed = run_here(tmp_path, "study", "report", "--check", "b.zip", *words)
        assert (printed.code, printed.err) == (2, "tuner: --check reads the bundle only; leave the other words out\n")


@pytest.mark.parametrize(("file", "why"), [("b.zip", "No such file or directory"), (".", "Is a directory")])
def test_a_file_that_cannot_be_read_is_told_without_its_number(tmp_path: Path, file: str, why: str) -> None:
    printed = run_here(tmp_path, "study", "report", "--check", file)
    rule = f"the file cannot be read: {why}; give a bundle that `tuner study report` wrote"
    assert (printed.code, printed.out, printed.err) == (2, "", f"tuner: --check {file!r}: {rule}\n")


def test_no_archive_and_a_bomb_are_refused(bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bundle.write_text("no archive")
    assert run_here(tmp_path, "study", "report", "--check", "b.zip").code == 2
    monkeypatch.setattr("tuner.use_cases.bundle._MOST_BYTES", 100_000)
    with zipfile.ZipFile(bundle, "w", zipfile.ZIP_DEFLATED) as packed:
        for name in GOOD:
            packed.writestr(name, "0" * 100_000)
    printed = run_here(tmp_path, "study", "report", "--check", "b.zip")
    assert printed.code == 2
    assert "write it again with fewer files" in printed.err


def test_the_issue_form_names_the_check_and_asks_for_what_it_prints() -> None:
    form = yaml.safe_load(FORM.read_text(encoding="utf-8"))
    assert {each["type"] for each in form["body"]} <= {"markdown", "textarea", "input", "checkboxes"}
    assert "tuner study report --check" in form["body"][0]["attributes"]["value"]
    required = [each["id"] for each in form["body"] if each.get("validations", {}).get("required")]
    assert required == ["checked", "bundle", "load", "beside"]
