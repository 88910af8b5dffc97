"""A port on which nothing listens."""

import tempfile
from pathlib import Path

from tuner.processes.ports import lease_port


def free_port() -> int:
    """Return a port that no outgoing connection takes before a server binds it."""
    with tempfile.TemporaryDirectory() as folder, lease_port(Path(folder)) as lease:
        return lease.port
