"""Finds the shape of the model that a simulated server serves."""

from __future__ import annotations

import os
from pathlib import Path

from search_spaces import ModelShape, SpaceError, known_model
from tuner.engines.simulator.config.precision import NotSimulated
from tuner.hub import cached_config


def find_shape(name: str) -> ModelShape:
    """Return the shape of a model by its hub name or its folder.

    The sources are, in this order: the list of known models, the folder's `config.json`, and the `config.json` in the
    local cache of the Hugging Face hub.

    Raises:
        NotSimulated: if none of them has the model, or its config.json cannot be read.
    """
    shape = known_model(name)
    if shape is not None:
        return shape
    folder = Path(os.path.expanduser(name))
    file = (None if folder.is_dir() else cached_config(name)) or folder / "config.json"
    try:
        return ModelShape.from_file(file)
    except SpaceError as error:
        raise NotSimulated(f"{name!r}: no shape of that model is known ({' '.join(str(error).split())})") from None
