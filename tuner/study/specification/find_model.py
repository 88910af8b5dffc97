"""Find the model of a study, its shape, and the context that no request may exceed."""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from search_spaces import ModelShape, Space, SpaceError, known_model, known_models
from search_spaces.argv import one_spelling, value_after, whole_number
from search_spaces.catalogue.models import read_object
from search_spaces.schema import VLLM
from tuner.engines.kind import ModelForm
from tuner.engines.kinds import kind_of
from tuner.engines.server.gguf_file import GgufError, read_header
from tuner.engines.user_command import absolute_path
from tuner.errors import SettingError, reason_of
from tuner.http import HttpError, ReadLimits, fetch
from tuner.hub import cached_config
from tuner.settings.study import StudySettings
from tuner.specs import ModelRef
from tuner.workloads.spec import Suite, Workload
from tuner.workloads.traffic import Traffic

_HUB_TIMEOUT_S = 10.0
_REDIRECTS = 5
_FAMILY = re.compile(r"[a-z]{3,}")
"""The start of a model's name, such as `qwen` and `llama`."""
_LIKENESS = 0.85
"""How alike two names are at least, of 0 to 1, for one to be a misspelling of the other."""
_PATHS = ("/", "./", "../", "~")
"""The starts of a path."""
_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")


def model_of(given: StudySettings, default: str, engine: str, *, simulated: bool) -> tuple[ModelRef, ModelShape | None]:
    """Return the model of a study and its shape, as far as it is known; vLLM's `default` is the preset's.

    Raises:
        SettingError: where the engine cannot serve it.
    """
    form = kind_of(engine).model_form
    if form is ModelForm.GGUF:
        return find_gguf(given.model, given.tokenizer)
    if form is ModelForm.ANY:
        return named_model(given.model, given.tokenizer)
    find = find_simulated_model if simulated else find_model
    return find(default if given.model is None else given.model, given.tokenizer)


def find_model(name: str, tokenizer: str | None) -> tuple[ModelRef, ModelShape | None]:
    """Return the model and its shape, if its config.json is on this machine or it is a known model.

    Args:
        name: a folder, or a name on the Hugging Face hub.
        tokenizer: of the load generator; the model's own by default.

    Raises:
        SettingError: when the folder has no config.json, or the hub has no such model.
    """
    place, config = _locate("model", name)
    return ModelRef(place, absolute_path(tokenizer or place), place), _shape(config) or known_model(name)


def _locate(field: str, name: str) -> tuple[str, Path | None]:
    """Return a model's absolute folder or hub name, and its config.json if that is on this machine."""
    folder = Path(os.path.expanduser(name))
    if folder.is_dir() or name.startswith(_PATHS):
        if not (folder / "config.json").is_file():
            raise SettingError(field, name, *_other_content(folder))
        return os.fspath(folder.resolve()), folder / "config.json"
    if not _HUB_NAME.fullmatch(name):
        rule = "neither a folder nor a hub name such as Qwen/Qwen2.5-0.5B"
        raise SettingError(field, name, rule, "give a model folder or a hub name")
    config = cached_config(name)
    if config is None:
        _check_hub(field, name)
    return name, config


def _other_content(folder: Path) -> tuple[str, str]:
    """Return what is wrong with a folder without config.json, and what to do, by what it has instead."""
    gguf = next(iter(sorted(folder.glob("*.gguf"))), None)
    if gguf is not None:
        rule = "the folder has a GGUF file and no config.json"
        return rule, f"serve it with {{engine}} llama.cpp and {{model}} {gguf}, or add the original model's config.json"
    if (folder / "params.json").is_file():
        rule = "the folder has Mistral's params.json and no config.json"
        return rule, "download the model's config.json, too"
    if next(folder.glob("*/config.json"), None) is not None:
        return "the folder has no config.json, and folders in it have one", "give one of them"
    return "the folder has no config.json", "give a model folder or a hub name"


def locate_others(given: StudySettings, space: Space, *, simulated: bool) -> StudySettings:
    """Return the settings with each checkpoint and the draft model as `find_model` finds a model.

    For a simulated study, names of models that do not exist are kept: no server starts.

    Raises:
        SettingError: for one that no choice of the space takes, or that is neither a model's folder nor on the hub.
    """
    for method in given.checkpoint:
        if method not in space.checkpoints:
            rule = f"space {space.name!r} has no choice with such a checkpoint"
            raise SettingError("checkpoint", method, rule, f"it has {', '.join(space.checkpoints) or 'none'}")
    if given.draft_model is not None and not any(choice.draft_model for choice in space.choices):
        rule = f"no parameter of space {space.name!r} takes a draft model"
        raise SettingError("draft_model", given.draft_model, rule, "choose another {space}, or leave it out")
    if simulated:
        checkpoints = {method: absolute_path(name) for method, name in given.checkpoint.items()}
        draft = None if given.draft_model is None else absolute_path(given.draft_model)
    else:
        checkpoints = {method: _locate("checkpoint", name)[0] for method, name in given.checkpoint.items()}
        draft = None if given.draft_model is None else _locate("draft_model", given.draft_model)[0]
    return replace(given, checkpoint=checkpoints, draft_model=draft)


def find_gguf(name: str | None, tokenizer: str | None) -> tuple[ModelRef, ModelShape | None]:
    """Return the model of a GGUF file and its shape, as far as the file has it.

    Args:
        name: path of the file; of a split model, the first part.
        tokenizer: a GGUF file whose tokens make the prompts; the model's own by default.

    Raises:
        SettingError: without a name, and when there is no such file or it is no GGUF file.
    """
    remedy = "give a GGUF file by {model} FILE"
    if name is None:
        raise SettingError("model", None, "llama.cpp serves a GGUF file, and none is given", remedy)
    file = Path(os.path.expanduser(name))
    if not file.is_file():
        raise SettingError("model", name, "there is no such file, and llama.cpp serves a GGUF file", remedy)
    try:
        header = read_header(file)
    except GgufError as error:
        raise SettingError("model", name, f"no GGUF file: {error}", remedy) from None
    except OSError as error:
        raise SettingError("model", name, f"the file cannot be read ({reason_of(error)})", remedy) from None
    path = os.fspath(file.resolve())
    return ModelRef(path, absolute_path(tokenizer or path), path), header.shape


def named_model(name: str | None, tokenizer: str | None) -> tuple[ModelRef, ModelShape | None]:
    """Return the model that a user's command serves, and its shape if the name is a model's folder.

    Args:
        name: its name in requests.
        tokenizer: a folder, a hub name or a GGUF file; by default the model's name.

    Raises:
        SettingError: without a name.
    """
    if name is None:
        rule = "a command serves a model, and its name in requests is not given"
        raise SettingError("model", None, rule, "give the name that /v1/models lists by {model} NAME")
    config = Path(os.path.expanduser(name)) / "config.json"
    return ModelRef(name, absolute_path(tokenizer or name), name), _shape(config if config.is_file() else None)


def find_simulated_model(name: str, tokenizer: str | None) -> tuple[ModelRef, ModelShape]:
    """Return the model and its shape: a known one, a folder's, or a downloaded one. Sends no request.

    Raises:
        SettingError: when its shape is not known, with the reason why its config.json cannot be read.
    """
    try:
        place, shape = find_place_and_shape(name)
    except SpaceError as error:
        raise SettingError("model", name, f"{error}, or measure the model with {{engine}} vllm") from None
    return ModelRef(place, absolute_path(tokenizer or place), place), shape


def find_place_and_shape(name: str) -> tuple[str, ModelShape]:
    """Return a model's absolute folder or hub name, and its shape; see `find_simulated_model`.

    Raises:
        SettingError: when there is no such model on this machine, and it is not a known one.
        SpaceError: when its config.json cannot be read.
    """
    folder = Path(os.path.expanduser(name))
    if folder.is_dir() or name.startswith(_PATHS):
        place, config = _locate("model", name)
    else:
        place, config = name, cached_config(name)
        known = known_model(name)
        if known is not None:
            return place, known
    if config is None:
        raise _unknown(name)
    return place, ModelShape.from_file(config)


def _unknown(name: str) -> SettingError:
    """Return the error for a name whose model is neither in the catalogue nor on this machine."""
    wanted = name.rpartition("/")[2].lower()
    family = _FAMILY.match(wanted)
    kin = {known.rpartition("/")[2].lower(): known for known in known_models()}
    kin = {short: known for short, known in kin.items() if family and short.startswith(family[0])}
    near = [kin[short] for short in difflib.get_close_matches(wanted, kin, n=1, cutoff=_LIKENESS)]
    hint = f"did you mean {near[0]}? or give" if near else "give"
    rule = "this model is not in the catalogue of simulated models"
    return SettingError("model", name, rule, f"{hint} a folder with its config.json")


def facts_of_models(given: StudySettings) -> dict[str, Any]:
    """Return what a search space's context has of the study's checkpoints and draft model, by field."""
    return {
        "checkpoints": given.checkpoint,
        "checkpoint_shapes": checkpoint_shapes(given.checkpoint),
        "draft_model": given.draft_model,
        "draft_kind": draft_kind(given.draft_model),
    }


def checkpoint_shapes(checkpoints: Mapping[str, str]) -> dict[str, ModelShape]:
    """Return the shape of the checkpoint of each quantization method, as far as `find_model` knows it."""
    shapes = {method: _shape(_config_of(name)) or known_model(name) for method, name in checkpoints.items()}
    return {method: shape for method, shape in shapes.items() if shape is not None}


def draft_kind(name: str | None) -> str | None:
    """Return what a draft model is: `model`, `eagle3`, `eagle` or `mtp`; None without one.

    Its config.json says so if it is on this machine, and else its name, by which vLLM decides as well
    (`config/speculative.py`).
    """
    if name is None:
        return None
    file = _config_of(name)
    try:
        config = {} if file is None else read_object(file)
    except SpaceError:
        config = {}
    architectures = config.get("architectures")
    classes = " ".join(map(str, architectures)).lower() if isinstance(architectures, list) else ""
    text = f"{Path(name).name} {classes} {config.get('speculators_model_type', '')}".lower()
    if "eagle3" in text or "eagle-3" in text:
        return "eagle3"
    if "eagle" in text:
        return "eagle"
    is_mtp = str(config.get("model_type", "")).endswith("mtp") or "mtp" in classes
    return "mtp" if is_mtp else "model"


def _config_of(name: str) -> Path | None:
    """Return the config.json of a folder or of a downloaded model; None if there is none on this machine."""
    file = Path(os.path.expanduser(name)) / "config.json"
    return file if file.is_file() else cached_config(name)


def _shape(config: Path | None) -> ModelShape | None:
    """Return the shape in a config.json; None without one, and for one that cannot be read."""
    try:
        return None if config is None else ModelShape.from_file(config)
    except SpaceError:
        return None


def _check_hub(field: str, name: str) -> None:
    """Refuse a model that the hub does not have; otherwise every launch would fail on it."""
    if os.environ.get("HF_HUB_OFFLINE", "0").lower() in ("1", "true", "yes", "on"):
        rule = "the model is not downloaded and HF_HUB_OFFLINE is set"
        raise SettingError(field, name, rule, "download it, or give a model folder")
    endpoint = os.environ.get("HF_ENDPOINT", "https://huggingface.co")
    token = os.environ.get("HF_TOKEN")
    headers = {"authorization": f"Bearer {token}"} if token else {}
    try:
        url = f"{endpoint}/{name}/resolve/main/config.json"
        reply = fetch(url, ReadLimits(_HUB_TIMEOUT_S), method="HEAD", headers=headers, redirects=_REDIRECTS)
    except HttpError as error:
        rule = f"the model is not downloaded and {endpoint} cannot be reached ({error})"
        raise SettingError(field, name, rule, "download it first, or give a model folder") from None
    if reply.status in (401, 403, 404):
        rule = f"{endpoint} answers {reply.status}"
        raise SettingError(field, name, rule, "check the name, or set HF_TOKEN if the model is gated")


_OVERRIDES = ("--hf-overrides", "--json-model-override-args")
"""Flags that replace values of config.json."""


def longest_context(
    shape: ModelShape | None, engine: str, arguments: Sequence[str], version: tuple[int, ...] | None = None
) -> int | None:
    """Return the tokens of the longest request that a server accepts; None if that is not known.

    vLLM's `--max-model-len` decides where it is given: whether vLLM allows more than the model's own context depends on
    its version and environment. Another engine's flag can lengthen the context.
    """
    words = one_spelling(arguments)
    flag = kind_of(engine).context_flag
    given = whole_number(value_after(flag, words) or "") if flag in words else None
    if shape is None or any(each in words for each in _OVERRIDES):
        return given
    own = shape.longest_context(version)
    return (given if engine == VLLM else max(given, own)) if given else own


def too_long(workload: Workload, context: int) -> SettingError:
    """Return the error for a workload whose longest request exceeds the model's context, in tokens."""
    load = workload.longest_workload if isinstance(workload, Suite) else workload
    if isinstance(load, Traffic):
        name = max(load.sent_classes, key=lambda name: load.classes[name].longest())
        rule = (
            f"class {name!r} has requests of up to {load.longest_request} tokens, more than the model's context of "
            f"{context}"
        )
        return SettingError("workload", None, rule, "lower its lengths")
    rule = f"requests of {load.input_len} + {load.output_len} tokens exceed the model's context of {context}"
    return SettingError("input_len", None, rule, "lower {input_len} or {output_len}")
