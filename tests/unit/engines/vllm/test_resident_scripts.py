"""Scripts that run in vLLM's interpreter import only the standard library at their start."""

import ast
import sys
from pathlib import Path

import pytest

from tuner.engines.server import prompts
from tuner.engines.vllm import resident_client

FOLDERS = (Path(resident_client.__file__).parent / "resident", Path(prompts.__file__).parent)
SCRIPTS = sorted(path for folder in FOLDERS for path in folder.glob("[!_]*.py"))


@pytest.mark.parametrize("script", SCRIPTS, ids=[script.name for script in SCRIPTS])
def test_only_the_standard_library_is_imported(script: Path) -> None:
    tree = ast.parse(script.read_text())
    imported = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    imported |= {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert {name.split(".")[0] for name in imported} <= sys.stdlib_module_names


def test_every_resident_script_is_tested() -> None:
    names = {"api_servers", "helper", "introspection", "probe", "tune_experts", "made_text", "prompts"}
    assert {script.stem for script in SCRIPTS} == names
