"""A space resolved for one context: its parameters, dropped values with reasons, rules, and rendering."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from search_spaces.errors import SpaceError
from search_spaces.expressions.facts import Context, facts_of
from search_spaces.expressions.language import parsed
from search_spaces.expressions.names import Names
from search_spaces.memory import memory_shortfall
from search_spaces.parameter import Parameter, ParameterValue, Trial, same_value
from search_spaces.rendering.render import Rendered, render_values
from search_spaces.schema import ParameterSpec, RuleSpec

MAX_COMBINATIONS = 20_000
"""The most combinations of values that are tried one by one."""


@dataclass(frozen=True)
class Dropped:
    """A parameter, value or named configuration that a context excludes, and the reason.

    Attributes:
        parameter: a parameter, or `named:NAME` for a named configuration.
        value: the excluded value; None for the whole parameter or configuration.
        reason: a sentence for users.
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
class NamedConfig:
    """A named configuration: its values, a remark, and its source."""

    name: str
    config: Mapping[str, ParameterValue]
    note: str
    source: str


@dataclass(frozen=True)
class ResolvedSpace:
    """A space for one context.

    Attributes:
        name: the space's name.
        context: what it is resolved for.
        parameters: the offered parameters in the order in which they are suggested. A condition depends only on
            parameters before its own.
        dropped: what the context excludes, with reasons.
        named: the named configurations that are possible.
        specs: the declarations of all parameters, offered or not.
        rules: the rules across parameters.
        fixed: values that the study's own server arguments set.
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
        return parameter.when is None or parameter.active(self.names(config).lookup)

    def suggest(self, trial: Trial) -> dict[str, ParameterValue]:
        """Return the configuration that a trial suggests, without parameters whose condition does not hold."""
        config: dict[str, ParameterValue] = {}
        for parameter in self.parameters:
            if self._active(parameter, config):
                config[parameter.name] = parameter.suggest(trial)
        return config

    def suggest_fixed(self, trial: Trial, config: Mapping[str, ParameterValue]) -> None:
        """Make a trial suggest the parameters of `config`, and no others, in the space's order.

        This is for trials whose values are set beforehand: the sampler then records exactly the values that run.
        """
        for parameter in self.parameters:
            if parameter.name in config:
                parameter.suggest(trial)

    def engine_defaults(self) -> dict[str, ParameterValue]:
        """Return the engine's own defaults as a configuration, as far as they are known and in the space."""
        config: dict[str, ParameterValue] = {}
        for parameter in self.parameters:
            if not self._active(parameter, config):
                continue
            default = self.names(config).default(parameter.name)
            if parameter.contains(None):
                config[parameter.name] = None
            elif default is not None and parameter.contains(default):
                config[parameter.name] = default
        return config

    def defaults_like(self, config: Mapping[str, ParameterValue]) -> dict[str, ParameterValue]:
        """Return `engine_defaults` for a configuration of defaults; empty for one that sets a parameter."""
        return {} if config else self.engine_defaults()

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
                    f"{parameter.name} counts only when {parameter.when}; set that as well, or leave out "
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
        conditions = (parsed(p.when).names for p in self.parameters if p.when is not None)
        controllers = frozenset(name.removeprefix("effective.") for names in conditions for name in names)
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
