"""Renders a configuration to flags, environment variables and, for some choices, another checkpoint."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from search_spaces.expressions.facts import Context
from search_spaces.expressions.names import Names
from search_spaces.parameter import Parameter, ParameterValue, round_to_six_digits
from search_spaces.rendering.capture_sizes import reachable_sizes
from search_spaces.rendering.json_keys import put
from search_spaces.schema import ChoiceSpec, ParameterSpec

CAPTURE_SIZES_FLAG = "--cudagraph-capture-sizes"
_SPECULATION_FLAG = "--speculative-config"
_SUFFIX_DEPTH = 24
"""vLLM's default depth of suffix decoding, for spaces that do not declare the parameter `suffix_depth`."""


@dataclass(frozen=True)
class Rendered:
    """The rendered form of a configuration: its part of the engine's command line and environment.

    Attributes:
        argv: flags and their values.
        environment: environment variables.
        model: the checkpoint to serve instead of the study's model; None for the study's model.
        engine: the engine, in a space of several; None for the study's only one.
    """

    argv: tuple[str, ...] = ()
    environment: dict[str, str] = field(default_factory=dict)
    model: str | None = None
    engine: str | None = None


def text_of(value: ParameterValue) -> str:
    """Return a value as a word of a command line: 1 or 0 for a boolean, six digits for a float."""
    if isinstance(value, bool):
        return "1" if value else "0"
    return format(value, ".6g") if isinstance(value, float) else str(value)


def json_value(value: ParameterValue) -> ParameterValue:
    """Return a value for a JSON object: a float with six digits, anything else as it is."""
    return round_to_six_digits(value) if isinstance(value, float) else value


class _Builder:
    """Collects the parts of a rendered configuration."""

    def __init__(self, names: Names, context: Context) -> None:
        self.names = names
        self.context = context
        self.argv: list[str] = []
        self.environment: dict[str, str] = {}
        self.objects: dict[str, dict[str, Any]] = {}
        self.model: str | None = None
        self.needs_capture_sizes = False

    def add(self, parameter: Parameter, value: ParameterValue) -> None:
        choice = parameter.choice(value)
        if choice is not None and choice.renders_itself:
            self._add_choice(parameter, choice)
            return
        spec = parameter.spec
        if spec.json_target is not None:
            put(self.objects.setdefault(spec.json_target.flag, {}), spec.json_target.key, json_value(value))
        elif spec.env is not None:
            self.environment[spec.env] = text_of(value)
        elif spec.flag is not None:
            self._add_flag(spec.flag, spec.no_flag, value)

    def _add_flag(self, flag: str, no_flag: str | None, value: ParameterValue) -> None:
        if value is True:
            self.argv.append(flag)
        elif value is False:
            self.argv.extend([] if no_flag is None else [no_flag])
        else:
            self.argv.extend([flag, text_of(value)])

    def _add_choice(self, parameter: Parameter, choice: ChoiceSpec) -> None:
        self.argv.extend(choice.args or ())
        self.environment.update(choice.env or {})
        target = parameter.spec.json_target
        if choice.json_object is not None and target is not None:
            content = self.objects.setdefault(target.flag, {})
            for key, value in choice.json_object.items():
                drafts = choice.draft_model and value == "{draft_model}"
                put(content, key, self.context.draft_model if drafts else json_value(value))
        if choice.checkpoint is not None:
            self.model = self.context.checkpoints[choice.checkpoint]
        self.needs_capture_sizes |= choice.compute == "capture_sizes"

    def _capture_sizes(self) -> tuple[int, ...]:
        speculation = self.objects.get(_SPECULATION_FLAG)
        drafts: ParameterValue = 0
        if speculation is not None:
            drafts = speculation.get("num_speculative_tokens") or speculation.get("suffix_decoding_max_tree_depth")
        limits = (self.context.concurrency, self.names.effective("max_num_seqs"))
        sequences = min((n for n in limits if isinstance(n, int)), default=1)
        budget = self.names.effective("max_num_batched_tokens")
        largest = min(512, budget) if isinstance(budget, int) else 512
        return reachable_sizes(sequences, 1 + (drafts if isinstance(drafts, int) else _SUFFIX_DEPTH), largest)

    def finish(self) -> Rendered:
        if self.needs_capture_sizes:
            self.argv += [CAPTURE_SIZES_FLAG, *(str(size) for size in self._capture_sizes())]
        for flag, content in self.objects.items():
            self.argv += [flag, json.dumps(content, sort_keys=True, separators=(",", ":"))]
        return Rendered(tuple(self.argv), self.environment, self.model)


def render_values(chosen: Sequence[tuple[Parameter, ParameterValue]], names: Names, context: Context) -> Rendered:
    """Return the rendered form of the chosen values, none of which may be None."""
    builder = _Builder(names, context)
    for parameter, value in chosen:
        builder.add(parameter, value)
    return builder.finish()


@dataclass(frozen=True)
class Written:
    """A place that a parameter writes to, and a value that it writes there.

    Attributes:
        flag: of the command line; None for an environment variable.
        key: of the flag's JSON object; None where the value is a word of its own.
        variable: environment variable; None for a flag.
        value: None where the place gets no value, or a number of a range.
    """

    flag: str | None = None
    key: str | None = None
    variable: str | None = None
    value: ParameterValue = None


def written(spec: ParameterSpec) -> Iterator[Written | tuple[str, ...]]:
    """Yield everything that a parameter can render to, whatever the context; words of a choice come as a tuple."""
    target = spec.json_target
    values = [choice.value for choice in spec.choices if not choice.renders_itself] or [None]
    for value in values:
        if target is not None:
            yield Written(target.flag, target.key, value=value)
        elif spec.env is not None:
            yield Written(variable=spec.env, value=value)
        elif spec.flag is not None:
            yield Written(spec.flag, value=None if isinstance(value, bool) else value)
    if spec.no_flag is not None:
        yield Written(spec.no_flag)
    for choice in spec.choices:
        if choice.args:
            yield choice.args
        for name, text in (choice.env or {}).items():
            yield Written(variable=name, value=text)
        for key, value in (choice.json_object or {}).items():
            yield Written(None if target is None else target.flag, key, value=value)
        if choice.compute is not None:
            yield Written(CAPTURE_SIZES_FLAG)
