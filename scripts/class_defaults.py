"""Write `class_defaults.json`: values that Transformers' configuration classes fill in for keys that the reader uses.

Run it with a Python that has the transformers package, from the repository's root:

    uv run --no-project --with transformers python scripts/class_defaults.py
"""

from __future__ import annotations

import ast
import dataclasses
import json
import re
from pathlib import Path
from typing import Any

from transformers.models.auto.configuration_auto import CONFIG_MAPPING

CATALOGUE = Path(__file__).parents[1] / "search_spaces" / "catalogue"
READERS = ("decoder.py", "models.py", "context_length.py", "encoders.py")
WITHOUT_MEANING = ("is_encoder_decoder", "dtype", "model_type", "quantization_config", "text_config", "architectures")


def keys_that_are_read() -> set[str]:
    """Return every text of the readers' modules that may be a key."""
    nodes = (node for name in READERS for node in ast.walk(ast.parse((CATALOGUE / name).read_text())))
    texts = {node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)}
    return {text for text in texts if re.fullmatch(r"\w+", text)} - set(WITHOUT_MEANING)


def defaults_of(name: str, keys: set[str]) -> dict[str, Any]:
    """Return the values that a type's class declares; computed ones are left out."""
    if name not in CONFIG_MAPPING:
        return {}
    fields = {field.name: field.default for field in dataclasses.fields(CONFIG_MAPPING[name])}
    plain = {key: value for key, value in fields.items() if isinstance(value, bool | int | float | str)}
    return {key: plain[key] for key in sorted(plain.keys() & keys)}


def main() -> None:
    """Write the file, one type on a line."""
    lines = (CATALOGUE / "architectures.yaml").read_text().splitlines()
    names = [found[1] for found in (re.match(r"([\w-]+): \{", line) for line in lines) if found]
    keys = keys_that_are_read()
    found = {name: defaults_of(name, keys) for name in names}
    rows = [f"{json.dumps(name)}: {json.dumps(values)}" for name, values in found.items() if values]
    (CATALOGUE / "class_defaults.json").write_text("{\n" + ",\n".join(rows) + "\n}\n")


if __name__ == "__main__":
    main()
