"""Shapes of models that are often served (`models.yaml`), for where a model's own config.json is not at hand."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import yaml

from search_spaces.facts import ModelShape

_FILE = Path(__file__).with_name("models.yaml")
_PLAIN = 10


@cache
def known_models() -> dict[str, ModelShape]:
    """Return the shapes of known models by their name on the Hugging Face hub."""
    raw = yaml.safe_load(_FILE.read_text(encoding="utf-8"))
    return {name: ModelShape(*facts, *(() if len(facts) > _PLAIN else (None,))) for name, facts in raw.items()}


def known_model(name: str) -> ModelShape | None:
    """Return the shape of a model of the hub; None if it is not on the list."""
    return known_models().get(name)
