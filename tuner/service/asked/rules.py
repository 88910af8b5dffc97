"""The rules of a server: what a submission may ask to be started, see docs/service.md.

A study starts programs. Executables, models, raw arguments and the environment of servers are therefore the server's to
allow; a submission never names a file of the server, except a model's folder below an allowed one.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from search_spaces.yaml_file import YamlError, parse_yaml
from tuner.errors import SettingError
from tuner.use_cases.keywords import Keywords

HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}")
"""A model of a hub: `owner/name`."""

FORBIDDEN_FLAGS = ("trust-remote-code", "config", "hf-overrides", "worker-cls", "worker-extension-cls", "middleware")
"""Flags that load code, or files of the server, by their names without dashes in front; also their short forms."""

REFERENCE = re.compile(r"\$\{([^}]*)\}")


@dataclass(frozen=True)
class ServerRules:
    """What plain users may ask; admins may ask everything but what `FORBIDDEN_FLAGS` lists.

    Attributes:
        model_folders: folders below which a model may lie.
        hub_models: whether models may be names of a hub.
        arguments: whether raw flags of the server are allowed.
        variables: names of environment variables that may be set for the server.
        secrets: names of the service's own variables that `${NAME}` may refer to.
    """

    model_folders: tuple[Path, ...] = ()
    hub_models: bool = True
    arguments: bool = False
    variables: frozenset[str] = field(default_factory=frozenset)
    secrets: frozenset[str] = field(default_factory=frozenset)


def check_rules(keywords: Keywords, rules: ServerRules, *, admin: bool) -> None:
    """Refuse what this server does not allow.

    Raises:
        SettingError: with the first setting that breaks a rule.
    """
    for name in ("model", "tokenizer"):
        _check_model(name, getattr(keywords, name), rules)
    for name in ("space", "quality_task", "gpu", "baseline"):
        _check_no_path(name, getattr(keywords, name))
    _check_arguments("server_arguments", keywords.server_arguments, rules, admin=admin)
    if keywords.baseline is not None and keywords.baseline.lstrip().startswith("-"):
        _check_arguments("baseline", words_of(keywords.baseline), rules, admin=admin)
    _check_own_space(keywords.space, rules, admin=admin)
    for variable, value in keywords.env.items():
        if not admin and variable not in rules.variables:
            allowed = ", ".join(sorted(rules.variables)) or "none"
            rule = f"this server does not allow the variable; allowed: {allowed}"
            raise SettingError("env", variable, rule, "ask an admin of the server")
        _check_references("env", value, rules)
    for argument in keywords.server_arguments:
        _check_references("server_arguments", argument, rules)


def _check_model(name: str, value: str | None, rules: ServerRules) -> None:
    """Refuse a model that is neither a hub's nor below an allowed folder."""
    if value is None or (rules.hub_models and HUB_NAME.fullmatch(value) and not Path(value).exists()):
        return
    path = Path(os.path.realpath(value))
    if Path(value).is_absolute() and any(path.is_relative_to(os.path.realpath(each)) for each in rules.model_folders):
        return
    kinds = [*(["a hub name such as Qwen/Qwen2.5-0.5B"] if rules.hub_models else [])]
    kinds += [f"a folder below {folder}" for folder in rules.model_folders]
    raise SettingError(name, value, "this server does not allow the model", f"give {' or '.join(kinds) or 'none'}")


def _check_no_path(name: str, value: str | None) -> None:
    """Refuse a name that is a path: it would be a file of the server."""
    if value is None or "\n" in value or value.startswith(("{", "-", "lm-eval:")):
        return
    if "/" in value or "\\" in value or value.startswith(".") or value.endswith((".yaml", ".yml", ".jsonl", ".json")):
        rule = "a path would be one of the server"
        raise SettingError(name, value, rule, "give a name, or send the file's content")


def words_of(flags: str) -> tuple[str, ...]:
    """Return the words of a command line.

    Raises:
        SettingError: about the baseline, for an open quote.
    """
    try:
        return tuple(shlex.split(flags))
    except ValueError as error:
        raise SettingError("baseline", flags[:100], f"not a command line: {error}") from None


def _check_own_space(space: str | None, rules: ServerRules, *, admin: bool) -> None:
    """Refuse a search space of the user's own where raw flags are not allowed: it can declare any flag."""
    if space is None or "\n" not in space:
        return
    if not (rules.arguments or admin):
        rule = "this server allows only shipped search spaces, because one of your own can declare any flag"
        raise SettingError("space", None, f"space: {rule}", "give the name of one, or ask an admin of the server")
    try:
        document = parse_yaml(space.encode(), Path("space")).data
    except YamlError as error:
        raise SettingError("space", None, f"space: {error}") from None
    words = tuple(word for text in _texts(document) for word in text.split())
    _check_arguments("space", words, rules, admin=admin)


def _texts(value: object) -> Iterator[str]:
    """Yield every text of a document, keys included."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, each in value.items():
            yield from _texts(key)
            yield from _texts(each)
    elif isinstance(value, list):
        for each in value:
            yield from _texts(each)


def _check_arguments(name: str, arguments: tuple[str, ...], rules: ServerRules, *, admin: bool) -> None:
    """Refuse raw flags where they are not allowed, and flags that load code for everybody."""
    if arguments and not (rules.arguments or admin):
        rule = "this server does not allow raw flags"
        raise SettingError(name, arguments[0], rule, "leave them out, or ask an admin of the server")
    for argument in arguments:
        flag = argument.lstrip("-").partition("=")[0].partition(".")[0].replace("_", "-").lower()
        if argument.startswith("-") and any(_is_short_form(flag, each) for each in FORBIDDEN_FLAGS):
            rule = "the flag loads code or files of the server"
            raise SettingError(name, argument, rule, "leave it out")


def _is_short_form(flag: str, name: str) -> bool:
    """Return whether a command line would take `flag` for `name`: argparse accepts unambiguous beginnings."""
    return bool(flag) and (name == flag or (len(flag) >= 3 and name.startswith(flag)))


def _check_references(name: str, text: str, rules: ServerRules) -> None:
    """Refuse a reference to a variable that is not one of the server's secrets for studies."""
    for match in REFERENCE.finditer(text):
        if match[1] not in rules.secrets:
            allowed = ", ".join(sorted(rules.secrets)) or "none"
            rule = f"the server has no such secret; secrets: {allowed}"
            raise SettingError(name, match[0], rule, "ask an admin of the server")
