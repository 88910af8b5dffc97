"""The rules of a server: what a submission may ask to be started, see docs/security.md.

A study starts programs. Each setting is therefore a name from a list or a content of the submission; no setting names a
file of the server, except a model's folder below an allowed one. The rules are the same for every role.
"""

from __future__ import annotations

import difflib
import os
import re
import shlex
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from search_spaces import known_hardware, space_names
from tuner.errors import SettingError
from tuner.quality.harness import PREFIX as HARNESS
from tuner.service.asked.allowed import check_variable, check_words
from tuner.settings.fleet import SizeSettings
from tuner.settings.study import StudySettings
from tuner.workloads.presets import preset_names

HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}", re.ASCII)
"""A model of a hub: `owner/name`."""

REFERENCE = re.compile(r"\$\{([^}]*)\}")

_CONFIGURATION = re.compile(r"[A-Za-z0-9][\w.+-]{0,99}", re.ASCII)
_TASKS = re.compile(rf"{re.escape(HARNESS)}[A-Za-z0-9_-]+(,[A-Za-z0-9_-]+)*", re.ASCII)
_VERSION = re.compile(r"[0-9][0-9.]{0,20}", re.ASCII)


@dataclass(frozen=True)
class ServerRules:
    """What a server adds to the lists of what submissions may ask.

    Attributes:
        model_folders: folders below which a model may lie.
        hub_models: whether models may be names of a hub.
        flags: flags of the engine beside the list in `tuner.service.asked.allowed`, with every value.
        variables: variables of the engine beside that list, with every value.
        secrets: names of the service's own variables that `${NAME}` may refer to.
        confirms: whether servers for a load may be measured: on this machine's GPUs, not on a cluster's.
    """

    model_folders: tuple[Path, ...] = ()
    hub_models: bool = True
    flags: frozenset[str] = frozenset()
    variables: frozenset[str] = frozenset()
    secrets: frozenset[str] = frozenset()
    confirms: bool = True


def check_rules(settings: StudySettings, rules: ServerRules) -> None:
    """Refuse settings that this server does not allow. What a search space writes is checked by `allowed.check_space`.

    Raises:
        SettingError: with the first setting that breaks a rule.
    """
    for name in ("model", "tokenizer"):
        _check_model(name, getattr(settings, name), rules)
    _check_names(settings)
    if isinstance(settings, SizeSettings):
        _check_fleet(settings, rules)
    check_words("server_arguments", settings.server_arguments, rules.flags)
    if settings.baseline is not None and _are_flags(settings.baseline):
        check_words("baseline", words_of(settings.baseline), rules.flags)
    for variable, value in settings.env.items():
        _check_references("env", value, rules)
        check_variable("env", variable, value, rules.variables)
    for argument in settings.server_arguments:
        _check_references("server_arguments", argument, rules)


def _check_model(name: str, value: str | None, rules: ServerRules) -> None:
    """Refuse a model that is neither a hub's nor below an allowed folder."""
    if value is None or (rules.hub_models and HUB_NAME.fullmatch(value)):
        return
    path = Path(os.path.realpath(value)) if "\0" not in value else Path()
    if Path(value).is_absolute() and any(path.is_relative_to(os.path.realpath(each)) for each in rules.model_folders):
        return
    kinds = [*(["a hub name such as Qwen/Qwen2.5-0.5B"] if rules.hub_models else [])]
    kinds += [f"a folder below {folder}" for folder in rules.model_folders]
    raise SettingError(name, value, "this server does not allow the model", f"give {' or '.join(kinds) or 'none'}")


def _check_names(settings: StudySettings) -> None:
    """Refuse a value that is no name from its list, where it is no content either; no file is looked for."""
    _check_listed("preset", settings.preset, preset_names())
    _check_listed("gpu", settings.gpu, known_hardware())
    if not _is_content(settings.space):
        _check_listed("space", settings.space, space_names())
    task, version, baseline = settings.quality_task, settings.vllm_version, settings.baseline
    if task is not None and not _is_content(task) and not _TASKS.fullmatch(task):
        remedy = f"give {HARNESS}NAME, with letters, digits, _ and -, or send the file's content"
        raise SettingError("quality_task", task, "neither the name of a task nor lines of questions", remedy)
    if version is not None and not _VERSION.fullmatch(version):
        raise SettingError("vllm_version", version, "no version of vLLM", "give for example 0.25.1")
    for field_name, text in [*(("enqueue", each) for each in settings.enqueue), ("baseline", baseline)]:
        if text is None or _CONFIGURATION.fullmatch(text) or text.lstrip().startswith("{"):
            continue
        if field_name == "enqueue" or not _are_flags(text):
            rule = "neither the name of a configuration nor one as JSON"
            raise SettingError(field_name, text, rule, 'give a name, or for example {"max_num_seqs": 64}')


def _check_fleet(settings: SizeSettings, rules: ServerRules) -> None:
    """Refuse a card that is no name from the list, and measurements that this server cannot do."""
    for field_name, names in (("card", settings.card), ("card_price", settings.card_price)):
        for each in names:
            _check_listed(field_name, each, known_hardware())
    if settings.confirm and not rules.confirms:
        rule = "this server's GPUs are a cluster's, where servers for a load are not measured"
        raise SettingError("confirm", settings.confirm, rule, "leave it out")


def _check_listed(name: str, value: str | None, known: Collection[str]) -> None:
    if value is None or value in known:
        return
    near = difflib.get_close_matches(value, known, n=1)
    hint = f"did you mean {near[0]}?" if near else f"give one of {', '.join(sorted(known))}"
    raise SettingError(name, value, "this server has none of that name", hint)


def _is_content(value: str | None) -> bool:
    return value is not None and "\n" in value


def _are_flags(text: str) -> bool:
    return text.lstrip().startswith("-")


def words_of(flags: str) -> tuple[str, ...]:
    """Return the words of a command line.

    Raises:
        SettingError: about the baseline, for an open quote.
    """
    try:
        return tuple(shlex.split(flags))
    except ValueError as error:
        raise SettingError("baseline", flags[:100], f"not a command line: {error}") from None


def _check_references(name: str, text: str, rules: ServerRules) -> None:
    """Refuse a reference to a variable that is not one of the server's secrets for studies."""
    for match in REFERENCE.finditer(text):
        if match[1] not in rules.secrets:
            allowed = ", ".join(sorted(rules.secrets)) or "none"
            rule = f"the server has no such secret; secrets: {allowed}"
            raise SettingError(name, match[0], rule, "ask an admin of the server")
