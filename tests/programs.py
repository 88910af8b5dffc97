"""Programs that some tests need, and README.md does not install.

A test that needs one has `@pytest.mark.program(NAME)`. Without the program the test fails in CI, which installs each of
them before it runs these tests, and is skipped elsewhere.
"""

import os
import shutil
from collections.abc import Callable
from ctypes.util import find_library
from pathlib import Path

import pytest

from tuner.engines.vllm.instances import find_haproxy

POSTGRESQL = Path("/usr/lib/postgresql")
"""Where Debian installs PostgreSQL's own programs, a folder for each version."""


def _on_path(*names: str) -> Callable[[], str | None]:
    return lambda: next(filter(None, map(shutil.which, names)), None)


def _initdb() -> str | None:
    versions = sorted(POSTGRESQL.glob("*/bin/initdb"), key=lambda path: float(path.parts[-3]))
    return str(versions[-1]) if versions else shutil.which("initdb")


FIND: dict[str, Callable[[], str | None]] = {
    "chromium": _on_path("chromium", "chromium-browser", "google-chrome"),
    "curl": _on_path("curl"),
    "haproxy": find_haproxy,
    "helm": _on_path("helm"),
    "libgomp1": lambda: find_library("gomp"),  # of the package xllamacpp
    "postgresql": _initdb,
    "shellcheck": _on_path("shellcheck"),
    "systemd": _on_path("systemd-analyze"),
}
"""By the name of its Debian package, how each program or library is found."""

ELSEWHERE = {"helm": "scripts/install_helm.sh"}
"""Programs that are no Debian package, and the script that installs each into a folder."""


def needed(name: str) -> Path:
    """Return the path of a program, or the name of a library; without it CI fails and any other run skips.

    Args:
        name: of the Debian package, one of `FIND`.
    """
    found = FIND[name]()
    if found is not None:
        return Path(found)
    how = f"{ELSEWHERE[name]} DIR" if name in ELSEWHERE else f"Debian: apt-get install {name}"
    missing = f"{name} is not installed ({how})"
    if os.environ.get("CI"):
        pytest.fail(missing, pytrace=False)
    pytest.skip(missing)
