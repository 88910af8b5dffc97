"""`compose`: a file for Docker Compose."""

from __future__ import annotations

from typing import Any

from tuner.export.deployment import Deployment
from tuner.export.formats.document import (
    CACHE,
    PORT,
    USER_ID,
    File,
    container_environment,
    container_image,
    heading,
    listening,
    refused,
    shared_memory_gib,
    split_references,
    yaml_documents,
)

_HEALTH = f"import urllib.request as r; r.urlopen('http://127.0.0.1:{PORT}/health', timeout=5)"
_OWNER = "cache-owner"


def render(deployment: Deployment, stem: str) -> tuple[File, ...]:
    """Return the Compose file; `stem` is not used.

    Raises:
        SettingError: if the model is in a folder whose path is relative.
    """
    image = container_image(deployment)
    services = {deployment.name: _server(deployment, image), _OWNER: _owner(image)}
    title = "Docker Compose file of the vLLM server of a tuner study."
    notes = ["start it: docker compose up --wait", "the port is open to this machine only; change `ports` for others"]
    notes += [f"set the variable {name}, or write it to .env" for name in sorted(deployment.references)]
    content = {"name": deployment.name, "services": services, "volumes": {"cache": {}}}
    return (File(yaml_documents(heading(deployment, title, notes), content)),)


def escaped(text: str, references: frozenset[str] = frozenset()) -> str:
    """Return a text as Compose interpolates it: `$` doubled, references to variables that must be set."""
    parts = split_references(text, references)
    return "".join(f"${{{part}:?is not set}}" if is_name else part.replace("$", "$$") for is_name, part in parts)


def _server(deployment: Deployment, image: str) -> dict[str, Any]:
    known = deployment.references
    variables = {name: escaped(value, known) for name, value in container_environment(deployment).items()}
    return {
        "image": image,
        "entrypoint": ["vllm", "serve"],
        "command": [*(escaped(word, known) for word in deployment.words), *listening()],
        "user": f"{USER_ID}:{USER_ID}",
        "environment": variables,
        "ports": [f"127.0.0.1:{PORT}:{PORT}"],
        "volumes": _volumes(deployment),
        "shm_size": f"{shared_memory_gib(deployment)}gb",
        "healthcheck": {
            "test": ["CMD", "python3", "-c", _HEALTH],
            "interval": "10s",
            "timeout": "10s",
            "retries": 3,
            "start_period": f"{deployment.start_limit_s}s",
        },
        "restart": "unless-stopped",
        "cap_drop": ["ALL"],
        "security_opt": ["no-new-privileges:true"],
        "depends_on": {_OWNER: {"condition": "service_completed_successfully"}},
        **({"deploy": {"resources": {"reservations": {"devices": [_gpus(deployment)]}}}} if deployment.gpus else {}),
    }


def _gpus(deployment: Deployment) -> dict[str, Any]:
    return {"driver": "nvidia", "count": deployment.gpus, "capabilities": ["gpu"]}


def _volumes(deployment: Deployment) -> list[dict[str, Any]]:
    cache = {"type": "volume", "source": "cache", "target": CACHE}
    folder = deployment.model_folder
    if folder is None:
        return [cache]
    if not folder.startswith("/"):
        raise refused("compose", f"the model's folder {folder!r} is not an absolute path")
    path = escaped(folder)
    return [cache, {"type": "bind", "source": path, "target": path, "read_only": True}]


def _owner(image: str) -> dict[str, Any]:
    """Return the service that gives the new volume to the server's user; Docker creates it for root."""
    return {
        "image": image,
        "entrypoint": ["chown", f"{USER_ID}:{USER_ID}", CACHE],
        "command": [],
        "user": "0:0",
        "network_mode": "none",
        "volumes": [{"type": "volume", "source": "cache", "target": CACHE}],
    }
