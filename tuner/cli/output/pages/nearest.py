"""The configuration that is nearest to meeting the SLOs, on the terminal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import RenderableType
from rich.text import Text

from tuner.cli.output.parts.console import as_table
from tuner.results.nearest import nearest_grid, rate_line


def nearest_parts(nearest: Mapping[str, Any] | None) -> list[RenderableType]:
    """Return what is shown of the nearest configuration; nothing if the SLOs are met.

    Args:
        nearest: as plain JSON, see `Nearest`.
    """
    if not nearest:
        return []
    title = Text(f"the SLOs with #{nearest['number']}, the nearest to meeting them", style="bold")
    rate = rate_line(nearest)
    return [*([] if rate is None else [Text(rate)]), Text(""), title, as_table(nearest_grid(nearest))]
