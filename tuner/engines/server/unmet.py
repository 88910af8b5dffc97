"""Requirements of an engine's package that its environment does not meet; also a program for the engine's own Python.

    PYTHON tuner/engines/server/unmet.py PACKAGE

The program prints a JSON list of lines, such as "numpy 2.4.0: numba needs <2.4". `pip install --no-deps`, or a later
installation of another package, leaves such an environment. The engine may still run there.
"""

from __future__ import annotations

import importlib.metadata
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

TIMEOUT_S = 30.0


def unmet_requirements(interpreter: Path, package: str) -> list[str] | None:
    """Return the requirements of a package, and of what it requires, that are not met in an environment.

    Args:
        interpreter: the Python of the environment.
        package: the name of the distribution.

    Returns:
        A line for each requirement. None if this is not known: the environment lacks the package, or `packaging`.
    """
    try:
        done = subprocess.run(
            [interpreter, __file__, package],
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            stdin=subprocess.DEVNULL,
            check=False,
        )
        found = json.loads(done.stdout)
    except (OSError, subprocess.TimeoutExpired, json.JSONDecodeError):
        return None
    return [str(line) for line in found] if isinstance(found, list) else None


def find_unmet(package: str) -> Iterator[str]:
    """Yield the requirements that this environment does not meet; those of extras do not count."""
    from packaging.requirements import Requirement
    from packaging.utils import canonicalize_name

    ahead, seen = [package], {canonicalize_name(package)}
    while ahead:
        name = ahead.pop()
        for text in importlib.metadata.requires(name) or ():
            need = Requirement(text)
            if need.marker is not None and not need.marker.evaluate({"extra": ""}):
                continue
            try:
                version = importlib.metadata.version(need.name)
            except importlib.metadata.PackageNotFoundError:
                yield f"{need.name} is not installed: {name} needs it"
                continue
            if not need.specifier.contains(version, prereleases=True):
                yield f"{need.name} {version}: {name} needs {need.specifier}"
            key = canonicalize_name(need.name)
            if key not in seen:
                seen.add(key)
                ahead.append(need.name)


if __name__ == "__main__":
    print(json.dumps(sorted(set(find_unmet(sys.argv[1])))))
