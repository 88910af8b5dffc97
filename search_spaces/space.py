"""A declared search space, and its resolution for one context."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import product
from typing import Any

from search_spaces.base_argv import fixed_values
from search_spaces.errors import SpaceError
from search_spaces.expressions import parsed
from search_spaces.facts import Context, facts_of
from search_spaces.hardware import HardwareProfile
from search_spaces.names import Names
from search_spaces.parameter import Parameter, ParameterValue, full_choices
from search_spaces.render import CAPTURE_SIZES_FLAG
from search_spaces.resolved import Dropped, NamedConfig, ResolvedSpace
from search_spaces.schema import ChoiceSpec, NamedSpec, ParameterSpec, Requirement, RuleSpec

_PROSE = ("description", "note", "why")


class Space:
    """A search space as its YAML declares it. `load_space` makes one."""

    def __init__(
        self,
        name: str,
        description: str,
        parameters: Mapping[str, ParameterSpec],
        rules: tuple[RuleSpec, ...],
        named: Mapping[str, NamedSpec],
    ) -> None:
        self.name = name
        self.description = description
        self._parameters = dict(parameters)
        self._rules = rules
        self._named = {key: NamedConfig(key, dict(spec.config), spec.note, spec.source) for key, spec in named.items()}

    @property
    def parameter_names(self) -> tuple[str, ...]:
        """Every declared parameter, in order."""
        return tuple(self._parameters)

    def to_dict(self) -> dict[str, Any]:
        """Return what the space offers as plain JSON; prose and named configurations, which offer nothing, left out."""
        parameters = {
            name: _without_prose(spec.model_dump(mode="json", by_alias=True, exclude_defaults=True))
            for name, spec in self._parameters.items()
        }
        rules = {rule.name: rule.forbid for rule in self._rules}
        plain: dict[str, Any] = json.loads(json.dumps({"name": self.name, "parameters": parameters, "rules": rules}))
        return plain

    def resolve(
        self, context: Context, keep_answers: bool = False, only: Collection[str] | None = None
    ) -> ResolvedSpace:
        """Return the space for one context: without what its hardware, engine or packages rule out.

        `keep_answers` leaves out parameters that change the model's answers, `only` all but the named ones.

        Raises:
            SpaceError: if `only` names a parameter that the space does not have, or one that can never count without
                others.
        """
        fixed = fixed_values(self._parameters, context.base_argv)
        names = Names(self._parameters, facts_of(context), fixed, {})
        if only is not None:
            self._check_only(only, names)
        parameters: list[Parameter] = []
        dropped: list[Dropped] = []
        for name, spec in self._parameters.items():
            if only is not None and name not in only:
                continue
            reason = _parameter_reason(spec, context, names, keep_answers, name in fixed)
            if reason is not None:
                dropped.append(Dropped(name, None, reason))
                continue
            parameter, losses = _left_over(name, spec, context, names)
            dropped.extend(losses)
            if parameter is None:
                continue
            if only is None and not self._can_count(parameter, parameters, context, fixed):
                dropped.append(Dropped(name, None, f"it only counts when {spec.when}, which nothing offered leads to"))
            else:
                parameters.append(parameter)
        return self._with_named(context, tuple(parameters), dropped, fixed)

    def _can_count(
        self, parameter: Parameter, before: Sequence[Parameter], context: Context, fixed: Mapping[str, object]
    ) -> bool:
        """Return whether some choice of the parameters before it may make its condition hold.

        A range may, and so may what is not known.
        """
        asked = _parents(parameter.when)
        parents = [other for other in before if other.name in asked]
        if parameter.when is None or not all(other.choices for other in parents):
            return True
        facts = facts_of(context)
        for values in product(*(other.values for other in parents)):
            chosen = dict(zip((other.name for other in parents), values, strict=True))
            lookup = Names(self._parameters, facts, fixed, chosen).lookup
            if parsed(parameter.when).holds(lookup) is not False:
                return True
        return False

    def _with_named(
        self,
        context: Context,
        parameters: tuple[Parameter, ...],
        dropped: list[Dropped],
        fixed: Mapping[str, object],
    ) -> ResolvedSpace:
        def build(lost: list[Dropped], named: Mapping[str, NamedConfig]) -> ResolvedSpace:
            return ResolvedSpace(
                self.name, context, parameters, tuple(lost), named, self._parameters, self._rules, fixed
            )

        bare = build(dropped, {})
        possible: dict[str, NamedConfig] = {}
        for name, named in self._named.items():
            try:
                bare.complete(named.config)
            except SpaceError as error:
                dropped.append(Dropped(f"named:{name}", None, str(error)))
            else:
                possible[name] = named
        return build(dropped, possible)

    def engine_default(self, name: str, context: Context) -> ParameterValue:
        """Return the engine's own default of a declared parameter; None if the space or the context does not tell.

        Args:
            name: the parameter.
            context: hardware, engine version, model and workload that the default may depend on.
        """
        return Names(self._parameters, facts_of(context), {}, {}).default(name)

    def check_named(self, config: Mapping[str, ParameterValue]) -> None:
        """Check a named configuration against the space as declared, whatever the context.

        Raises:
            SpaceError: if a name or a value is not in the space, or a condition does not hold.
        """
        nowhere = Context(HardwareProfile("any", "any", "nvidia", None, None, None))
        everything = tuple(Parameter(name, spec, full_choices(spec)) for name, spec in self._parameters.items())
        ResolvedSpace(self.name, nowhere, everything, (), {}, self._parameters, self._rules, {}).complete(config)

    def _check_only(self, only: Collection[str], names: Names) -> None:
        for name in sorted(only):
            if name not in self._parameters:
                raise SpaceError(f"space {self.name!r} has no parameter {name!r}; it has {', '.join(self._parameters)}")
            when = self._parameters[name].when
            parents = _parents(when) & set(self._parameters)
            if when is not None and not parents & set(only) and parsed(when).holds(names.lookup) is not True:
                raise SpaceError(f"{name} only counts when {when}; add {', '.join(sorted(parents))} to the selection")


def _parents(when: str | None) -> set[str]:
    return set() if when is None else {name.removeprefix("effective.") for name in parsed(when).names}


def _without_prose(dump: Any) -> Any:
    if isinstance(dump, dict):
        return {key: _without_prose(value) for key, value in dump.items() if key not in _PROSE}
    return [_without_prose(item) for item in dump] if isinstance(dump, list) else dump


def _parameter_reason(
    spec: ParameterSpec, context: Context, names: Names, keep_answers: bool, fixed: bool
) -> str | None:
    """Return why a parameter is not offered at all; None if it is."""
    flag = spec.flag or (None if spec.json_target is None else spec.json_target.flag)
    if fixed:
        return "the study's own server arguments already set it"
    if flag is not None and context.flags is not None and flag not in context.flags:
        return f"{_engine(context)} has no flag {flag}"
    if keep_answers and spec.changes_answers:
        return "it changes the model's answers, and this study keeps them"
    general = [r for r in spec.requires if "value" not in parsed(r.rule).names]
    return _first_broken(general, names.lookup, names)


def _left_over(
    name: str, spec: ParameterSpec, context: Context, names: Names
) -> tuple[Parameter | None, list[Dropped]]:
    """Return the parameter with the values that are possible, None if only the engine's default is left."""
    declared = full_choices(spec)
    if not declared:
        return Parameter(name, spec, ()), []
    each = [r for r in spec.requires if "value" in parsed(r.rule).names]
    reasons = {i: _choice_reason(choice, each, context, names) for i, choice in enumerate(declared)}
    kept = tuple(choice for i, choice in enumerate(declared) if reasons[i] is None)
    lost = [Dropped(name, c.value, reason) for i, c in enumerate(declared) if (reason := reasons[i]) is not None]
    if any(choice.value is not None for choice in kept):
        return Parameter(name, spec, kept), lost
    return None, [*lost, Dropped(name, None, "only the engine's default is left")]


def _choice_reason(choice: ChoiceSpec, each: Iterable[Requirement], context: Context, names: Names) -> str | None:
    missing = _missing(choice, context)
    if missing is not None or choice.value is None:
        return missing

    def lookup(name: str) -> object:
        return choice.value if name == "value" else names.lookup(name)

    return _first_broken([*each, *choice.requires], lookup, names, choice.value)


def _missing(choice: ChoiceSpec, context: Context) -> str | None:
    flags = [word.split("=")[0] for word in choice.args or () if word.startswith("--")]
    if choice.compute is not None:
        flags.append(CAPTURE_SIZES_FLAG)
        if context.concurrency is None:
            return "the workload has no limit on concurrent requests to compute sizes from"
    for flag in flags:
        if context.flags is not None and flag not in context.flags:
            return f"{_engine(context)} has no flag {flag}"
    if choice.checkpoint is not None and choice.checkpoint not in context.checkpoints:
        return f"it needs a checkpoint quantized with {choice.checkpoint}, and none was given"
    if choice.draft_model and context.draft_model is None:
        return "it needs a draft model, and none was given"
    return None


def _first_broken(
    requirements: Iterable[Requirement], lookup: Any, names: Names, value: ParameterValue = None
) -> str | None:
    for requirement in requirements:
        if parsed(requirement.rule).holds(lookup) is False:
            return names.fill(requirement.why.replace("{value}", str(value)))
    return None


def _engine(context: Context) -> str:
    return "this vLLM" if context.engine_version is None else f"vLLM {context.engine_version}"
