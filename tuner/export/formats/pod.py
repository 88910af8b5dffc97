"""Parts of a Kubernetes pod, which Kubernetes and KServe share.

Kubernetes expands `$(NAME)` in arguments and in values of variables, and reads `$$` as `$`.
"""

from __future__ import annotations

import math
from typing import Any

from tuner.export.deployment import Deployment
from tuner.export.formats.document import (
    CACHE,
    PORT,
    USER_ID,
    container_environment,
    shared_memory_gib,
    split_references,
)

PROBE_PERIOD_S = 10
SECURITY: dict[str, Any] = {
    "allowPrivilegeEscalation": False,
    "runAsNonRoot": True,
    "runAsUser": USER_ID,
    "runAsGroup": USER_ID,
    "capabilities": {"drop": ["ALL"]},
    "seccompProfile": {"type": "RuntimeDefault"},
}
"""The security context of a container."""


def expandable(text: str, references: frozenset[str] = frozenset()) -> str:
    """Return a text that Kubernetes expands to itself, but for references to variables."""
    parts = split_references(text, references)
    return "".join(f"$({part})" if is_name else part.replace("$", "$$") for is_name, part in parts)


def secret_name(deployment: Deployment) -> str:
    """Return the name of the Secret that has the values of the references."""
    return f"{deployment.name}-secrets"


def secret_notes(deployment: Deployment) -> list[str]:
    """Return how to create the Secret; empty if nothing refers to one."""
    if not deployment.references:
        return []
    keys = " ".join(f'--from-literal={name}="${name}"' for name in sorted(deployment.references))
    return [f"first: kubectl create secret generic {secret_name(deployment)} {keys}"]


def variables(deployment: Deployment, own: dict[str, str] | None = None) -> list[dict[str, Any]]:
    """Return the variables of a container; those of the Secret come first, because the others may refer to them.

    Args:
        deployment: the server.
        own: variables and their values; None: those of every container and of the study.
    """
    known = deployment.references
    secret = secret_name(deployment)
    found: list[dict[str, Any]] = [
        {"name": name, "valueFrom": {"secretKeyRef": {"name": secret, "key": name}}} for name in sorted(known)
    ]
    plain = container_environment(deployment) if own is None else own
    return found + [
        {"name": name, "value": expandable(value, known)}
        for name, value in plain.items()
        if not (name in known and value == f"${{{name}}}")
    ]


def resources(deployment: Deployment) -> dict[str, Any]:
    """Return the GPUs of a container; no other resource was measured."""
    return {"limits": {"nvidia.com/gpu": str(deployment.gpus)}} if deployment.gpus else {}


def probe(failures: int, path: str = "/health") -> dict[str, Any]:
    """Return a probe of the server's health that fails after so many failures."""
    return {
        "httpGet": {"path": path, "port": PORT},
        "periodSeconds": PROBE_PERIOD_S,
        "timeoutSeconds": 5,
        "failureThreshold": failures,
    }


def start_failures(deployment: Deployment) -> int:
    """Return how often the start probe may fail."""
    return math.ceil(deployment.start_limit_s / PROBE_PERIOD_S)


def volumes(deployment: Deployment, cache: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the volumes of a pod: the cache, /dev/shm in memory, and the model's folder of the node if it has one."""
    size = f"{shared_memory_gib(deployment)}Gi"
    found = [{"name": "cache", **cache}, {"name": "dshm", "emptyDir": {"medium": "Memory", "sizeLimit": size}}]
    folder = deployment.model_folder
    return found if folder is None else [*found, {"name": "model", "hostPath": {"path": folder, "type": "Directory"}}]


def mounts(deployment: Deployment) -> list[dict[str, Any]]:
    """Return where a container sees these volumes."""
    found: list[dict[str, Any]] = [{"name": "cache", "mountPath": CACHE}, {"name": "dshm", "mountPath": "/dev/shm"}]
    folder = deployment.model_folder
    return found if folder is None else [*found, {"name": "model", "mountPath": folder, "readOnly": True}]


def model_notes(deployment: Deployment) -> list[str]:
    """Return what must be on the nodes: the model's folder, if it has one."""
    folder = deployment.model_folder
    return [] if folder is None else [f"every node needs the model in {folder}"]
