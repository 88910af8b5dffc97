"""Set the variables that Ray reads at its import. To be called before `tuner.executors.ray_pool` is imported."""

from __future__ import annotations

import os
import secrets

START_S = 300
"""How long the parts of a local Ray wait for each other to start. Ray's own 30 s are too short on a busy machine."""

CONTROL_STORE_S = 60
"""How long a part waits for each step of the control store. Nothing tells it that a control store has died; see
`ray_start.Watch` for a driver."""

_PATIENCE = {
    "RAY_gcs_server_port_wait_time_s": str(START_S),  # `ray_head`, for the port of the control store
    "RAY_gcs_rpc_server_connect_timeout_s": str(CONTROL_STORE_S),  # each part, for the control store's answer
    "RAY_raylet_start_wait_time_s": str(START_S),  # `ray_head`, for the raylet
    "RAY_worker_register_timeout_seconds": str(START_S),  # the raylet, for a worker that it started
    "RAY_agent_register_timeout_ms": str(1000 * START_S),  # the raylet, for its agents; it ends without them
    "RAY_health_check_timeout_ms": "60000",  # the control store, before a raylet that gets no CPU counts as dead
}


def set_ray_environment(address: str | None) -> None:
    """Set Ray's variables, except those that the user has set.

    Args:
        address: a cluster to join, which has its own token; None starts a Ray of this command. That Ray
            gets a token of its own, which closes it to other users, and no token is written to the user's home.
    """
    if address is not None:
        # The number of tries of 40 s, despite its name. By default `ray.init` tries a dead address twenty times.
        os.environ.setdefault("RAY_gcs_server_port_wait_time_s", "1")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    # Under `uv run` Ray would otherwise pack the working folder and build the environment again for its workers.
    os.environ.setdefault("RAY_ENABLE_UV_RUN_RUNTIME_ENV", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    if address is None:
        # Ray's workers, and with them our servers, would have niceness 15. A server must have the same priority in the
        # benchmark as under the exported script. On a cluster, the cluster's own setting applies.
        os.environ.setdefault("RAY_worker_niceness", "0")
        os.environ.setdefault("RAY_AUTH_MODE", "token")
        os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
        # Despite its name, 0 makes Ray listen on loopback only on Linux, too.
        os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
        for name, value in _PATIENCE.items():
            os.environ.setdefault(name, value)
