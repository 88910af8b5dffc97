"""Which llama.cpp is found, and what a made-up llama-server says of itself."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

from tuner.engines.llama_cpp.engine import find_server, installation
from tuner.engines.llama_cpp.kind import LAUNCHER
from tuner.errors import SettingError, UserError

ANSWERS = """#!/bin/sh
case "$1" in
  --version) echo "version: 6711 (a1b2c3d)" >&2; echo "built with cc for x86_64-linux-gnu" >&2 ;;
  --help) printf '%s\\n' '-c,    --ctx-size N      size' '-np,   --parallel N  slots (--no-such is none)' ;;
  --list-devices) printf 'Available devices:\\n  CUDA0: NVIDIA H200 (143771 MiB, 143000 MiB free)\\n' ;;
esac
"""


def program(folder: Path, text: str = ANSWERS, name: str = "llama-server") -> Path:
    folder.mkdir(exist_ok=True)
    file = folder / name
    file.write_text(text)
    file.chmod(0o755)
    return file


def test_a_given_program_comes_before_the_variable_and_that_before_the_path(tmp_path: Path) -> None:
    given, variable, path = (program(tmp_path / name) for name in ("given", "variable", "path"))
    both = {"TUNER_LLAMA_SERVER": str(variable), "PATH": str(path.parent)}
    assert find_server(str(given), both) == given
    assert find_server(None, both) == variable
    assert find_server(None, {"PATH": str(path.parent)}) == path


def test_the_package_is_the_last_choice() -> None:
    assert find_server(None, {"PATH": "/nowhere"}) == Path(sys.executable).with_name(LAUNCHER)


def test_without_any_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(SettingError) as caught:
        find_server(None, {"PATH": "/nowhere"})
    assert str(caught.value) == (
        "no llama.cpp found: no llama-server on PATH, and the package xllamacpp is not installed; "
        "`pip install xllamacpp`, or put llama-server on PATH or its path into TUNER_LLAMA_SERVER"
    )


def test_a_named_program_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="there is no such file") as caught:
        find_server(str(tmp_path / "none"), {})
    assert caught.value.field == "llama_server"
    with pytest.raises(UserError, match="TUNER_LLAMA_SERVER='none': there is no such file"):
        find_server(None, {"TUNER_LLAMA_SERVER": "none", "PATH": ""})


def test_a_llama_server_states_version_flags_and_gpus(tmp_path: Path) -> None:
    found = installation(program(tmp_path))
    assert found.version == "6711"
    assert found.flags is not None
    assert {"--ctx-size", "--parallel"} <= found.flags
    assert found.gpus == ("CUDA0",)


@pytest.mark.program("libgomp1")
def test_the_launcher_states_the_same_of_itself() -> None:
    found = installation(Path(sys.executable).with_name(LAUNCHER))
    assert found.version[0].isdigit()
    assert found.flags is not None
    assert {"--ctx-size", "--no-cont-batching", "--spec-type"} <= found.flags
    assert found.gpus == ()


def test_another_program_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"--version prints no version \(I am another\); is it llama-server\?"):
        installation(program(tmp_path, "#!/bin/sh\necho I am another\n", "other"))
