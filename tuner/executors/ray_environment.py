"""What Ray reads from the environment while it is imported; must be set before `tuner.executors.ray_pool` is."""

from __future__ import annotations

import os
import secrets


def prepare(address: str | None) -> None:
    """Set Ray's variables, where the user has not.

    Args:
        address: a cluster to join, with its own token; None for a Ray of this command's own, which gets a token of its
            own: it is closed to others, and no token is written to the user's home.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    # Under `uv run` Ray would otherwise pack the working folder and build the environment again for its workers.
    os.environ.setdefault("RAY_ENABLE_UV_RUN_RUNTIME_ENV", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    if address is None:
        # Ray's workers, and with them our servers, would have niceness 15: what is measured must not have a lower
        # priority than what the exported script starts. On a cluster its own setting holds.
        os.environ.setdefault("RAY_worker_niceness", "0")
        os.environ.setdefault("RAY_AUTH_MODE", "token")
        os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
