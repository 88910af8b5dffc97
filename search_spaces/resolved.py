"""A search space in one context: its configurations, what they mean, and the rules that they break."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from search_spaces.errors import SpaceError
from search_spaces.expressions import Context, facts_of, parsed
from search_spaces.memory import memory_shortfall
from search_spaces.parameter import EFFECTIVE, Names, Parameter, ParameterValue, Trial, same_value
from search_spaces.render import Rendered, render_values
from search_spaces.schema import NamedConfig, ParameterSpec, RuleSpec

MAX_COMBINATIONS = 20_000
"""The most combinations of values that are tried one by one."""


@dataclass(frozen=True)
class Dropped:
    """A parameter, value or named configuration (`named:NAME`) that a context excludes, and the reason, for users.

    `value` is None for the whole parameter or configuration.
    """

    parameter: str
    value: ParameterValue
    reason: str


@dataclass(frozen=True)
class Violation:
    """A rule that a configuration breaks (`memory` for the memory estimate), and the reason for users."""

    rule: str
    message: str


@dataclass(frozen=True)
class ResolvedSpace:
    """A space for one context.

    `parameters` are offered, in the order in which they are suggested: a condition depends only on parameters before
    its own. `dropped` is what the context excludes, `named` what it leaves of the named configurations, and `specs`
    declares all parameters, offered or not. `fixed` has the values that the study's own server arguments set.
    """

    name: str
    context: Context
    parameters: tuple[Parameter, ...]
    dropped: tuple[Dropped, ...]
    named: Mapping[str, NamedConfig]
    specs: Mapping[str, ParameterSpec]
    rules: tuple[RuleSpec, ...]
    fixed: Mapping[str, object]

    def names(self, config: Mapping[str, ParameterValue]) -> Names:
        """Return the values of all names in expressions for a configuration."""
        return Names(self.specs, self._facts, self.fixed, config)

    @cached_property
    def _facts(self) -> dict[str, object]:
        return facts_of(self.context)

    def _active(self, parameter: Parameter, config: Mapping[str, ParameterValue]) -> bool:
        return parameter.spec.when is None or parameter.active(self.names(config).lookup)

    @cached_property
    def recipes(self) -> dict[str, str | None]:
        """The named configurations with a condition, in order, each with the reason why it is not tried (None: it is).

        One is tried if its condition holds, the space offers its values, and it breaks no rule.
        """
        return {name: self._no_recipe(each) for name, each in self.named.items() if each.when is not None}

    def _no_recipe(self, recipe: NamedConfig) -> str | None:
        assert recipe.when is not None
        if parsed(recipe.when).holds(self.names({}).lookup) is not True:
            return f"it is tried only when {recipe.when}"
        try:
            self.complete(recipe.config)
        except SpaceError as error:
            return str(error)
        if self.is_reference(recipe.config):
            return "these are the engine's defaults"
        return next((each.message for each in self.violations(recipe.config)), None)

    def suggest(self, trial: Trial) -> dict[str, ParameterValue]:
        """Return the configuration that a trial suggests, without parameters whose condition does not hold.

        A value that is the engine's default is left out, so that no flag says it.
        """
        config: dict[str, ParameterValue] = {}
        for parameter in self.parameters:
            if self._active(parameter, config):
                config[parameter.name] = parameter.suggest(trial)
        return self._without_defaults(config)

    def configurations(self) -> Iterator[dict[str, ParameterValue]]:
        """Yield every configuration that `suggest` may return, the last parameter varying fastest.

        Raises:
            ValueError: if a parameter is continuous.
        """
        return self._extended(0, {})

    def _extended(self, index: int, config: dict[str, ParameterValue]) -> Iterator[dict[str, ParameterValue]]:
        """Yield what the parameters from `index` on make of a configuration."""
        if index == len(self.parameters):
            yield self._without_defaults(config)
            return
        parameter = self.parameters[index]
        if not self._active(parameter, config):
            yield from self._extended(index + 1, config)
            return
        for value in parameter.listed():
            yield from self._extended(index + 1, {**config, parameter.name: value})

    def _without_defaults(self, config: Mapping[str, ParameterValue]) -> dict[str, ParameterValue]:
        return {name: value for name, value in config.items() if value is None or not self._is_default(name, config)}

    def _is_default(self, name: str, config: Mapping[str, ParameterValue]) -> bool:
        """Return whether a configuration is the same without a parameter: it has the engine's default.

        A condition may ask whether the parameter is given at all, and then its default stays.
        """
        others = {other: value for other, value in config.items() if other != name}
        names = self.names(others)
        if not same_value(config[name], names.default(name)):
            return False
        return all(
            other.active(names.lookup) for other in self._read_in_conditions.get(name, ()) if other.name in others
        )

    @cached_property
    def _read_in_conditions(self) -> dict[str, list[Parameter]]:
        """The parameters whose condition reads another one's given value, by that one's name."""
        read: dict[str, list[Parameter]] = {}
        for parameter in self.parameters:
            for name in () if parameter.spec.when is None else parsed(parameter.spec.when).names:
                read.setdefault(name, []).append(parameter)
        return read

    def suggest_fixed(self, trial: Trial, config: Mapping[str, ParameterValue]) -> None:
        """Make a trial suggest the parameters of `config`, and no others, in the space's order.

        This is for trials whose values are set beforehand: the sampler then records exactly the values that run.
        """
        for parameter in self.parameters:
            if parameter.name in config:
                parameter.suggest(trial)

    def choices(self) -> dict[str, list[ParameterValue]]:
        """Return the offered values of each parameter that has no range."""
        return {each.name: list(each.values) for each in self.parameters if each.choices}

    def engine_defaults(self) -> dict[str, ParameterValue]:
        """Return the engine's own defaults as a configuration, as far as they are known and in the space."""
        return self.defaults_beside({})

    def defaults_beside(self, config: Mapping[str, ParameterValue]) -> dict[str, ParameterValue]:
        """Return the engine's values of the parameters that a configuration leaves out, as `engine_defaults` does."""
        known, defaults = dict(config), dict[str, ParameterValue]()
        for parameter in self.parameters:
            if parameter.name in config or not self._active(parameter, known):
                continue
            default = self.names(known).default(parameter.name)
            if parameter.contains(None):
                defaults[parameter.name] = known[parameter.name] = None
            elif default is not None and parameter.contains(default):
                defaults[parameter.name] = known[parameter.name] = default
        return defaults

    def known_defaults(self) -> dict[str, ParameterValue]:
        """Return the engine's default of each parameter, as far as it is known, whether or not the parameter counts.

        Unlike `engine_defaults`, the result is not a configuration; a configuration can be compared with it.
        """
        names = self.names({})
        defaults = {parameter.name: names.default(parameter.name) for parameter in self.parameters}
        return {name: value for name, value in defaults.items() if value is not None}

    def render(self, config: Mapping[str, ParameterValue]) -> Rendered:
        """Return the flags, environment and checkpoint of a configuration; the empty one renders to nothing.

        Parameters whose condition does not hold are left out.

        Raises:
            SpaceError: if a name or a value is not in the space.
        """
        self._check_names(config)
        names = self.names(config)
        chosen = [
            (parameter, config[parameter.name])
            for parameter in self.parameters
            if config.get(parameter.name) is not None and parameter.active(names.lookup)
        ]
        for parameter, value in chosen:
            self._check_value(parameter, value)
        return render_values(chosen, names, self.context)

    def violations(self, config: Mapping[str, ParameterValue]) -> list[Violation]:
        """Return the rules that a configuration breaks, including the memory estimate; unknown facts break no rule."""
        names = self.names(config)
        violations = [
            Violation(rule.name, names.fill(rule.why))
            for rule in self.rules
            if parsed(rule.forbid).holds(names.lookup) is True
        ]
        shortfall = memory_shortfall(self.context, names, self.specs)
        return violations if shortfall is None else [*violations, Violation("memory", shortfall)]

    def complete(self, config: Mapping[str, ParameterValue]) -> dict[str, ParameterValue]:
        """Return a configuration in the space's order, after a check of its names, values and conditions.

        Raises:
            SpaceError: if a name or a value is not in the space, or a parameter's condition does not hold.
        """
        self._check_names(config)
        ordered: dict[str, ParameterValue] = {}
        for parameter in self.parameters:
            if parameter.name in config:
                self._check_value(parameter, config[parameter.name])
                ordered[parameter.name] = config[parameter.name]
        for parameter in self.parameters:
            if parameter.name in ordered and not self._active(parameter, ordered):
                raise SpaceError(
                    f"{parameter.name} counts only when {parameter.spec.when}; set that as well, or leave out "
                    f"{parameter.name}"
                )
        return ordered

    def changed(self, config: Mapping[str, ParameterValue]) -> list[str]:
        """Return the names of the parameters that a configuration sets to another value than the engine's default."""
        defaults, known = self.engine_defaults(), self.known_defaults()
        others = {p.name: known.get(p.name) for p in self.parameters if p.name not in defaults and not p.contains(None)}
        defaults |= {name: value for name, value in others.items() if value is not None}
        return [name for name, value in config.items() if value is not None and defaults.get(name) != value]

    def is_reference(self, config: Mapping[str, ParameterValue]) -> bool:
        """Return whether a configuration is that which all scores are relative to: the engine's defaults."""
        return not self.changed(config)

    def same_server(self, one: Mapping[str, ParameterValue], other: Mapping[str, ParameterValue]) -> bool:
        """Return whether two configurations give the same server, named defaults or not.

        A named value differs from a default that is unknown.
        """
        return self.render(one) == self.render(other) or self._effective(one) == self._effective(other)

    def _effective(self, config: Mapping[str, ParameterValue]) -> dict[str, object]:
        names = self.names(config)
        return {p.name: names.effective(p.name) for p in self.parameters if self._active(p, config)}

    def without(self, config: Mapping[str, ParameterValue], name: str) -> dict[str, ParameterValue]:
        """Return a configuration with one parameter reset to its default, without those that then no longer count."""
        remaining: dict[str, ParameterValue] = {}
        for parameter in self.parameters:
            if parameter.name in config and parameter.name != name and self._active(parameter, remaining):
                remaining[parameter.name] = config[parameter.name]
        return remaining

    def to_dict(self) -> dict[str, Any]:
        """Return the offered parameters and the rules about them as plain JSON, without named configurations.

        A study stores this to detect that its space has changed.
        """
        offered = {
            each.name: _meaning(each.spec.model_dump(mode="json", by_alias=True, exclude_defaults=True))
            for each in self.parameters
        }
        return {"name": self.name, "parameters": offered, "rules": self._rules_of_offered()}

    def _rules_of_offered(self) -> dict[str, str]:
        offered = {parameter.name for parameter in self.parameters}
        return {rule.name: rule.forbid for rule in self.rules if parents_of(rule.forbid) & offered}

    def contains(self, config: Mapping[str, ParameterValue]) -> bool:
        """Return whether `complete` accepts the configuration."""
        try:
            self.complete(config)
        except SpaceError:
            return False
        return True

    def cardinality(self) -> int | None:
        """Return the number of configurations, with respect to conditions.

        Returns:
            The number; None if a parameter is continuous, or if the parameters in conditions have more than 20,000
            combinations of values.
        """
        conditions = (parsed(p.spec.when).names for p in self.parameters if p.spec.when is not None)
        controllers = frozenset(name.removeprefix(EFFECTIVE) for names in conditions for name in names)
        sizes = {parameter.name: parameter.size() for parameter in self.parameters}
        if None in sizes.values():
            return None
        if math.prod(size or 1 for name, size in sizes.items() if name in controllers) > MAX_COMBINATIONS:
            return None
        return self._count(0, {}, controllers)

    def _count(self, index: int, config: dict[str, ParameterValue], controllers: frozenset[str]) -> int:
        if index == len(self.parameters):
            return 1
        parameter = self.parameters[index]
        if not self._active(parameter, config):
            return self._count(index + 1, config, controllers)
        if parameter.name not in controllers:
            return (parameter.size() or 0) * self._count(index + 1, config, controllers)
        return sum(
            self._count(index + 1, {**config, parameter.name: value}, controllers) for value in parameter.listed()
        )

    def _check_names(self, config: Mapping[str, ParameterValue]) -> None:
        offered = {parameter.name for parameter in self.parameters}
        for name, value in config.items():
            if name in offered:
                continue
            reason = self._reason(name, value) or self._reason(name, None)
            if reason is not None:
                raise SpaceError(f"{name} is not offered here: {reason}; leave it out")
            raise SpaceError(f"space {self.name!r} has no parameter {name!r}; it has {', '.join(sorted(offered))}")

    def _check_value(self, parameter: Parameter, value: ParameterValue) -> None:
        if parameter.contains(value):
            return
        reason = self._reason(parameter.name, value)
        because = "" if reason is None else f": {reason}"
        raise SpaceError(f"{parameter.name} cannot be {value!r}{because}; it takes {parameter.domain}")

    def _reason(self, name: str, value: ParameterValue) -> str | None:
        return next((d.reason for d in self.dropped if d.parameter == name and same_value(d.value, value)), None)


_NO_MEANING = ("description", "note", "why", "on_request", "requires", "matters", "changes_stream")
"""Keys of a declaration for readers, and those that decide whether a parameter is offered, not what it means."""


def parents_of(when: str | None) -> set[str]:
    """Return the names of the parameters that an expression refers to."""
    return set() if when is None else {name.removeprefix(EFFECTIVE) for name in parsed(when).names}


def _meaning(dump: Any) -> Any:
    """Return a declaration as plain JSON without the keys of `_NO_MEANING`."""
    if isinstance(dump, dict):
        return {key: _meaning(value) for key, value in dump.items() if key not in _NO_MEANING}
    return [_meaning(item) for item in dump] if isinstance(dump, list | tuple) else dump
