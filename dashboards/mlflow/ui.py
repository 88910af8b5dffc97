"""The commands that start MLflow's UI and print its link."""

from __future__ import annotations

import ipaddress
import secrets
import sys
from collections.abc import Mapping
from pathlib import Path

LOOPBACK = "127.0.0.1"

PASSWORD_VARIABLE = "MLFLOW_AUTH_ADMIN_PASSWORD"
"""The environment variable with the password of MLflow's user `admin`."""

LEAST_PASSWORD = 12
"""Characters of a password that MLflow accepts."""

_CONFIG_VARIABLE, _KEY_VARIABLE = "MLFLOW_AUTH_CONFIG_PATH", "MLFLOW_FLASK_SERVER_SECRET_KEY"

_CONFIG = """\
[mlflow]
default_permission = READ
database_uri = {database}
admin_username = admin
authorization_function = mlflow.server.auth:authenticate_request_basic_auth
"""

BACKEND_VARIABLE = "MLFLOW_BACKEND_STORE_URI"
"""The environment variable in which MLflow's server finds the tracking database, whose URL may have a password."""

JOBS_VARIABLE = "MLFLOW_SERVER_ENABLE_JOB_EXECUTION"
"""The environment variable that starts the workers of MLflow's jobs (evaluations of traces): eight processes, 1.5 GB.
No study has such jobs."""

TELEMETRY_VARIABLE = "MLFLOW_DISABLE_TELEMETRY"


def is_loopback(host: str) -> bool:
    """Return True if only programs of this machine reach an address; False for a name other than `localhost`."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def ui_command(artifacts: Path | None, port: int, host: str = LOOPBACK) -> list[str]:
    """Return the command that starts MLflow's server, with this process's interpreter.

    The command needs the environment of `ui_environment`. On an address that other machines reach, the server asks for
    a password, and the environment of `with_password` is needed as well.

    Args:
        artifacts: folder of artifacts of new experiments; None leaves it to MLflow.
        port: TCP port to listen on.
        host: address to listen on.
    """
    command = [sys.executable, "-m", "mlflow", "server"]
    if artifacts is not None:
        command += ["--default-artifact-root", artifacts.resolve().as_uri()]
    if not is_loopback(host):
        command += ["--app-name", "basic-auth"]
    return [*command, "--host", host, "--port", str(port), "--workers", "1"]


def ui_environment(inherited: Mapping[str, str], database: str) -> dict[str, str]:
    """Return the environment of `ui_command`: the inherited one, with the tracking database.

    MLflow starts no job workers, and sends no telemetry, unless the inherited environment asks for them.

    Args:
        inherited: environment of this process.
        database: SQLAlchemy URL of the tracking database.
    """
    return {JOBS_VARIABLE: "false", TELEMETRY_VARIABLE: "true", **inherited, BACKEND_VARIABLE: database}


def with_password(environment: Mapping[str, str], folder: Path) -> dict[str, str]:
    """Return an environment in which MLflow asks for a password, and write MLflow's settings for it to a folder.

    Args:
        environment: it has the password; a file of settings and a key that it names stay.
        folder: it receives the settings, `mlflow_auth.ini`, and MLflow's database of users.
    """
    file = folder.resolve() / "mlflow_auth.ini"
    if _CONFIG_VARIABLE not in environment:
        database = f"sqlite:///{folder.resolve() / 'mlflow_auth.db'}"
        file.write_text(_CONFIG.format(database=database.replace("%", "%%")), encoding="utf-8")
    return {_CONFIG_VARIABLE: str(file), _KEY_VARIABLE: secrets.token_hex(32), **environment}


def link_command(port: int, study: str, host: str = LOOPBACK) -> list[str]:
    """Return the command that waits for the server, prints the link to a study's runs, and ends with its parent."""
    return [sys.executable, "-m", "dashboards.mlflow.link", base_url(host, port), study]


def base_url(host: str, port: int) -> str:
    """Return the URL of the server for a browser on this machine, also where the server listens on all addresses."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return f"http://{host}:{port}"
    if address.is_unspecified:
        return f"http://{LOOPBACK}:{port}"
    return f"http://[{host}]:{port}" if address.version == 6 else f"http://{host}:{port}"
