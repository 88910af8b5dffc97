"""What is simulated: the model's shape by name or folder, and which vLLM on which card."""

from __future__ import annotations

import json
from pathlib import Path

from search_spaces import ModelShape, SpaceError, known_model
from tuner.engines.simulator.config.precision import ConfigRefused
from tuner.hub import cached_config


def find_shape(name: str) -> ModelShape:
    """Return the shape of a known model, of a folder's config.json, or of one that was downloaded before.

    Raises:
        ConfigRefused: when there is none.
    """
    known = known_model(name)
    if known is not None:
        return known
    folder = Path(name).expanduser()
    file = (None if folder.is_dir() else cached_config(name)) or folder / "config.json"
    try:
        return ModelShape.from_config_json(json.loads(file.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError, SpaceError) as error:
        raise ConfigRefused(f"{name!r}: no shape of that model is known ({' '.join(str(error).split())})") from None
