"""Requirements that an engine's environment does not meet, in made environments."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tuner.cli.output.pages.setup import SHOWN_UNMET, _unmet
from tuner.engines.server.unmet import unmet_requirements


def write(folder: Path, name: str, version: str, *requires: str) -> None:
    """Write the metadata of a distribution, without any module."""
    target = folder / f"{name}-{version}.dist-info"
    target.mkdir()
    lines = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}"]
    (target / "METADATA").write_text("\n".join([*lines, *(f"Requires-Dist: {each}" for each in requires)]) + "\n")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    return tmp_path


def test_requirements_of_requirements_count_and_those_of_extras_do_not(folder: Path) -> None:
    write(
        folder,
        "made_engine",
        "1.0",
        "Made.Numbers<2.4",
        "made-chain",
        'absent; extra == "gpu"',
        'no; python_version < "3"',
    )
    write(folder, "made_numbers", "2.4.0")
    write(folder, "made_chain", "1.0", "made-numbers>=2", "made-deep==3", "absent-too", "made-engine")
    write(folder, "made_deep", "4.0rc1")
    assert unmet_requirements(Path(sys.executable), "made-engine") == [
        "Made.Numbers 2.4.0: made-engine needs <2.4",
        "absent-too is not installed: made-chain needs it",
        "made-deep 4.0rc1: made-chain needs ==3",
    ]


def test_a_whole_environment_has_none(folder: Path) -> None:
    write(folder, "made_engine", "1.0", "made-numbers>=2.4.0rc1")
    write(folder, "made_numbers", "2.4.0rc2")
    assert unmet_requirements(Path(sys.executable), "made-engine") == []


def test_a_missing_engine_or_interpreter_is_not_known(folder: Path) -> None:
    assert unmet_requirements(Path(sys.executable), "made-engine") is None
    assert unmet_requirements(folder / "python", "made-engine") is None


def test_many_are_cut() -> None:
    assert _unmet(None) == _unmet([]) == []
    lines = [f"p{number} 1: e needs 2" for number in range(SHOWN_UNMET + 2)]
    rows = _unmet(lines)
    assert [name for name, _ in rows] == ["unmet requirements", *[""] * SHOWN_UNMET]
    assert rows[-1][1] == "2 more, in --json"
