"""Render a configuration to flags and variables, and read from given flags the parameters and GPUs that they set."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from search_spaces.argv import (
    SUFFIX_FACTORS,
    is_list,
    last_place,
    long_name,
    object_of,
    one_spelling,
    put,
    value_after,
    value_at,
)
from search_spaces.expressions import UNKNOWN, Context
from search_spaces.parameter import Names, Parameter, ParameterValue, full_choices, round_to_six_digits
from search_spaces.schema import ChoiceSpec, ParameterSpec

_STRIDE = 8
_MIN_DISTANCE = 4
_LARGEST = 512
"""Distance of the sizes that vLLM captures, least distance to the full batch, and vLLM's largest size on most cards."""


def reachable_sizes(sequences: int, tokens_per_sequence: int = 1, largest: int = _LARGEST) -> tuple[int, ...]:
    """Return capture sizes for decode batches of 1 to `sequences` sequences, ascending.

    The sizes are vLLM's own (1, 2, 4, then every 8) and `sequences` itself, so that the full batch is not padded. A
    size above 8 and less than 4 below `sequences` is left out. For 50: 1, 2, 4, 8, 16, 24, 32, 40, 50.

    Args:
        sequences: the largest number of sequences in a step.
        tokens_per_sequence: tokens of a sequence in a step at most. With speculation this is above 1, and the multiples
            of the sizes are added.
        largest: the largest size to return: vLLM's limit, or the token budget of a step.

    Raises:
        ValueError: if `sequences` or `tokens_per_sequence` is below 1.
    """
    if sequences < 1 or tokens_per_sequence < 1:
        raise ValueError(f"sequences {sequences} and tokens_per_sequence {tokens_per_sequence} must be at least 1")
    defaults = [1, 2, 4, *range(_STRIDE, sequences, _STRIDE)]
    batches = {size for size in defaults if size < sequences and (size <= _STRIDE or sequences - size >= _MIN_DISTANCE)}
    batches.add(sequences)
    sizes = batches | {size * tokens_per_sequence for size in batches}
    return tuple(sorted(size for size in sizes if size <= largest))


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


def _word(value: ParameterValue) -> str:
    """Return a value as a word of a command line: 1 or 0 for a boolean, six digits for a float."""
    if isinstance(value, bool):
        return "1" if value else "0"
    return format(value, ".6g") if isinstance(value, float) else str(value)


def _json_value(value: ParameterValue) -> ParameterValue:
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
            put(self.objects.setdefault(spec.json_target.flag, {}), spec.json_target.key, _json_value(value))
        elif spec.env is not None:
            self.environment[spec.env] = _word(value)
        elif spec.flag is not None:
            self._add_flag(spec.flag, spec.no_flag, value)

    def _add_flag(self, flag: str, no_flag: str | None, value: ParameterValue) -> None:
        if value is True:
            self.argv.append(flag)
        elif value is False:
            self.argv.extend([] if no_flag is None else [no_flag])
        else:
            self.argv.extend([flag, _word(value)])

    def _add_choice(self, parameter: Parameter, choice: ChoiceSpec) -> None:
        self.argv.extend(choice.args or ())
        self.environment.update(choice.env or {})
        target = parameter.spec.json_target
        if choice.json_object is not None and target is not None:
            content = self.objects.setdefault(target.flag, {})
            for key, value in choice.json_object.items():
                drafts = choice.draft_model and value == "{draft_model}"
                put(content, key, self.context.draft_model if drafts else _json_value(value))
        if choice.checkpoint is not None:
            self.model = self.context.checkpoints[choice.checkpoint]
        self.needs_capture_sizes |= choice.compute == "capture_sizes"

    def _capture_sizes(self) -> tuple[int, ...]:
        """Return the sizes for the largest batch that the load, `max_num_seqs` and the token budget allow."""
        speculation = self.objects.get(_SPECULATION_FLAG)
        drafts: ParameterValue = 0
        if speculation is not None:
            drafts = speculation.get("num_speculative_tokens") or speculation.get("suffix_decoding_max_tree_depth")
        limits = (self.context.concurrency, self.names.effective("max_num_seqs"))
        sequences = min((n for n in limits if isinstance(n, int)), default=1)
        budget = self.names.effective("max_num_batched_tokens")
        largest = min(_LARGEST, budget) if isinstance(budget, int) else _LARGEST
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


_TENSOR, _DATA = "--tensor-parallel-size", "--data-parallel-size"
_SIZES = (_TENSOR, "--pipeline-parallel-size", _DATA, "--prefill-context-parallel-size")
"""The flags whose product is the number of GPUs."""

_MOST_GPUS = 1_000_000
"""Files of programs hold the number of GPUs, and some of these programs read no larger ones."""


def gpus_of(argv: Sequence[str]) -> int:
    """Return the GPUs that one instance of a server needs: the product of its sizes of parallelism, 1 without these.

    The last value of a flag counts, as in the engines. A value that is no number from 1 to `_MOST_GPUS` counts as 1;
    the engines refuse it.
    """
    words = one_spelling(argv)
    return math.prod(_size(words, flag) for flag in _SIZES)


def nodes_of(argv: Sequence[str], gpus_per_node: int, nodes: int) -> int:
    """Return over how many of `nodes` nodes a server spreads: the fewest that can each hold an equal part of its GPUs.

    If no number fits, it is `nodes`.
    """
    needed = gpus_of(argv)
    return next((n for n in range(1, nodes + 1) if needed % n == 0 and needed // n <= gpus_per_node), nodes)


def tensor_parallel_size(argv: Sequence[str]) -> int:
    """Return the GPUs that share each layer; 1 without the flag."""
    return _size(one_spelling(argv), _TENSOR)


def data_parallel_size(argv: Sequence[str]) -> int:
    """Return the copies of the model; 1 without the flag."""
    return _size(one_spelling(argv), _DATA)


INSTANCES = "--instances"
"""The flag of `tuner-vllm-instances` with the number of servers; `vllm` itself lacks it."""


def instances_of(argv: Sequence[str]) -> int:
    """Return how many servers a command line starts; 1 without the flag."""
    return _size(one_spelling(argv), INSTANCES)


def without_instances(argv: Sequence[str]) -> tuple[str, ...]:
    """Return the arguments without `--instances`: those of each instance."""
    words = [word for word in argv if not word.startswith(f"{INSTANCES}=")]
    while INSTANCES in words:
        place = words.index(INSTANCES)
        del words[place : place + 2]
    return tuple(words)


def wrong_size(argv: Sequence[str]) -> str | None:
    """Return a size of parallelism that is no whole number above 0, such as `--tensor-parallel-size x`; else None."""
    words = one_spelling(argv)
    for flag in _SIZES:
        text = (value_after(flag, words) or "") if flag in words else "1"
        if not text.isdecimal() or not int(text):
            return f"{flag} {text}".rstrip()
    return None


def _size(words: Sequence[str], flag: str) -> int:
    """Return the last number of a flag; 1 without one from 1 to `_MOST_GPUS`."""
    text = (value_after(flag, words) if flag in words else None) or ""
    return int(text) if text.isdecimal() and 0 < int(text) <= _MOST_GPUS else 1


_CAPTURE_FLAGS = (CAPTURE_SIZES_FLAG, "--max-cudagraph-capture-size")
"""vLLM's flags that say which sizes are captured; with one of them, no other sizes can be chosen."""

_TWINS = {
    "--attention-backend": ("--attention-config", "backend"),
    CAPTURE_SIZES_FLAG: ("--compilation-config", "cudagraph_capture_sizes"),
    "--max-cudagraph-capture-size": ("--compilation-config", "max_cudagraph_capture_size"),
}
"""vLLM's flags that are keys of a JSON object, too: the object's flag and the key. vLLM refuses both together."""


def fixed_values(parameters: Mapping[str, ParameterSpec], argv: Sequence[str]) -> dict[str, object]:
    """Return the parameters that `argv` sets, with their values; `UNKNOWN` for a value that cannot be read.

    A parameter is set by its flag, its negated flag, or the arguments of one of its choices, by any of their names. A
    flag with a JSON object, also in parts such as `--flag.key value`, sets every parameter that is part of the object;
    a parameter that the object leaves out is None.
    """
    words = one_spelling(argv)
    values = {name: _value_in(spec, words) for name, spec in parameters.items()}
    return {name: value[0] for name, value in values.items() if value}


def _value_in(spec: ParameterSpec, words: Sequence[str]) -> tuple[object, ...]:
    """Return the value that the last of the words sets, as a tuple of one; an empty tuple if none sets it."""
    explicit = {**_by_choices(spec, words), **_by_flags(spec, words)}
    found = {**_negations(spec, words), **explicit}
    last = max(found, default=None)
    # A `--no-FLAG` of a choice only unsets it, so that a JSON object may still set the parameter.
    if last is not None and (last in explicit or found[last] is not None):
        return (found[last],)
    for flag in (spec.flag, *(_CAPTURE_FLAGS if _has_computed_sizes(spec) else ())):
        value = None if flag is None else _in_twin(long_name(flag), words)
        if value is not None:
            return (_parse(spec, str(value)) if flag == spec.flag else UNKNOWN,)
    target = spec.json_target
    content = None if target is None else object_of(target.flag, words)
    if target is None or content is None:
        return (None,) if found else ()
    return (_value_at(spec, content, target.key) if isinstance(content, dict) else UNKNOWN,)


def _by_choices(spec: ParameterSpec, words: Sequence[str]) -> dict[int, object]:
    """Return the values of the choices whose arguments are among the words, by their places."""
    found: dict[int, object] = {}
    for choice in full_choices(spec):
        part = one_spelling(choice.args or ())
        for place in range(len(words)) if part else ():
            if list(words[place : place + len(part)]) == part:
                found[place] = choice.value
    if _has_computed_sizes(spec):
        found |= {place: UNKNOWN for place, word in enumerate(words) if word in _CAPTURE_FLAGS}
    return found


def _by_flags(spec: ParameterSpec, words: Sequence[str]) -> dict[int, object]:
    """Return the values of the parameter's flag and its negated one, by their places."""
    found: dict[int, object] = {}
    for flag, is_on in ((spec.flag, True), (spec.no_flag, False)):
        if flag is not None and long_name(flag) in words:
            place = last_place(long_name(flag), words)
            found[place] = _parse(spec, value_after(long_name(flag), words)) if is_on else False
    return found


def _negations(spec: ParameterSpec, words: Sequence[str]) -> dict[int, object]:
    """Return what `--no-FLAG` sets, by its place: false, or no value where the flag stands for a choice."""
    positive = [] if spec.flag is None else [(long_name(spec.flag), False if spec.type == "bool" else None)]
    positive += [(one_spelling(choice.args)[0], None) for choice in full_choices(spec) if choice.args]
    negated = {f"--no-{flag.removeprefix('--')}": value for flag, value in positive}
    return {place: negated[word] for place, word in enumerate(words) if word in negated}


def _has_computed_sizes(spec: ParameterSpec) -> bool:
    return any(choice.compute == "capture_sizes" for choice in full_choices(spec))


def _in_twin(flag: str, words: Sequence[str]) -> object:
    """Return the value of a flag that is a key of a JSON object, too; None if no object has it."""
    twin = _TWINS.get(flag)
    content = None if twin is None else object_of(twin[0], words)
    return content.get(twin[1]) if twin is not None and isinstance(content, dict) else None


def _parse(spec: ParameterSpec, text: str | None) -> object:
    """Return the value of a flag's word: true without a word, `UNKNOWN` for a number that cannot be read."""
    if text is None:
        return True
    for choice in full_choices(spec):
        if choice.value is not None and str(choice.value) == text:
            return choice.value
    values = [choice.value for choice in full_choices(spec) if choice.value is not None]
    numbers = spec.type in ("int", "float") or (values and all(isinstance(value, int | float) for value in values))
    factor = SUFFIX_FACTORS.get(text[-1:])
    try:
        value = float(text) if factor is None else float(text[:-1]) * factor
    except ValueError:
        return UNKNOWN if numbers else text
    if not math.isfinite(value):
        return UNKNOWN
    return int(value) if value.is_integer() and spec.type != "float" else value


def _value_at(spec: ParameterSpec, content: Mapping[str, object], key: str) -> object:
    """Return the value of a key; of a list, the first item that is one of the parameter's values."""
    found = value_at(content, key)
    if not is_list(key):
        return found
    values = [choice.value for choice in full_choices(spec)]
    return next((item for item in found if item in values), None) if isinstance(found, list) else None
