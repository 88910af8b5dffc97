"""`ray-serve`: a configuration of Ray Serve with an `LLMConfig`, for `serve deploy`.

`LLMConfig.engine_kwargs` are the fields of vLLM's arguments, with typed values; Ray passes those of the front end on.
Ray expands `$NAME` and `${NAME}` in variables and has no escape for `$`; it expands nothing in `engine_kwargs`.
"""

from __future__ import annotations

import json
import math
import re
from typing import Any

from search_spaces.argv import SUFFIX_FACTORS
from search_spaces.render import data_parallel_size
from tuner.export.deployment import Deployment
from tuner.export.formats.document import (
    HF_TOKEN,
    File,
    check_container,
    heading,
    left_out_notes,
    packages_of,
    portable,
    reads_hub,
    refused,
    split_references,
    yaml_documents,
)
from tuner.export.formats.vllm_config import with_long_name
from tuner.export.quoting import VARIABLE_NAME
from tuner.export.words import Argument
from tuner.processes.secrets import referenced

FORMAT = "ray-serve"
CARDS = (
    *("T4", "L4", "L40S", "A10G", "A100", "H100", "H200", "H20", "B200", "B300", "GB200", "GB300", "V100", "P100"),
    *("P4", "K80"),
)
"""Ray's names of NVIDIA's accelerators that are one word of the card's name."""

SERVE_ONLY = frozenset({"api_server_count", "config", "grpc", "headless"})
"""Flags of `vllm serve` that are no fields of vLLM's arguments, which Ray would refuse."""

SECRET_FLAGS = {"hf_token": "HF_TOKEN", "api_key": "VLLM_API_KEY"}
"""Fields that vLLM also reads from a variable."""

TEXT_FIELDS = frozenset(
    {
        *("api_key", "chat_template", "config_format", "download_dir", "dtype", "hf_token", "kv_cache_dtype"),
        *("load_format", "quantization", "revision", "code_revision", "tokenizer", "tokenizer_mode"),
        *("tokenizer_revision", "generation_config", "hf_config_path", "root_path", "response_role"),
    }
)
"""Fields whose values are text, also if they look like numbers."""

_SIZED = re.compile(r"(\d+(?:\.\d+)?)([kKmMgGtT])")
_SIZED_FIELDS = re.compile(r"max_\w+|\w+_bytes|long_prefill_token_threshold")
_EXPANDED = re.compile(r"\$(?:\w|\{)")
_LIST_FIELDS = frozenset({"cudagraph_capture_sizes", "middleware", "logits_processors", "ignore_patterns"})


def render(deployment: Deployment, stem: str) -> tuple[File, ...]:
    """Return the configuration of Ray Serve.

    Raises:
        SettingError: for a flag or a variable that it cannot hold.
    """
    check_container(deployment, FORMAT)
    title = "Ray Serve configuration of the vLLM server of a tuner study."
    kept = engine_kwargs(deployment)
    config = {
        "model_loading_config": {"model_id": deployment.served_name, "model_source": deployment.model},
        **_hardware(deployment),
        "engine_kwargs": {name: value for name, value in kept.items() if _left_out(name, value) is None},
        "deployment_config": {"num_replicas": deployment.instances},
        **_runtime(deployment),
    }
    several = data_parallel_size(deployment.flag_words) > 1
    application = {
        "name": deployment.name,
        "route_prefix": "/",
        "import_path": f"ray.serve.llm:{'build_dp_openai_app' if several else 'build_openai_app'}",
        "args": {"llm_config": config} if several else {"llm_configs": [config]},
    }
    text = yaml_documents(heading(deployment, title, _notes(deployment, kept, stem)), {"applications": [application]})
    return (File(text),)


def _notes(deployment: Deployment, kept: dict[str, Any], stem: str) -> list[str]:
    version = deployment.public_version
    notes = [
        f"start it: serve deploy {stem}.yaml (needs ray[llm] and vllm=={version} on every node)",
        "a release of ray[llm] supports one version of vLLM; take the one that requires this or the nearest",
    ]
    notes += [f"every node needs the variable {name}" for name in sorted(deployment.references)]
    notes += [f"every node needs {path}" for path in deployment.host_paths] + left_out_notes(deployment)
    if reads_hub(deployment):
        notes.append(f"if the model is gated, every node needs the variable {HF_TOKEN}")
    left_out = {name: _left_out(name, value) for name, value in kept.items()}
    return [*notes, *(f"left out: {name}: {kept[name]}; {why}" for name, why in left_out.items() if why is not None)]


def _left_out(name: str, value: object) -> str | None:
    """Return why Ray does not take a flag; None if it does."""
    if name in SERVE_ONLY:
        return "Ray starts the API servers itself and refuses flags that are no fields of vLLM's arguments"
    if name == "distributed_executor_backend" and value != "ray":
        return "Ray Serve starts the workers of an engine by Ray only"
    return None


def engine_kwargs(deployment: Deployment) -> dict[str, Any]:
    """Return the fields of vLLM's arguments with their typed values.

    Raises:
        SettingError: for words without a flag, or a reference to a variable in a flag that vLLM reads from no variable.
    """
    found: dict[str, Any] = {}
    for each in deployment.arguments:
        argument = with_long_name(each, FORMAT)
        field, *keys = argument.flag.removeprefix("--").replace("-", "_").split(".")
        if referenced(argument.values) & deployment.references:
            if field not in SECRET_FLAGS or len(argument.values) != 1:
                raise refused(FORMAT, f"it expands no variable in {argument.flag}")
            continue
        if keys:
            _set_nested(found, [field, *keys], _json_or_text(argument.values[0] if argument.values else ""))
        elif not argument.values and field.startswith("no_"):
            found[field.removeprefix("no_")] = False
        else:
            found[field] = _typed(field, argument)
    return found


def _set_nested(content: dict[str, Any], keys: list[str], value: object) -> None:
    for key in keys[:-1]:
        inner = content.setdefault(key, {})
        if not isinstance(inner, dict):
            raise refused(FORMAT, f"{keys[0]} is given twice, in full and by its keys")
        content = inner
    content[keys[-1]] = value


def _typed(field: str, argument: Argument) -> object:
    values = argument.values
    if not values:
        return True
    if field in TEXT_FIELDS:
        return values[0] if len(values) == 1 else list(values)
    typed = [_number(field, value) for value in values]
    return typed if len(values) > 1 or field in _LIST_FIELDS else typed[0]


def _number(field: str, text: str) -> object:
    sized = _SIZED.fullmatch(text)
    if sized and _SIZED_FIELDS.fullmatch(field):
        return int(float(sized[1]) * SUFFIX_FACTORS[sized[2]])
    return _json_or_text(text)


def _json_or_text(text: str) -> object:
    """Return the number, object or list that a text is in JSON; any other text is itself."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return text
    if isinstance(value, bool) or not isinstance(value, int | float | dict | list):
        return text
    finite = not isinstance(value, float) or math.isfinite(value)
    return value if finite else text


def _hardware(deployment: Deployment) -> dict[str, Any]:
    if deployment.on_cpu:
        return {"accelerator_config": {"kind": "cpu"}}
    words = re.split(r"[\s-]+", deployment.card.upper())
    card = next((name for name in CARDS if name in words), "A10G" if "A10" in words else None)
    return {} if card is None else {"accelerator_type": card}


def _runtime(deployment: Deployment) -> dict[str, Any]:
    """Return the variables; secrets in flags become the variables that vLLM reads."""
    known = deployment.references
    found = portable(deployment)
    for each in deployment.arguments:
        field = each.flag.removeprefix("--").replace("-", "_")
        if field in SECRET_FLAGS and referenced(each.values) & known:
            found[SECRET_FLAGS[field]] = each.values[0]
    for name, value in found.items():
        literal = "".join(text for is_name, text in split_references(value, known) if not is_name)
        if not VARIABLE_NAME.fullmatch(name) or _EXPANDED.search(literal):
            raise refused(FORMAT, f"Ray would change the value of the variable {name!r}")
        if any(not re.fullmatch(r"[A-Z0-9_]+", each) for each in referenced([value]) & known):
            raise refused(FORMAT, f"the variable {name!r} refers to one with lower-case letters")
    packages = list(packages_of(deployment))
    environment = {**({"env_vars": found} if found else {}), **({"pip": packages} if packages else {})}
    return {"runtime_env": environment} if environment else {}
