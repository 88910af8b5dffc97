"""Shapes of common models (`models.yaml`), for use without the model's own `config.json`."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import yaml

from search_spaces.facts import ModelShape

_FILE = Path(__file__).with_name("models.yaml")
_FIELDS_WITHOUT_QUANTIZATION = 10


@cache
def known_models() -> dict[str, ModelShape]:
    """Return the shapes of known models by their name on the Hugging Face hub."""
    raw = yaml.safe_load(_FILE.read_text(encoding="utf-8"))
    return {
        name: ModelShape(*facts, *(() if len(facts) > _FIELDS_WITHOUT_QUANTIZATION else (None,)))
        for name, facts in raw.items()
    }


def known_model(name: str) -> ModelShape | None:
    """Return the shape of a model by its name on the hub; None if it is not a known one."""
    return known_models().get(name)
