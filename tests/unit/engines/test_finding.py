"""Finding the program of an engine: the one that a user names, else what the machine has."""

import importlib.util
import sys
from pathlib import Path

import pytest

from tuner.engines.llama_cpp.engine import find_server as find_llama_server
from tuner.engines.llama_cpp.kind import LAUNCHER
from tuner.engines.sglang.engine import find_python
from tuner.engines.tensorrt_llm.engine import find_server as find_trtllm_serve
from tuner.engines.vllm.toolbox import find_executable
from tuner.errors import SettingError, UserError

FINDERS = {
    "vllm": (find_executable, "TUNER_VLLM", "vllm"),
    "llama_server": (find_llama_server, "TUNER_LLAMA_SERVER", "llama-server"),
    "sglang": (find_python, "TUNER_SGLANG", "sglang"),
    "trtllm_serve": (find_trtllm_serve, "TUNER_TRTLLM_SERVE", "trtllm-serve"),
}
"""By the setting that names the program: the function, the variable, and the program on the PATH."""


@pytest.fixture(autouse=True)
def nothing_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine without any of them."""
    monkeypatch.setenv("PATH", "/nowhere")
    for _, variable, _ in FINDERS.values():
        monkeypatch.delenv(variable, raising=False)


def program(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("#!/bin/sh\n", encoding="utf-8")
    path.chmod(0o755)
    return path


@pytest.mark.parametrize("field", FINDERS)
def test_the_given_program_comes_before_the_variable_and_that_before_the_path(
    field: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    find, variable, name = FINDERS[field]
    given, named, on_path = (program(tmp_path / each / name) for each in ("given", "named", "path"))
    python = program(on_path.with_name("python"))
    monkeypatch.setenv("PATH", str(on_path.parent))
    assert find(None) == (python if field == "sglang" else on_path), "SGLang is its Python"
    monkeypatch.setenv(variable, str(named))
    assert find(None) == named
    assert find(str(given)) == given


@pytest.mark.parametrize("field", FINDERS)
@pytest.mark.parametrize(("name", "rule"), [("none", "there is no such file"), ("plain", "the file is not executable")])
def test_a_named_program_that_cannot_run_is_refused(
    field: str, name: str, rule: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    find, variable, _ = FINDERS[field]
    (tmp_path / "plain").write_text("", encoding="utf-8")
    with pytest.raises(SettingError, match=rule) as caught:
        find(str(tmp_path / name))
    assert caught.value.field == field
    monkeypatch.setenv(variable, str(tmp_path / name))
    with pytest.raises(UserError, match=f"{variable}=.*: {rule}"):
        find(None)


@pytest.mark.parametrize(
    ("field", "message"),
    [
        ("vllm", r"no vLLM found: not on PATH and not beside this Python; .*`pip install vllm.*TUNER_VLLM"),
        (
            "llama_server",
            "no llama.cpp found: no llama-server on PATH, and the package xllamacpp is not installed; "
            "`pip install xllamacpp`, or put llama-server on PATH or its path into TUNER_LLAMA_SERVER",
        ),
        ("sglang", r"no SGLang found: not in this Python, and no sglang on PATH; `pip install sglang.*TUNER_SGLANG"),
        ("trtllm_serve", r"no TensorRT-LLM found: no trtllm-serve on PATH; .*TUNER_TRTLLM_SERVE"),
    ],
)
def test_without_one_the_error_says_what_to_install(
    field: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(SettingError, match=message) as caught:
        FINDERS[field][0](None)
    assert (caught.value.field, caught.value.value) == (field, None)


def test_the_vllm_beside_this_python_is_tried_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    beside = program(tmp_path / "venv" / "bin" / "vllm")
    monkeypatch.setattr(sys, "executable", str(beside.with_name("python")))
    assert find_executable(None) == beside


def test_the_package_of_llama_cpp_is_tried_last() -> None:
    pytest.importorskip("xllamacpp", exc_type=ImportError)
    assert find_llama_server(None) == Path(sys.executable).with_name(LAUNCHER)
