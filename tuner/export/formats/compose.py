"""`compose`: a file for Docker Compose.

Several instances are services with GPUs of their own, because `count: 1` gives each container the first GPU. HAProxy
sends each request to the one with the fewest open ones, as in the study.
"""

from __future__ import annotations

from typing import Any

from tuner.engines.vllm.instances import PROXY_DEFAULTS
from tuner.export.deployment import Deployment
from tuner.export.formats.document import (
    CACHE,
    HF_TOKEN,
    PORT,
    USER_ID,
    File,
    check_container,
    container_environment,
    container_image,
    heading,
    install_command,
    left_out_notes,
    listening,
    packages_of,
    reads_hub,
    refused,
    shared_memory_gib,
    split_references,
    yaml_documents,
)

FORMAT = "compose"
ROUTER_IMAGE = "haproxy:3.2"
_HEALTH = f"import urllib.request as r; r.urlopen('http://127.0.0.1:{PORT}/health', timeout=5)"
_OWNER = "cache-owner"
_ROUTER = """\
global
    maxconn 4000
resolvers docker
    nameserver dns 127.0.0.11:53
{defaults}frontend api
    bind :{port}
    default_backend instances
backend instances
    balance leastconn
    option httpchk GET /health
{servers}
"""


def render(deployment: Deployment, stem: str) -> tuple[File, ...]:
    """Return the Compose file; `stem` is not used.

    Raises:
        SettingError: if the model is in a folder whose path is relative, or containers cannot run the server.
    """
    check_container(deployment, FORMAT)
    image = container_image(deployment)
    services = {**_servers(deployment, image), **_steps(deployment, image), _OWNER: _owner(image)}
    title = "Docker Compose file of the vLLM server of a tuner study."
    notes = ["start it: docker compose up --wait", "the port is open to this machine only; change `ports` for others"]
    notes += [f"set the variable {name}, or write it to .env" for name in sorted(deployment.references)]
    if reads_hub(deployment):
        notes.append(f"if the model is gated, set the variable {HF_TOKEN}, or write it to .env")
    notes += left_out_notes(deployment)
    content = {"name": deployment.name, "services": services, "volumes": {"cache": {}}, **_router_file(deployment)}
    return (File(yaml_documents(heading(deployment, title, notes), content)),)


def escaped(text: str, references: frozenset[str] = frozenset()) -> str:
    """Return a text as Compose interpolates it: `$` doubled, references to variables that must be set."""
    parts = split_references(text, references)
    return "".join(f"${{{part}:?is not set}}" if is_name else part.replace("$", "$$") for is_name, part in parts)


def _servers(deployment: Deployment, image: str) -> dict[str, Any]:
    """Return the service of the server, or the router and a service for each instance."""
    ports = {"ports": [f"127.0.0.1:{PORT}:{PORT}"]}
    if deployment.instances == 1:
        gpus = {"count": deployment.gpus_of_server}
        return {deployment.name: {**_server(deployment, image, gpus), **ports}}
    router = {
        "image": ROUTER_IMAGE,
        "configs": [{"source": "router", "target": "/usr/local/etc/haproxy/haproxy.cfg"}],
        **ports,
        "restart": "unless-stopped",
        "depends_on": {name: {"condition": "service_healthy"} for name in _names(deployment)},
    }
    groups = [
        range(first, first + deployment.gpus_of_server)
        for first in range(0, _used(deployment), deployment.gpus_of_server)
    ]
    return {
        deployment.name: router,
        **{
            name: _server(deployment, image, {"device_ids": [str(index) for index in group]})
            for name, group in zip(_names(deployment), groups, strict=True)
        },
    }


def _names(deployment: Deployment) -> list[str]:
    return [f"{deployment.name}-{index}" for index in range(deployment.instances)]


def _used(deployment: Deployment) -> int:
    return deployment.gpus_of_server * deployment.instances


def _router_file(deployment: Deployment) -> dict[str, Any]:
    if deployment.instances == 1:
        return {}
    lines = [f"    server {name} {name}:{PORT} check resolvers docker init-addr none" for name in _names(deployment)]
    router = _ROUTER.format(defaults=PROXY_DEFAULTS, port=PORT, servers="\n".join(lines))
    return {"configs": {"router": {"content": router}}}


def _steps(deployment: Deployment, image: str) -> dict[str, Any]:
    """Return the services that install what vLLM's image lacks."""
    return {
        _step_name(package): {
            "image": image,
            "entrypoint": [escaped(word) for word in install_command(package, CACHE)],
            "command": [],
            "user": f"{USER_ID}:{USER_ID}",
            "environment": {"HOME": CACHE},
            "volumes": [{"type": "volume", "source": "cache", "target": CACHE}],
            "depends_on": {_OWNER: {"condition": "service_completed_successfully"}},
        }
        for package in packages_of(deployment)
    }


def _step_name(package: str) -> str:
    return f"install-{package.partition('=')[0]}"


def _server(deployment: Deployment, image: str, gpus: dict[str, Any]) -> dict[str, Any]:
    known = deployment.references
    variables: dict[str, Any] = {
        name: escaped(value, known) for name, value in container_environment(deployment).items()
    }
    if reads_hub(deployment):
        variables[HF_TOKEN] = None  # that of the caller, if there is one
    steps = [_OWNER, *map(_step_name, packages_of(deployment))]
    devices = [{"driver": "nvidia", **gpus, "capabilities": ["gpu"]}]
    return {
        "image": image,
        "entrypoint": ["vllm", "serve"],
        "command": [*(escaped(word, known) for word in deployment.words), *listening()],
        "user": f"{USER_ID}:{USER_ID}",
        "environment": variables,
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
        "depends_on": {step: {"condition": "service_completed_successfully"} for step in steps},
        **({"deploy": {"resources": {"reservations": {"devices": devices}}}} if deployment.gpus_of_server else {}),
    }


def _volumes(deployment: Deployment) -> list[dict[str, Any]]:
    cache = {"type": "volume", "source": "cache", "target": CACHE}
    paths = deployment.host_paths
    if any(not path.startswith("/") for path in paths):
        raise refused(FORMAT, f"the model's folder {paths[0]!r} is not an absolute path")
    bound = map(escaped, paths)
    return [cache, *({"type": "bind", "source": path, "target": path, "read_only": True} for path in bound)]


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
