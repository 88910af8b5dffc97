"""`kserve`: an LLMInferenceService, and in a second file an InferenceService.

KServe's template of an LLMInferenceService starts the server by `eval "exec vllm serve … ${VLLM_ADDITIONAL_ARGS}"`, so
the flags in this variable are quoted for bash. The template itself passes the model, its name, the port and TLS.
"""

from __future__ import annotations

from typing import Any

from tuner.export.deployment import Deployment
from tuner.export.formats import pod
from tuner.export.formats.command import shell_quoted
from tuner.export.formats.document import (
    PORT,
    USER_ID,
    File,
    container_image,
    heading,
    listening,
    refused,
    shared_memory_gib,
    yaml_documents,
)

FORMAT = "kserve"


def render(deployment: Deployment, stem: str) -> tuple[File, ...]:
    """Return the LLMInferenceService, and the InferenceService as `STEM.inferenceservice.yaml`.

    Raises:
        SettingError: if the model is in a folder, because KServe reads a hub, a bucket or a claim.
    """
    if deployment.model_folder is not None:
        raise refused(FORMAT, f"it reads models from a hub, and {deployment.model!r} is a folder")
    secret = pod.secret_notes(deployment)
    modern = heading(deployment, "KServe LLMInferenceService of a vLLM server of a tuner study.", secret)
    simple = heading(deployment, "KServe InferenceService of a vLLM server of a tuner study.", secret)
    return (
        File(yaml_documents(modern, _llm_service(deployment))),
        File(yaml_documents(simple, _service(deployment)), suffix=".inferenceservice.yaml"),
    )


def _llm_service(deployment: Deployment) -> dict[str, Any]:
    size = f"{shared_memory_gib(deployment)}Gi"
    return {
        "apiVersion": "serving.kserve.io/v1alpha2",
        "kind": "LLMInferenceService",
        "metadata": {"name": deployment.name},
        "spec": {
            "model": {"uri": f"hf://{deployment.model}", "name": deployment.served_name},
            "replicas": 1,
            "router": {"route": {}, "gateway": {}, "scheduler": {}},
            "template": {
                "containers": [_llm_container(deployment)],
                "volumes": [{"name": "dshm", "emptyDir": {"medium": "Memory", "sizeLimit": size}}],
            },
        },
    }


def _llm_container(deployment: Deployment) -> dict[str, Any]:
    words = " ".join(shell_quoted(word, deployment.references) for word in deployment.flag_words)
    resources = pod.resources(deployment)
    # the shell expands the references, so Kubernetes must not
    flags = [{"name": "VLLM_ADDITIONAL_ARGS", "value": pod.expandable(words)}]
    return {
        "name": "main",
        "image": container_image(deployment),
        "env": [*pod.variables(deployment, {"USER": "vllm", **deployment.environment}), *flags],
        **({"resources": resources} if resources else {}),
        # KServe adds how the probe asks, with or without TLS
        "startupProbe": {
            "periodSeconds": pod.PROBE_PERIOD_S,
            "failureThreshold": pod.start_failures(deployment),
        },
        "securityContext": pod.SECURITY,
    }


def _service(deployment: Deployment) -> dict[str, Any]:
    resources = pod.resources(deployment)
    container = {
        "name": "kserve-container",
        "image": container_image(deployment),
        "command": ["vllm", "serve"],
        "args": [*(pod.expandable(word, deployment.references) for word in deployment.words), *listening()],
        "env": pod.variables(deployment),
        "ports": [{"containerPort": PORT, "protocol": "TCP"}],
        **({"resources": resources} if resources else {}),
        "startupProbe": pod.probe(pod.start_failures(deployment)),
        "readinessProbe": pod.probe(3),
        "livenessProbe": pod.probe(6),
        "securityContext": pod.SECURITY,
        "volumeMounts": pod.mounts(deployment),
    }
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
                "minReplicas": 1,
                "maxReplicas": 1,
                "securityContext": {"fsGroup": USER_ID},
                "containers": [container],
                "volumes": pod.volumes(deployment, {"emptyDir": {}}),
            }
        },
    }
