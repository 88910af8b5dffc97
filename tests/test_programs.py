"""Programs that some tests need: where they are missing, CI fails and a newcomer's run goes on."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests import programs

ROOT = Path(__file__).parents[1]


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
    assert set(programs.FIND) <= set(packages.split())
