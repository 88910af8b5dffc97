"""`kserve`: an LLMInferenceService, and in a second file an InferenceService.

KServe's template of an LLMInferenceService starts the server by `eval "exec vllm serve … ${VLLM_ADDITIONAL_ARGS}"`, so
the flags in this variable are quoted for bash. The template itself passes the model, its name, the port and TLS.
"""

from __future__ import annotations

from typing import Any

from tuner.export.deployment import Deployment
from tuner.export.formats import kubernetes
from tuner.export.formats.command import shell_quoted
from tuner.export.formats.document import (
    PORT,
    USER_ID,
    File,
    check_container,
    container_image,
    heading,
    left_out_notes,
    packages_of,
    portable,
    reads_hub,
    refused,
    shared_memory_gib,
    with_packages,
    yaml_documents,
)

FORMAT = "kserve"
_PACKAGES = {"name": "packages", "mountPath": "/added"}
"""The volume of an LLMInferenceService with what vLLM's image lacks; KServe's template has the others."""


def render(deployment: Deployment, stem: str) -> tuple[File, ...]:
    """Return the LLMInferenceService, and the InferenceService as `STEM.inferenceservice.yaml`.

    Raises:
        SettingError: if the model or a flag's file is in a folder, because KServe reads a hub, a bucket or a claim, or
            if containers cannot run the server.
    """
    if deployment.model_folder is not None:
        raise refused(FORMAT, f"it reads models from a hub, and {deployment.model!r} is a folder")
    if deployment.host_paths:
        raise refused(FORMAT, f"it mounts no files of a node, and a flag names {deployment.host_paths[0]!r}")
    check_container(deployment, FORMAT)
    notes = [*kubernetes.secret_notes(deployment), *kubernetes.resource_notes(deployment), *left_out_notes(deployment)]
    title = "KServe LLMInferenceService of a vLLM server of a tuner study."
    modern = heading(deployment, title, [*notes, *_download_notes(deployment)])
    notes += kubernetes.replica_notes(deployment)
    simple = heading(deployment, "KServe InferenceService of a vLLM server of a tuner study.", notes)
    return (
        File(yaml_documents(modern, _llm_service(deployment))),
        File(yaml_documents(simple, _service(deployment)), suffix=".inferenceservice.yaml"),
    )


def _download_notes(deployment: Deployment) -> list[str]:
    """Return how KServe's own step, which downloads the weights, gets the token of a gated model."""
    if not reads_hub(deployment):
        return []
    secret = kubernetes.secret_name(deployment)
    patch = f"""kubectl patch serviceaccount default -p '{{"secrets": [{{"name": "{secret}"}}]}}'"""
    return [f"if the model is gated, KServe downloads it with the Secret of the pod's service account: {patch}"]


def _llm_service(deployment: Deployment) -> dict[str, Any]:
    size = f"{shared_memory_gib(deployment)}Gi"
    return {
        "apiVersion": "serving.kserve.io/v1alpha2",
        "kind": "LLMInferenceService",
        "metadata": {"name": deployment.name},
        "spec": {
            "model": {"uri": f"hf://{deployment.model}", "name": deployment.served_name},
            "replicas": deployment.instances,
            "router": {"route": {}, "gateway": {}, "scheduler": {}},
            "template": {
                **kubernetes.placement(deployment),
                **kubernetes.installing(deployment, _PACKAGES, _PACKAGES["mountPath"]),
                "containers": [_llm_container(deployment)],
                "volumes": [
                    {"name": "dshm", "emptyDir": {"medium": "Memory", "sizeLimit": size}},
                    *([{"name": _PACKAGES["name"], "emptyDir": {}}] if packages_of(deployment) else []),
                ],
            },
        },
    }


def _llm_container(deployment: Deployment) -> dict[str, Any]:
    words = " ".join(shell_quoted(word, deployment.references) for word in deployment.flag_words)
    packages = packages_of(deployment)
    own = with_packages(portable(deployment), packages, _PACKAGES["mountPath"])
    # the shell expands the references, so Kubernetes must not
    flags = [{"name": "VLLM_ADDITIONAL_ARGS", "value": kubernetes.expandable(words)}]
    return {
        "name": "main",
        "image": container_image(deployment),
        "env": [*kubernetes.variables(deployment, {"USER": "vllm", **own}), *flags],
        "resources": kubernetes.resources(deployment),
        **({"volumeMounts": [_PACKAGES]} if packages else {}),
        # KServe adds how the probe asks, with or without TLS
        "startupProbe": {
            "periodSeconds": kubernetes.PROBE_PERIOD_S,
            "failureThreshold": kubernetes.start_failures(deployment),
        },
        "securityContext": kubernetes.SECURITY,
    }


def _service(deployment: Deployment) -> dict[str, Any]:
    container = kubernetes.container(deployment, "kserve-container", {"containerPort": PORT, "protocol": "TCP"})
    return {
        "apiVersion": "serving.kserve.io/v1beta1",
        "kind": "InferenceService",
        "metadata": {
            "name": deployment.name,
            # a Deployment of Kubernetes: Knative allows neither start probes nor this long a start
            "annotations": {"serving.kserve.io/deploymentMode": "Standard"},
        },
        "spec": {
            "predictor": {
                "minReplicas": deployment.instances,
                "maxReplicas": deployment.instances,
                "securityContext": {"fsGroup": USER_ID},
                **kubernetes.placement(deployment),
                **kubernetes.installing(deployment, kubernetes.CACHE_MOUNT),
                "containers": [container],
                "volumes": kubernetes.volumes(deployment, {"emptyDir": {}}),
            }
        },
    }
