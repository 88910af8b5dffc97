"""Print as JSON which version, packages and flags of an engine a Python has. That Python runs this script.

It imports nothing of the tuner.

    PYTHON probe.py ENGINE_PROBE [--flags]

ENGINE_PROBE is the engine's own `probe.py`. It defines DISTRIBUTION, the name of the engine's distribution; PACKAGES,
the packages that its flags need; optionally `installed`, which returns whether the engine has a package; and `flags`,
which imports the engine and returns its flags. The answer is the last line of the output: libraries may print before.
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
