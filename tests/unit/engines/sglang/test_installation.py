"""Finding the Python that has SGLang, and the tokens of prompts."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tuner.engines.server.token_prompts import ordinary_tokens
from tuner.engines.sglang.engine import find_python, installation
from tuner.errors import SettingError, UserError


def test_the_given_python_comes_before_the_variable_and_that_before_the_path(python: Path) -> None:
    assert find_python(str(python), {"TUNER_SGLANG": sys.executable}) == python
    assert find_python(None, {"TUNER_SGLANG": str(python)}) == python
    script = python.with_name("sglang")
    script.write_text("#!/bin/sh\n", encoding="utf-8")
    script.chmod(0o755)
    assert find_python(None, {"PATH": str(python.parent)}) == python


def test_without_one_the_remedy_names_the_package_and_the_variable() -> None:
    with pytest.raises(SettingError) as caught:
        find_python(None, {"PATH": ""})
    assert caught.value.rule == "no SGLang found: not in this Python, and no sglang on PATH"
    assert "TUNER_SGLANG" in str(caught.value)


@pytest.mark.parametrize(("name", "rule"), [("nothing", "there is no such file"), ("plain", "is not executable")])
def test_a_python_that_cannot_run_is_refused(name: str, rule: str, tmp_path: Path) -> None:
    (tmp_path / "plain").write_text("", encoding="utf-8")
    for given, environment in ((str(tmp_path / name), {}), (None, {"TUNER_SGLANG": str(tmp_path / name)})):
        with pytest.raises(UserError, match=rule):
            find_python(given, environment)


def test_the_installation_is_that_of_the_python(python: Path) -> None:
    found = installation(python)
    assert (found.executable, found.version, found.packages) == (python, "0.5.23", frozenset())


def test_a_python_without_sglang_and_a_program_that_is_none_are_refused() -> None:
    with pytest.raises(UserError, match="has no SGLang; name the Python that has SGLang"):
        installation(Path(sys.executable))
    with pytest.raises(UserError, match="does not answer as a Python"):
        installation(Path("/bin/false"))


def test_an_import_that_fails_leaves_the_flags_unknown(python: Path, tmp_path: Path) -> None:
    broken = installation(python)
    assert broken.flags(tmp_path) is not None
    assert broken.flags(tmp_path) == broken.flags(tmp_path)
    assert replace(broken, python=Path("/bin/false"), version="0").flags(tmp_path) is None


def test_ordinary_tokens_are_those_that_were_not_added(model: Path) -> None:
    assert ordinary_tokens(str(model)) == [number for number in range(40) if number != 3]


def test_the_tokens_of_a_list_are_its_places(tmp_path: Path) -> None:
    content = {"model": {"type": "Unigram", "vocab": [["a", 0.0], ["b", -1.0]]}, "added_tokens": []}
    (tmp_path / "tokenizer.json").write_text(json.dumps(content), encoding="utf-8")
    assert ordinary_tokens(str(tmp_path)) == [0, 1]


@pytest.mark.parametrize("content", ["", "[]", '{"model": {}}', '{"model": {"vocab": {}}}', '{"model": {"vocab": 3}}'])
def test_a_tokenizer_without_tokens_is_refused(content: str, tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text(content, encoding="utf-8")
    with pytest.raises(SettingError) as caught:
        ordinary_tokens(str(tmp_path))
    assert caught.value.field == "tokenizer"
