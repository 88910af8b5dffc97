"""A declared search space, and what one context excludes of it, with the reasons."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from types import MappingProxyType

from search_spaces.catalogue.hardware import HardwareProfile
from search_spaces.errors import SpaceError
from search_spaces.expressions import Context, Lookup, checkpoint_fact, facts_of, parsed
from search_spaces.parameter import Names, Parameter, ParameterValue, full_choices, same_value
from search_spaces.render import CAPTURE_SIZES_FLAG, fixed_values
from search_spaces.resolved import MAX_COMBINATIONS, Dropped, ResolvedSpace, parents_of
from search_spaces.schema import VLLM, ChoiceSpec, NamedConfig, ParameterSpec, Requirement, RuleSpec


@dataclass(frozen=True, eq=False)
class Space:
    """A search space as its YAML file declares it; `load_space` returns one.

    `specs` declares all parameters by their names, in order. `named` has every declared configuration by its name,
    whether or not a context allows it.
    """

    name: str
    description: str
    specs: Mapping[str, ParameterSpec]
    rules: tuple[RuleSpec, ...]
    named: Mapping[str, NamedConfig]
    engine: str = VLLM

    @property
    def parameter_names(self) -> tuple[str, ...]:
        """The names of all declared parameters, in order."""
        return tuple(self.specs)

    def resolve(
        self,
        context: Context,
        keep_answers: bool = False,
        only: Collection[str] | None = None,
        *,
        keep_stream: bool = False,
        wanted: Mapping[str, Collection[ParameterValue] | None] = MappingProxyType({}),
        begun: Mapping[str, Collection[ParameterValue]] = MappingProxyType({}),
    ) -> ResolvedSpace:
        """Return the space for one context, without the parts that hardware, engine, model or packages exclude.

        A parameter that makes no difference in the context is possible, but not offered.

        Args:
            context: what the space is resolved for.
            keep_answers: drop the parameters that may change the model's answers.
            only: drop all parameters but these.
            keep_stream: drop the parameters that change how the tokens of an answer arrive.
            wanted: values to offer by their parameters (None: all), even if they are offered on request only, make no
                difference or change the stream, such as those of enqueued configurations; `only` wants all of each.
            begun: the choices that a continued study began with, by their parameters: no others are offered.

        Raises:
            SpaceError: if `only` has a name that is not a parameter, or a parameter that cannot count without others;
                if a choice of `begun` is not possible any more.
        """
        fixed = fixed_values(self.specs, context.base_argv)
        names = Names(self.specs, facts_of(context), fixed, {})
        if only is not None:
            self._check_only(only, names)
        wanted = {**begun, **wanted, **dict.fromkeys(only or ())}
        parameters: list[Parameter] = []
        possible: list[Parameter] = []
        dropped: list[Dropped] = []
        for name, spec in self.specs.items():
            if only is not None and name not in only:
                continue
            reason = _parameter_reason(spec, context, names, keep_answers, name in fixed)
            if reason is not None:
                dropped.append(Dropped(name, None, reason))
                continue
            parameter, excluded = _possible_values(name, spec, context, names)
            dropped.extend(excluded)
            if parameter is None:
                continue
            no_parent = f"it counts only when {spec.when}, and no offered value makes that true"
            if only is None and not self._can_count(parameter, possible, context, fixed):
                dropped.append(Dropped(name, None, no_parent))
                continue
            possible.append(parameter)
            idle = None if name in wanted else _idle_reason(spec, names, keep_stream)
            if idle is None and only is None and not self._can_count(parameter, parameters, context, fixed):
                idle = no_parent
            if idle is not None:
                dropped.append(Dropped(name, None, idle))
                continue
            as_begun = begun.get(name)
            offered, left_out = (
                _as_begun(parameter, as_begun, excluded)
                if as_begun
                else _worth_a_trial(parameter, names, wanted.get(name, ()))
            )
            dropped.extend(left_out)
            if offered is not None:
                parameters.append(offered)
        return self._with_named(context, tuple(parameters), tuple(possible), dropped, fixed)

    def _can_count(
        self, parameter: Parameter, before: Sequence[Parameter], context: Context, fixed: Mapping[str, object]
    ) -> bool:
        """Return whether values of the parameters before it can make its condition hold.

        The answer is True if the condition depends on a range, on an unknown fact or on too many combinations.
        """
        names = parents_of(parameter.spec.when)
        parents = [other for other in before if other.name in names]
        if parameter.spec.when is None or not all(other.choices for other in parents):
            return True
        if math.prod(len(other.choices) for other in parents) > MAX_COMBINATIONS:
            return True
        facts = facts_of(context)
        for values in product(*(other.values for other in parents)):
            chosen = dict(zip((other.name for other in parents), values, strict=True))
            lookup = Names(self.specs, facts, fixed, chosen).lookup
            if parsed(parameter.spec.when).holds(lookup) is not False:
                return True
        return False

    def _with_named(
        self,
        context: Context,
        parameters: tuple[Parameter, ...],
        possible: tuple[Parameter, ...],
        dropped: list[Dropped],
        fixed: Mapping[str, object],
    ) -> ResolvedSpace:
        whole = ResolvedSpace(self.name, context, possible, tuple(dropped), {}, self.specs, self.rules, fixed)
        kept: dict[str, NamedConfig] = {}
        for name, named in self.named.items():
            try:
                whole.complete(named.config)
            except SpaceError as error:
                dropped.append(Dropped(f"named:{name}", None, str(error)))
            else:
                kept[name] = named
        return replace(whole, parameters=parameters, dropped=tuple(dropped), named=kept)

    def engine_default(self, name: str, context: Context) -> ParameterValue:
        """Return the engine's own default of a declared parameter; None if it is not known."""
        return Names(self.specs, facts_of(context), {}, {}).default(name)

    @property
    def checkpoints(self) -> tuple[str, ...]:
        """The quantization methods of the choices that take a quantized checkpoint."""
        return tuple(dict.fromkeys(each.checkpoint for each in self.choices if each.checkpoint is not None))

    @property
    def choices(self) -> list[ChoiceSpec]:
        """The declared choices of all parameters."""
        return [choice for spec in self.specs.values() for choice in spec.choices]

    def check_named(self, config: Mapping[str, ParameterValue]) -> None:
        """Check a named configuration against the declared space, without a context.

        Raises:
            SpaceError: if a name or a value is not in the space, or a condition does not hold.
        """
        any_context = Context(HardwareProfile("any", "any", "nvidia", None, None, None))
        everything = tuple(Parameter(name, spec, full_choices(spec)) for name, spec in self.specs.items())
        ResolvedSpace(self.name, any_context, everything, (), {}, self.specs, self.rules, {}).complete(config)

    def _check_only(self, only: Collection[str], names: Names) -> None:
        for name in sorted(only):
            if name not in self.specs:
                raise SpaceError(f"space {self.name!r} has no parameter {name!r}; it has {', '.join(self.specs)}")
            when = self.specs[name].when
            parents = parents_of(when) & set(self.specs)
            if when is not None and not parents & set(only) and parsed(when).holds(names.lookup) is not True:
                raise SpaceError(f"{name} counts only when {when}; add {', '.join(sorted(parents))} to the selection")


def _parameter_reason(
    spec: ParameterSpec, context: Context, names: Names, keep_answers: bool, fixed: bool
) -> str | None:
    """Return why a parameter is not offered; None if it is."""
    flag = spec.flag or (None if spec.json_target is None else spec.json_target.flag)
    if fixed:
        return "the study's own server arguments set it"
    if flag is not None and context.flags is not None and flag not in context.flags:
        return _without_flag(context, flag)
    if keep_answers and spec.changes_answers:
        return "it may change the model's answers, which the study excludes"
    general = [r for r in spec.requires if not _is_of_values(r)]
    return _first_false(general, names.lookup, names)


def _idle_reason(spec: ParameterSpec, names: Names, keep_stream: bool) -> str | None:
    """Return why a possible parameter is not offered; None if it is."""
    if keep_stream and spec.changes_stream:
        return "it changes how tokens arrive at a user; an SLO on ITL bounds that, and a study can allow bunched tokens"
    return _first_false([each for each in spec.matters if not _is_of_values(each)], names.lookup, names)


def _is_of_values(requirement: Requirement) -> bool:
    """Return whether a requirement is one of each value, not of the parameter."""
    return "value" in parsed(requirement.rule).names


def _worth_a_trial(
    parameter: Parameter, names: Names, wanted: Collection[ParameterValue] | None
) -> tuple[Parameter | None, list[Dropped]]:
    """Return a parameter with the values that a study tries unasked and those that are wanted, and the other values.

    Args:
        parameter: with all possible values.
        names: the facts of the context.
        wanted: values that the study asks for; None: all.

    Returns:
        None in place of the parameter if only its default is left, and nothing is wanted.
    """
    if wanted is None:
        return parameter, []
    each = [requirement for requirement in parameter.spec.matters if _is_of_values(requirement)]

    def reason(choice: ChoiceSpec) -> str | None:
        if any(same_value(choice.value, value) for value in wanted):
            return None
        return choice.on_request or _first_false(each, _with_value(names, choice.value), names, choice.value)

    default = names.default(parameter.name)
    reasons = [(c, None if c.value is None or c.value == default else reason(c)) for c in parameter.choices]
    left_out = [Dropped(parameter.name, choice.value, why) for choice, why in reasons if why is not None]
    if not left_out:
        return parameter, []
    kept = tuple(choice for choice, why in reasons if why is None)
    only_default = all(choice.value is None or choice.value == default for choice in kept)
    return None if only_default and not wanted else replace(parameter, choices=kept), left_out


def _as_begun(
    parameter: Parameter, begun: Collection[ParameterValue], excluded: Iterable[Dropped]
) -> tuple[Parameter, list[Dropped]]:
    """Return a parameter with the choices that its study began with, and the other values.

    Raises:
        SpaceError: if one of these choices is excluded now.
    """
    for value in begun:
        if parameter.choice(value) is None:
            reason = next((each.reason for each in excluded if same_value(each.value, value)), "the space lacks it")
            rule = f"the study began with {parameter.name}={value}, which is not possible any more: {reason}"
            raise SpaceError(f"{rule}; begin a study of another name")
    kept = tuple(choice for choice in parameter.choices if any(same_value(choice.value, value) for value in begun))
    later = [choice for choice in parameter.choices if choice not in kept]
    reason = "the study began without it; a study of another name can have it"
    return replace(parameter, choices=kept), [Dropped(parameter.name, choice.value, reason) for choice in later]


def _with_value(names: Names, value: ParameterValue) -> Lookup:
    return lambda name: value if name == "value" else names.lookup(name)


def _possible_values(
    name: str, spec: ParameterSpec, context: Context, names: Names
) -> tuple[Parameter | None, list[Dropped]]:
    """Return the parameter with its possible values (None: only the default is left), and the dropped values."""
    declared = full_choices(spec)
    if not declared:
        return Parameter(name, spec, ()), []
    each = [r for r in spec.requires if _is_of_values(r)]
    reasons = {i: _choice_reason(choice, each, context, names) for i, choice in enumerate(declared)}
    possible = tuple(choice for i, choice in enumerate(declared) if reasons[i] is None)
    dropped = [Dropped(name, c.value, reason) for i, c in enumerate(declared) if (reason := reasons[i]) is not None]
    if any(choice.value is not None for choice in possible):
        return Parameter(name, spec, possible), dropped
    return None, [*dropped, Dropped(name, None, "only the engine's default is left")]


def _choice_reason(choice: ChoiceSpec, each: Iterable[Requirement], context: Context, names: Names) -> str | None:
    missing = _missing_reason(choice, context)
    if missing is not None or choice.value is None:
        return missing
    shape, with_value = context.checkpoint_shapes.get(choice.checkpoint or ""), _with_value(names, choice.value)

    def lookup(name: str) -> object:
        return checkpoint_fact(shape, name) if name.startswith("checkpoint.") else with_value(name)

    return _first_false([*each, *choice.requires], lookup, names, choice.value)


def _missing_reason(choice: ChoiceSpec, context: Context) -> str | None:
    flags = [word.split("=")[0] for word in choice.args or () if word.startswith("--")]
    if choice.compute is not None:
        flags.append(CAPTURE_SIZES_FLAG)
        if context.concurrency is None:
            return "the workload has no limit on concurrent requests, from which the sizes are computed"
    for flag in flags:
        if context.flags is not None and flag not in context.flags:
            return _without_flag(context, flag)
    if choice.checkpoint is not None and choice.checkpoint not in context.checkpoints:
        return f"it needs a checkpoint quantized with {choice.checkpoint}, and none is given"
    if choice.draft_model and context.draft_model is None:
        return "it needs a draft model, and none is given"
    return None


def _first_false(
    requirements: Iterable[Requirement], lookup: Lookup, names: Names, value: ParameterValue = None
) -> str | None:
    for requirement in requirements:
        if parsed(requirement.rule).holds(lookup) is False:
            return names.fill(requirement.why.replace("{value}", str(value)))
    return None


def _without_flag(context: Context, flag: str) -> str:
    if context.simulated:
        return f"the simulator does not model {flag}; measure it"
    version = context.engine_version
    return f"{f'this {context.engine}' if version is None else f'{context.engine} {version}'} has no flag {flag}"
