"""Finding `trtllm-serve`, its Python and its version, the name that its server lists, and prompts."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tests.tensorrt_llm_program import VERSION
from tuner.engines.tensorrt_llm.engine import find_server, installation, listed_name, token_tools
from tuner.errors import SettingError, TrialFailed, UserError
from tuner.processes.records import ProcessRecords


def test_the_given_program_comes_before_the_variable_and_that_before_the_path(program: Path) -> None:
    assert find_server(str(program), {"TUNER_TRTLLM_SERVE": "/bin/true"}) == program
    assert find_server(None, {"TUNER_TRTLLM_SERVE": str(program), "PATH": "/bin"}) == program
    assert find_server(None, {"PATH": str(program.parent)}) == program


def test_without_one_the_remedy_names_the_variable() -> None:
    with pytest.raises(SettingError) as caught:
        find_server(None, {"PATH": ""})
    assert caught.value.rule == "no TensorRT-LLM found: no trtllm-serve on PATH"
    assert "TUNER_TRTLLM_SERVE" in str(caught.value)


def test_a_program_that_cannot_run_is_refused(tmp_path: Path) -> None:
    for given, environment in ((str(tmp_path / "no"), {}), (None, {"TUNER_TRTLLM_SERVE": str(tmp_path / "no")})):
        with pytest.raises(UserError, match="there is no such file"):
            find_server(given, environment)


def test_the_installation_is_that_of_the_script_s_python(program: Path, tmp_path: Path) -> None:
    found = installation(program)
    python = program.with_name("python")
    assert (found.executable, found.python, found.version) == (program, python, VERSION)
    assert replace(found, python=Path("/bin/false"), version="0").flags(tmp_path) is None


def test_another_program_and_a_python_without_the_package_are_refused(tmp_path: Path) -> None:
    with pytest.raises(
        UserError, match=r"/bin/true is not the script that TensorRT-LLM installs; name the trtllm-serve"
    ):
        installation(Path("/bin/true"))
    script = tmp_path / "trtllm-serve"
    script.write_text(f"#!{sys.executable}\nfrom tensorrt_llm.commands.serve import main\n", encoding="utf-8")
    with pytest.raises(UserError, match="has no TensorRT-LLM; name the trtllm-serve of its environment"):
        installation(script)


def test_a_folder_is_listed_by_its_name_and_a_hub_name_as_it_is(model: Path) -> None:
    assert listed_name(f"{model}/") == "model"
    assert listed_name("Qwen/Qwen2.5-0.5B") == "Qwen/Qwen2.5-0.5B"


def test_prompts_are_ordinary_tokens_and_a_text_that_cannot_be_tokenized_is_a_failure(
    model: Path, tmp_path: Path
) -> None:
    tools = token_tools(str(model), ProcessRecords(tmp_path / "records"))
    assert tools._tokens == [number for number in range(40) if number != 3]
    (model / "tokenizer.json").unlink()
    plan = tmp_path / "plan.json"
    plan.write_text('{"requests": [{"shared": [], "prompt": "a text"}]}', encoding="utf-8")
    with pytest.raises(TrialFailed) as caught:
        tools.prompts(plan, tmp_path / "log")
    assert caught.value.failure.kind == "environment_broken"
    assert "the user's prompts cannot be tokenized: there is no tokenizer.json" in caught.value.failure.message
