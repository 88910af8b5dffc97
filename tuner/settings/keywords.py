"""Functions whose keywords are the settings of a model."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any, Concatenate, ParamSpec, TypeVar

from tuner.errors import spelled
from tuner.settings.declared import default_of, settings_of

_Keywords = ParamSpec("_Keywords")
_Result = TypeVar("_Result")


def takes(model: Callable[_Keywords, Any]) -> Callable[[Callable[..., _Result]], Callable[_Keywords, _Result]]:
    """Give a function, which takes `**given`, the keywords of a model: for type checkers, editors and `help()`."""

    def decorate(function: Callable[..., _Result]) -> Callable[_Keywords, _Result]:
        _describe(function, model)
        return function

    return decorate


def method_takes(
    model: Callable[_Keywords, Any],
) -> Callable[[Callable[..., _Result]], Callable[Concatenate[Any, _Keywords], _Result]]:
    """Give a method, which takes `**given`, the keywords of a model."""
    return takes(model)  # the same, typed with the method's `self`


def _describe(function: Any, model: Any) -> None:
    """Write the signature of a function and the `Args` of its docstring, by panel."""
    own = inspect.signature(function)
    defaults: Mapping[str, Any] = {each.name: default_of(each) for each in fields(model)}
    declared = settings_of(model).items()
    keywords = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=defaults[name], annotation=kind)
        for name, (kind, _) in declared
    ]
    first = [each for each in own.parameters.values() if each.kind is not inspect.Parameter.VAR_KEYWORD]
    function.__signature__ = own.replace(parameters=[*first, *keywords])
    lines = [
        f"    {name}: {spelled(each.help, lambda other: f'`{other}`')}{_default(each.shown)}"
        for name, (_, each) in declared
    ]
    function.__doc__ = "\n".join([inspect.getdoc(function) or "", "", "Args:", *lines])


def _default(shown: str | None) -> str:
    return "" if shown is None else f" By default: {shown}."
