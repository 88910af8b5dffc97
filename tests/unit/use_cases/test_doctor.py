"""What `tuner doctor` knows of engines, also of one that another package registers."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tuner.cli.output.pages.setup import print_doctor
from tuner.engines.kind import EngineKind, Found
from tuner.engines.kinds import kind_of
from tuner.errors import UserError
from tuner.use_cases import doctor


def facts(found: Found, home: Path) -> Iterator[tuple[str, Any]]:
    yield "version", "3.1"
    yield "gpus", ["Toy 0"]


def absent(given: str | None) -> Found:
    raise UserError("no ball found")


TOY = EngineKind("toy-2", "Toy", kind_of("vllm").build, lambda given: Found(Path("/opt/toy")), facts=facts)
BALL = EngineKind("ball", "Ball", TOY.build, absent, setting="ball_file")


@pytest.fixture(autouse=True)
def registered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TUNER_HOME", str(tmp_path))
    monkeypatch.setattr(doctor, "kinds", lambda: {each.name: each for each in (kind_of("vllm"), TOY, BALL)})


def test_every_registered_engine_has_its_facts() -> None:
    found = doctor.examine("/nothing", None)
    assert [found[f"toy_2{name}"] for name in ("", "_version", "_gpus", "_problem")] == [
        "/opt/toy",
        "3.1",
        ["Toy 0"],
        None,
    ]
    assert [found[f"ball{name}"] for name in ("_file", "_version", "_problem")] == [None, None, "no ball found"]
    assert [found[f"vllm{name}"] for name in ("", "_version", "_unmet")] == [None, None, None]
    assert "/nothing" in found["problem"]
    assert "vllm_problem" not in found


def test_every_registered_engine_has_a_section(capsys: pytest.CaptureFixture[str]) -> None:
    assert print_doctor("/nothing", None, as_json=False) == 1
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    start = lines.index("Toy")
    assert lines[start : start + 6] == [
        "Toy",
        "executable /opt/toy",
        "version 3.1",
        "can use Toy 0",
        "Ball",
        "executable none found",
    ]
