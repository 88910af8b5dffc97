"""Print as JSON what a Python has of an engine. That Python runs it, and it imports nothing of the tuner.

    PYTHON probe.py ENGINE_PROBE [--flags]

ENGINE_PROBE is a script with the names of the engine's distribution and of packages that its flags need. A function
`installed` may say whether the engine has a package, and `flags` imports the engine and returns its flags. The answer
is the last line that is printed, as libraries print, too.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import runpy
import sys
from typing import Any


def version(distribution: str) -> str | None:
    """Return the version of a distribution; None if this Python has none."""
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def main(script: str, *options: str) -> None:
    engine = runpy.run_path(script)
    found: dict[str, Any] = {"version": version(engine["DISTRIBUTION"])}
    installed = engine.get("installed", importlib.util.find_spec)
    found["packages"] = [name for name in engine["PACKAGES"] if installed(name)]
    if "--flags" in options:
        found["flags"] = engine["flags"]()
    print("\n" + json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
