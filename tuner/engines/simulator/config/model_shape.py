"""Finds the shape of the model that a simulated server serves."""

from __future__ import annotations

import json
import os
from pathlib import Path

from search_spaces import ModelShape, known_model
from search_spaces.regular_file import read_regular_file
from tuner.engines.simulator.config.precision import ConfigRefused
from tuner.hub import cached_config

_CONFIG_LIMIT = 2**24
"""The largest `config.json` of a model, in bytes."""


def find_shape(name: str) -> ModelShape:
    """Return the shape of a model by its hub name or its folder.

    The sources are, in this order: the list of known models, the folder's `config.json`, and the `config.json` in the
    local cache of the Hugging Face hub.

    Raises:
        ConfigRefused: if none of them has the model.
    """
    shape = known_model(name)
    if shape is not None:
        return shape
    folder = Path(os.path.expanduser(name))
    file = (None if folder.is_dir() else cached_config(name)) or folder / "config.json"
    try:
        return ModelShape.from_config_json(json.loads(read_regular_file(file, _CONFIG_LIMIT)))
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigRefused(f"{name!r}: no shape of that model is known ({' '.join(str(error).split())})") from None
