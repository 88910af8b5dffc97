"""The machine and the versions that a run of a study uses, for its provenance."""

from __future__ import annotations

import platform

from storage.records import JsonScalar
from tuner import __version__, gpu

_FACTS = ("python", "cpu", "cores", "cores_usable", "memory_gib", "platform")


def this_machine() -> dict[str, JsonScalar]:
    """Return the versions of the tuner, of Python and of the system, the CPU, and the memory in GiB; None: unknown.

    On a cluster it is the machine of the driver. The name of the host is no part of it.
    """
    facts = gpu.host_facts()
    return {"tuner": __version__, "os": _system(), **{name: facts[name] for name in _FACTS}}


def _system() -> str | None:
    """Return the name and version of the distribution, such as `Ubuntu 22.04.5 LTS`; None if it has no such file."""
    try:
        return platform.freedesktop_os_release().get("PRETTY_NAME")
    except OSError:
        return None
