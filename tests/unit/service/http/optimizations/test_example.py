"""The client of docs/examples."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

from tests.unit.service.http.optimizations.api import Api

EXAMPLE = Path(__file__).parents[5] / "docs" / "examples" / "optimization_client.py"


def test_the_example_finds_the_best_trial(api: Api) -> None:
    spec = importlib.util.spec_from_file_location("optimization_client", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    example: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    api.client.headers["Authorization"] = f"Bearer {api.tokens['ada']}"
    found = example.run(api.client, "a", example.measure)
    present = api.get("/compression")
    assert (present["state"], present["trials"], present["active"]) == ("COMPLETED", 20, 0)
    assert found["best"]["number"] in found["front"]
    assert found["best"]["metrics"] == example.measure(found["best"]["params"])
