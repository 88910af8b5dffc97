"""`kubernetes`: a Deployment, its Service and the claim of its cache."""

from __future__ import annotations

from typing import Any

from tuner.export.deployment import Deployment
from tuner.export.formats import pod
from tuner.export.formats.document import (
    PORT,
    USER_ID,
    File,
    check_container,
    container_image,
    heading,
    listening,
    refused,
    yaml_documents,
)

FORMAT = "kubernetes"
CACHE_SIZE = "100Gi"
"""Of the claim: room for the weights of a large model; it is not measured."""


def render(deployment: Deployment, stem: str) -> tuple[File, ...]:
    """Return the manifests; `stem` is not used.

    Raises:
        SettingError: if the model is in a folder whose path a volume cannot have, or containers cannot run the server.
    """
    folder = deployment.model_folder
    if folder is not None and (not folder.startswith("/") or ".." in folder.split("/") or ":" in folder):
        raise refused(FORMAT, f"a volume cannot be mounted at the model's folder {folder!r}")
    check_container(deployment, FORMAT)
    title = "Kubernetes Deployment and Service of the vLLM server of a tuner study."
    notes = [*pod.secret_notes(deployment), *pod.model_notes(deployment), "start it: kubectl apply -f FILE"]
    notes.append(f"the cache's claim is {CACHE_SIZE}; change it to fit the model")
    notes += [*pod.resource_notes(deployment), *pod.replica_notes(deployment)]
    claims = (_claim(deployment),) if deployment.instances == 1 else ()
    documents = (*claims, _deployment(deployment), _service(deployment))
    return (File(yaml_documents(heading(deployment, title, notes), *documents)),)


def _labels(deployment: Deployment) -> dict[str, str]:
    return {"app.kubernetes.io/name": deployment.name}


def _metadata(deployment: Deployment, name: str) -> dict[str, Any]:
    return {"name": name, "labels": _labels(deployment)}


def _claim_name(deployment: Deployment) -> str:
    return f"{deployment.name}-cache"


def _claim(deployment: Deployment) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": _metadata(deployment, _claim_name(deployment)),
        "spec": _claim_spec(),
    }


def _claim_spec() -> dict[str, Any]:
    return {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": CACHE_SIZE}}}


def _cache(deployment: Deployment) -> dict[str, Any]:
    """Return the source of the cache's volume: a claim, or one for each of several pods, which one claim would tie to
    one node."""
    if deployment.instances == 1:
        return {"persistentVolumeClaim": {"claimName": _claim_name(deployment)}}
    return {"ephemeral": {"volumeClaimTemplate": {"spec": _claim_spec()}}}


def _deployment(deployment: Deployment) -> dict[str, Any]:
    labels = _labels(deployment)
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": _metadata(deployment, deployment.name),
        "spec": {
            "replicas": deployment.instances,
            # the next server needs the GPUs and the volume of the last one
            "strategy": {"type": "Recreate"},
            "progressDeadlineSeconds": deployment.start_limit_s + 60,
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": _pod(deployment)},
        },
    }


def _pod(deployment: Deployment) -> dict[str, Any]:
    return {
        "automountServiceAccountToken": False,
        # variables such as VLLM_PORT of other Services would be settings of vLLM
        "enableServiceLinks": False,
        "securityContext": {"fsGroup": USER_ID, "fsGroupChangePolicy": "OnRootMismatch"},
        **pod.placement(deployment),
        **pod.installing(deployment, pod.CACHE_MOUNT),
        "containers": [_container(deployment)],
        "volumes": pod.volumes(deployment, _cache(deployment)),
    }


def _container(deployment: Deployment) -> dict[str, Any]:
    return {
        "name": "server",
        "image": container_image(deployment),
        "command": ["vllm", "serve"],
        "args": [*(pod.expandable(word, deployment.references) for word in deployment.words), *listening()],
        "env": pod.variables(deployment),
        "ports": [{"name": "http", "containerPort": PORT}],
        "resources": pod.resources(deployment),
        "startupProbe": pod.probe(pod.start_failures(deployment)),
        "readinessProbe": pod.probe(3),
        "livenessProbe": pod.probe(6),
        "securityContext": pod.SECURITY,
        "volumeMounts": pod.mounts(deployment),
    }


def _service(deployment: Deployment) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": _metadata(deployment, deployment.name),
        "spec": {
            "type": "ClusterIP",
            "selector": _labels(deployment),
            "ports": [{"name": "http", "port": PORT, "targetPort": "http"}],
        },
    }
