"""Several resolved spaces as one: the parameter `engine` opens the parameters of its engine.

A parameter of an engine is called `ENGINE.NAME`, such as `llama.cpp.threads`. Conditions, rules and defaults keep the
names of their own space, which answers for a configuration without the prefix.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from search_spaces.errors import SpaceError
from search_spaces.parameter import Names, Parameter, ParameterValue, full_choices
from search_spaces.render import Rendered
from search_spaces.resolved import ResolvedSpace, Violation
from search_spaces.schema import ParameterSpec

ENGINE = "engine"
"""The parameter that chooses the engine."""

Config = Mapping[str, ParameterValue]


@dataclass(frozen=True)
class JoinedSpace(ResolvedSpace):
    """A space of several engines, the default engine first in `parts`; see `ResolvedSpace`.

    A configuration without `engine` is one of the first engine. `context` is the first engine's.
    """

    parts: Mapping[str, ResolvedSpace]

    @property
    def default(self) -> str:
        """The engine of a configuration that names none."""
        return next(iter(self.parts))

    @cached_property
    def _owners(self) -> dict[str, tuple[str, Parameter]]:
        """The engine and its own parameter, by the name in this space."""
        return {
            f"{engine}.{each.name}": (engine, each) for engine, part in self.parts.items() for each in part.parameters
        }

    def engine_of(self, config: Config) -> str:
        """Return the engine of a configuration.

        Raises:
            SpaceError: if the study does not have it.
        """
        engine = config.get(ENGINE) or self.default
        if engine not in self.parts:
            raise SpaceError(f"{ENGINE} cannot be {engine!r}; it takes {', '.join(self.parts)}")
        return str(engine)

    def own(self, config: Config) -> dict[str, ParameterValue]:
        """Return a configuration as the space of its engine has it, without the parameters of other engines.

        Raises:
            SpaceError: for a name that no engine's parameter can have.
        """
        engine, found = self.engine_of(config), {}
        for name, value in config.items():
            owner = self._owner(name)
            if owner == engine:
                found[name.removeprefix(f"{engine}.")] = value
        return found

    def _owner(self, name: str) -> str | None:
        """Return the engine of a parameter; None for `engine` itself."""
        owner = next((each for each in self.parts if name.startswith(f"{each}.")), None)
        if owner is None and name != ENGINE:
            rule = f"space {self.name!r} has no parameter {name!r}"
            raise SpaceError(f"{rule}; it has {ENGINE}, and those of {', '.join(self.parts)} as ENGINE.NAME")
        return owner

    @staticmethod
    def lift(engine: str, config: Config) -> dict[str, ParameterValue]:
        """Return a configuration of an engine's own space as one of this space."""
        return {ENGINE: engine, **{f"{engine}.{name}": value for name, value in config.items()}}

    @cached_property
    def recipes(self) -> dict[str, str | None]:
        """The recipes of every engine by their names in `named`, the default engine's first."""
        names = (name for name, each in self.named.items() if each.when is not None)
        reasons = (reason for part in self.parts.values() for reason in part.recipes.values())
        return dict(zip(names, reasons, strict=True))

    def names(self, config: Config) -> Names:
        return self.parts[self.engine_of(config)].names(self.own(config))

    def _active(self, parameter: Parameter, config: Config) -> bool:
        if parameter.name == ENGINE:
            return True
        engine, own = self._owners[parameter.name]
        return engine == self.engine_of(config) and self.parts[engine]._active(own, self.own(config))

    def defaults_beside(self, config: Config) -> dict[str, ParameterValue]:
        """Return the values of the configuration's engine for the parameters that it leaves out."""
        engine = self.engine_of(config)
        lifted = self.lift(engine, self.parts[engine].defaults_beside(self.own(config)))
        return {name: value for name, value in lifted.items() if name not in config}

    def known_defaults(self) -> dict[str, ParameterValue]:
        """Return the default of each parameter of every engine, as far as it is known."""
        known: dict[str, ParameterValue] = {ENGINE: self.default}
        for engine, part in self.parts.items():
            known |= {f"{engine}.{name}": value for name, value in part.known_defaults().items()}
        return known

    def render(self, config: Config) -> Rendered:
        engine = self.engine_of(config)
        return replace(self.parts[engine].render(self.own(config)), engine=engine)

    def violations(self, config: Config) -> list[Violation]:
        return self.parts[self.engine_of(config)].violations(self.own(config))

    def complete(self, config: Config) -> dict[str, ParameterValue]:
        """Return a configuration in the space's order, after a check; see `ResolvedSpace.complete`.

        Raises:
            SpaceError: as there, and for a parameter of another engine.
        """
        engine = self.engine_of(config)
        other = next((name for name in config if self._owner(name) not in (None, engine)), None)
        if other is not None:
            raise SpaceError(f"{other} counts only with its own {ENGINE}, and the configuration has {engine}")
        completed = self.lift(engine, self.parts[engine].complete(self.own(config)))
        return completed if ENGINE in config else {name: completed[name] for name in completed if name != ENGINE}

    def changed(self, config: Config) -> list[str]:
        """Return the parameters with another value than the default of the configuration's engine, without `engine`."""
        engine = self.engine_of(config)
        return [f"{engine}.{name}" for name in self.parts[engine].changed(self.own(config))]

    def is_reference(self, config: Config) -> bool:
        """Return whether a configuration is the defaults of the default engine."""
        return self.engine_of(config) == self.default and not self.changed(config)

    def same_server(self, one: Config, other: Config) -> bool:
        """Return whether two configurations give the same server of the same engine."""
        engine = self.engine_of(one)
        if engine != self.engine_of(other):
            return False
        return self.parts[engine].same_server(self.own(one), self.own(other))

    def _rules_of_offered(self) -> dict[str, str]:
        parts = self.parts.items()
        return {f"{engine}.{name}": rule for engine, part in parts for name, rule in part._rules_of_offered().items()}

    def cardinality(self) -> int | None:
        """Return the sum over the engines; None if that of one is not known."""
        sizes = [part.cardinality() for part in self.parts.values()]
        known = [size for size in sizes if size is not None]
        return sum(known) if len(known) == len(sizes) else None


def join(parts: Mapping[str, ResolvedSpace]) -> JoinedSpace:
    """Return the spaces of engines by their names, the default engine first, as one."""
    first = next(iter(parts.values()))
    named = {}
    for engine, part in parts.items():
        for name, each in part.named.items():
            full = name if part is first else f"{engine}={name}"
            named[full] = each.model_copy(update={"config": JoinedSpace.lift(engine, each.config)})
    engines = {"description": "The engine that serves the model.", "type": "categorical", "choices": [*parts]}
    spec = ParameterSpec.model_validate(engines)
    own = (
        Parameter(f"{engine}.{each.name}", each.spec, each.choices)
        for engine, part in parts.items()
        for each in part.parameters
    )
    return JoinedSpace(
        name=" + ".join(dict.fromkeys(part.name for part in parts.values())),
        context=first.context,
        parameters=(Parameter(ENGINE, spec, full_choices(spec)), *own),
        dropped=tuple(
            replace(each, parameter=f"{engine}.{each.parameter}")
            for engine, part in parts.items()
            for each in part.dropped
        ),
        named=named,
        specs={},
        rules=(),
        fixed={},
        parts=dict(parts),
    )
