"""docs/design/sampler-constants.md has every constant of the sampler with its value."""

from __future__ import annotations

import ast
import importlib
import re
from operator import attrgetter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "design" / "sampler-constants.md").read_text(encoding="utf-8")
SECTIONS = re.findall(r"^## `([\w.]+)`\n(.*?)(?=^## |\Z)", PAGE, re.DOTALL | re.MULTILINE)
ROWS = [
    (module, name, value)
    for module, text in SECTIONS
    for name, value in re.findall(r"^\| `([\w.]+)` \| (.*?) \|", text, re.MULTILINE)
]


def constants_of(path: Path) -> set[str]:
    """Return the public constants of a module whose value is a number or a tuple of numbers."""
    names = set()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign):
            for target in node.targets:
                targets = target.elts if isinstance(target, ast.Tuple) else [target]
                literal = isinstance(node.value, ast.Constant | ast.Tuple)
                names |= {each.id for each in targets if isinstance(each, ast.Name) and literal}
    return {name for name in names if not name.startswith("_")}


@pytest.mark.parametrize(("module", "name", "value"), ROWS, ids=[f"{module}.{name}" for module, name, _ in ROWS])
def test_the_page_has_the_value_of_the_code(module: str, name: str, value: str) -> None:
    assert attrgetter(name)(importlib.import_module(module)) == ast.literal_eval(value)


@pytest.mark.parametrize("path", sorted((ROOT / "tuner" / "sampler").rglob("*.py")), ids=lambda path: path.stem)
def test_every_constant_of_the_sampler_is_on_the_page(path: Path) -> None:
    module = ".".join(path.relative_to(ROOT).with_suffix("").parts)
    assert constants_of(path) <= {name for known, name, _ in ROWS if known == module}
