"""`kubernetes`: a Deployment, its Service and the claim of its cache, and the pod that KServe has, too.

Kubernetes expands `$(NAME)` in arguments and in values of variables, and reads `$$` as `$`.
"""

from __future__ import annotations

import math
import re
from typing import Any

from search_spaces.render import data_parallel_size, gpus_of
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
    offloaded_gib,
    packages_of,
    reads_hub,
    refused,
    shared_memory_gib,
    split_references,
    yaml_documents,
)

PROBE_PERIOD_S = 10
GPU = "nvidia.com/gpu"
"""The resource of NVIDIA's device plugin, and the usual taint of nodes with GPUs."""

PRODUCT = "nvidia.com/gpu.product"
"""The label of a node with the name of its cards, from GPU feature discovery."""

PROCESS_GIB = 4
CPU_CACHE_GIB = 4
"""GiB of vLLM's KV cache on a CPU by default."""

SECURITY: dict[str, Any] = {
    "allowPrivilegeEscalation": False,
    "runAsNonRoot": True,
    "runAsUser": USER_ID,
    "runAsGroup": USER_ID,
    "capabilities": {"drop": ["ALL"]},
    "seccompProfile": {"type": "RuntimeDefault"},
}
"""The security context of a container."""


CACHE_MOUNT = {"name": "cache", "mountPath": CACHE}


def expandable(text: str, references: frozenset[str] = frozenset()) -> str:
    """Return a text that Kubernetes expands to itself, but for references to variables."""
    parts = split_references(text, references)
    return "".join(f"$({part})" if is_name else part.replace("$", "$$") for is_name, part in parts)


def secret_name(deployment: Deployment) -> str:
    """Return the name of the Secret that has the values of the references."""
    return f"{deployment.name}-secrets"


def secret_notes(deployment: Deployment) -> list[str]:
    """Return how to create the Secret; a gated model needs the token of the hub in it."""
    keys = " ".join(f'--from-literal={name}="${name}"' for name in sorted(deployment.references))
    create = f"kubectl create secret generic {secret_name(deployment)}"
    token = f'--from-literal={HF_TOKEN}="${HF_TOKEN}"'
    if not reads_hub(deployment):
        return [f"first: {create} {keys}"] if keys else []
    first = [f"first: {create} {keys}", f"if the model is gated, add {token}"]
    return first if keys else [f"if the model is gated, first: {create} {token}"]


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
    if reads_hub(deployment):
        found.append(
            {
                "name": HF_TOKEN,
                "valueFrom": {"secretKeyRef": {"name": secret, "key": HF_TOKEN, "optional": True}},
            }
        )
    plain = container_environment(deployment) if own is None else own
    return found + [
        {"name": name, "value": expandable(value, known)}
        for name, value in plain.items()
        if not (name in known and value == f"${{{name}}}")
    ]


def resources(deployment: Deployment) -> dict[str, Any]:
    """Return the GPUs of a container, and requests of cores and memory, which were not measured.

    vLLM's guide asks for a core for each process: API servers, engines, workers, and a coordinator of several engines.
    Each has `PROCESS_GIB`; offloaded blocks, and on a CPU weights and KV cache, are in the host's memory, too.
    """
    engines = data_parallel_size(deployment.flag_words)
    given = deployment.last_value("--api-server-count") or ""
    servers = max(int(given), 1) if given.isdecimal() else 1
    processes = servers + engines + gpus_of(deployment.flag_words) + (engines > 1)
    held = math.ceil(processes * PROCESS_GIB + offloaded_gib(deployment) + _on_host_gib(deployment))
    limits = {"limits": {GPU: str(deployment.gpus_of_server)}} if deployment.gpus_of_server else {}
    return {"requests": {"cpu": str(processes), "memory": f"{held}Gi"}, **limits}


def _on_host_gib(deployment: Deployment) -> float:
    if not deployment.on_cpu:
        return 0.0
    cache = deployment.variables.get("VLLM_CPU_KVCACHE_SPACE", "")
    return (deployment.weights_gib or 0.0) + (float(cache) if cache.isdecimal() else CPU_CACHE_GIB)


def placement(deployment: Deployment) -> dict[str, Any]:
    """Return the fields of a pod that choose nodes with the trial's card; none on a CPU."""
    if not deployment.gpus_of_server:
        return {}
    tolerations = [{"key": GPU, "operator": "Exists", "effect": "NoSchedule"}]
    return {"nodeSelector": {PRODUCT: product(deployment)}, "tolerations": tolerations}


def product(deployment: Deployment) -> str:
    """Return the card's name as the label of GPU feature discovery has it."""
    return re.sub(r"[^A-Za-z0-9_.-]+", "-", deployment.card)[:63].strip("-_.")


def resource_notes(deployment: Deployment) -> list[str]:
    """Return what the requests and the choice of nodes rest on."""
    found = [f"requests of cores and memory follow from the number of processes ({PROCESS_GIB} GiB each); not measured"]
    if deployment.gpus_of_server:
        label = f"{PRODUCT}={product(deployment)}"
        found.append(f"nodes need the label {label}, which GPU feature discovery sets; remove nodeSelector without it")
    return found


def installing(deployment: Deployment, cache: dict[str, Any], root: str = CACHE) -> dict[str, Any]:
    """Return the steps of a pod that install what vLLM's image lacks, into the volume that is mounted as `cache`."""
    steps = [
        {
            "name": re.sub(r"[^a-z0-9]+", "-", f"install {package.partition('=')[0]}"),
            "image": container_image(deployment),
            "command": install_command(package, root),
            "env": [{"name": "HOME", "value": root}],
            "securityContext": SECURITY,
            "volumeMounts": [cache],
        }
        for package in packages_of(deployment)
    ]
    return {"initContainers": steps} if steps else {}


def replica_notes(deployment: Deployment) -> list[str]:
    """Return how requests reach several replicas, which differs from the study."""
    if deployment.instances == 1:
        return []
    return [
        f"the {deployment.instances} replicas are the instances of the study, whose router sent each request to that "
        "with the fewest; a Service spreads connections at random"
    ]


def _probe(failures: int) -> dict[str, Any]:
    """Return a probe of the server's health that fails after so many failures."""
    return {
        "httpGet": {"path": "/health", "port": PORT},
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
    return [*found, *({"name": name, "hostPath": {"path": path}} for name, path in _on_nodes(deployment))]


def _mounts(deployment: Deployment) -> list[dict[str, Any]]:
    """Return where a container sees the volumes."""
    found: list[dict[str, Any]] = [CACHE_MOUNT, {"name": "dshm", "mountPath": "/dev/shm"}]
    own = ({"name": name, "mountPath": path, "readOnly": True} for name, path in _on_nodes(deployment))
    return [*found, *own]


def _on_nodes(deployment: Deployment) -> list[tuple[str, str]]:
    """Return the files and folders of a node that a container sees at their own path, each with its volume's name."""
    paths = deployment.host_paths
    return [("model" if path == deployment.model_folder else f"file-{index}", path) for index, path in enumerate(paths)]


def model_notes(deployment: Deployment) -> list[str]:
    """Return what must be on the nodes: the model's folder and other files that flags name, and what is left out."""
    folder = deployment.model_folder
    found = [f"every node needs {'the model in ' if path == folder else ''}{path}" for path in deployment.host_paths]
    return found + left_out_notes(deployment)


FORMAT = "kubernetes"
CACHE_SIZE = "100Gi"
"""Of the claim: room for the weights of a large model; it is not measured."""


def render(deployment: Deployment, stem: str) -> tuple[File, ...]:
    """Return the manifests; `stem` is not used.

    Raises:
        SettingError: for a file or folder whose path a volume cannot have, or containers cannot run the server.
    """
    for path in deployment.host_paths:
        if not path.startswith("/") or ".." in path.split("/") or ":" in path:
            raise refused(FORMAT, f"a volume cannot be mounted at {path!r}")
    check_container(deployment, FORMAT)
    title = "Kubernetes Deployment and Service of the vLLM server of a tuner study."
    notes = [*secret_notes(deployment), *model_notes(deployment), "start it: kubectl apply -f FILE"]
    notes.append(f"the cache's claim is {CACHE_SIZE}; change it to fit the model")
    notes += [*resource_notes(deployment), *replica_notes(deployment)]
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
        **placement(deployment),
        **installing(deployment, CACHE_MOUNT),
        "containers": [container(deployment, "server", {"name": "http", "containerPort": PORT})],
        "volumes": volumes(deployment, _cache(deployment)),
    }


def container(deployment: Deployment, name: str, port: dict[str, Any]) -> dict[str, Any]:
    """Return the container of the server, whose port the two kinds of pods describe differently."""
    return {
        "name": name,
        "image": container_image(deployment),
        "command": ["vllm", "serve"],
        "args": [*(expandable(word, deployment.references) for word in deployment.words), *listening()],
        "env": variables(deployment),
        "ports": [port],
        "resources": resources(deployment),
        "startupProbe": _probe(start_failures(deployment)),
        "readinessProbe": _probe(3),
        "livenessProbe": _probe(6),
        "securityContext": SECURITY,
        "volumeMounts": _mounts(deployment),
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
