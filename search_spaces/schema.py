"""The YAML format of a search space as pydantic models; `docs/search-space.md` is the reference."""

from __future__ import annotations

import math
from typing import Annotated, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StrictBool,
    StrictFloat,
    StrictInt,
    StrictStr,
    model_validator,
)

from search_spaces.argv import KEY_PATTERN
from search_spaces.expressions import parsed

Scalar = StrictBool | StrictInt | Annotated[StrictFloat, Field(allow_inf_nan=False)] | StrictStr | None
Number = StrictInt | StrictFloat

VLLM = "vllm"
"""The engine of a space that names none."""

LARGEST_NUMBER = 1e15
_LARGEST_SIZE = 1e9
"""Limits of a range: its bounds, and the number of its steps."""


def _expression(source: object) -> object:
    if isinstance(source, str):
        parsed(source)
    return source


ExpressionText = Annotated[StrictStr, BeforeValidator(_expression)]


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True)


class Requirement(_Model):
    """A requirement. If `rule` is false, the parameter or choice is dropped, and `why` is the reason.

    A rule that contains `value` applies to each choice, other rules to the parameter.
    """

    rule: ExpressionText
    why: StrictStr


JsonKey = Annotated[StrictStr, Field(pattern=KEY_PATTERN)]


class JsonTarget(_Model):
    """A key of a flag's JSON object; the parameters of one flag are merged into one object.

    `pass_config.fuse_norm_quant` is a key of an object in it, and `custom_ops[]` adds to a list.
    """

    flag: StrictStr = Field(pattern=r"^--[a-z][a-z0-9-]*$")
    key: JsonKey


class ChoiceSpec(_Model):
    """A choice: one value of a parameter.

    Attributes:
        value: the value; None is the engine's default.
        args: arguments that the choice renders to; `[]` renders to nothing.
        env: environment variables that the choice renders to.
        json_object: keys that the choice adds to the JSON object of the parameter's flag.
        checkpoint: quantization method of the checkpoint that the choice serves instead of the model.
        draft_model: whether the choice needs the study's draft model, `{draft_model}` in `json`.
        compute: `capture_sizes` renders CUDA graph sizes for the workload.
        requires: requirements of the choice.
        weight_bits, kv_bits: bits of a weight or a KV cache element, for the memory estimate.
        on_request: why the choice is offered only to a study that asks for its parameter.
        note: a remark for readers.
    """

    value: Scalar
    args: tuple[StrictStr, ...] | None = None
    env: dict[StrictStr, StrictStr] | None = None
    json_object: dict[JsonKey, Scalar] | None = Field(default=None, alias="json")
    checkpoint: StrictStr | None = None
    draft_model: StrictBool = False
    compute: Literal["capture_sizes"] | None = None
    requires: tuple[Requirement, ...] = ()
    weight_bits: StrictInt | None = Field(default=None, ge=1)
    kv_bits: StrictInt | None = Field(default=None, ge=1)
    on_request: StrictStr | None = None
    note: StrictStr | None = None

    @property
    def renders_itself(self) -> bool:
        """Whether the choice itself, not its parameter, defines its arguments or variables."""
        given = (self.args, self.env, self.json_object, self.compute, self.checkpoint)
        return any(part is not None for part in given)


class DefaultCase(_Model):
    """One case of an engine's default. The first case whose `when` holds applies; `expression` computes its value."""

    when: ExpressionText | None = None
    value: Scalar = None
    expression: ExpressionText | None = None


def _as_choice(raw: object) -> object:
    return raw if isinstance(raw, dict) else {"value": raw}


class ParameterSpec(_Model):
    """The declaration of a parameter; `docs/search-space.md` describes the keys.

    Attributes:
        description: one sentence for readers.
        type: `int`, `float`, `bool` or `categorical`.
        low, high, step, log: the range of an int or float.
        choices: the values of a categorical.
        flag, no_flag: the flag of the value; for a bool, the flags for true and for false.
        env: environment variable of the value.
        json_target: key of a flag's JSON object for the value (`json` in YAML).
        when: condition under which the parameter counts.
        changes_answers: whether it may change the text of the model's answers.
        changes_stream: whether it changes how the tokens of an answer arrive at a user.
        engine_default: the engine's own default: a value, or cases.
        requires: requirements of the parameter.
        matters: requirements without which no value makes a difference, or one value, if the rule has `value`.
    """

    description: StrictStr
    type: Literal["int", "float", "bool", "categorical"]
    low: Number | None = None
    high: Number | None = None
    step: Number | None = None
    log: StrictBool = False
    choices: tuple[Annotated[ChoiceSpec, BeforeValidator(_as_choice)], ...] = ()
    flag: StrictStr | None = Field(default=None, pattern=r"^--[a-z][a-z0-9_-]*(\.[a-z][a-z0-9_]*)*$")
    no_flag: StrictStr | None = Field(default=None, pattern=r"^--no-[a-z][a-z0-9-]*$")
    env: StrictStr | None = Field(default=None, pattern=r"^[A-Z][A-Z0-9_]*$")
    json_target: JsonTarget | None = Field(default=None, alias="json")
    when: ExpressionText | None = None
    changes_answers: StrictBool = False
    changes_stream: StrictBool = False
    engine_default: Scalar | tuple[DefaultCase, ...] = None
    requires: tuple[Requirement, ...] = ()
    matters: tuple[Requirement, ...] = ()

    @model_validator(mode="after")
    def _check_domain(self) -> ParameterSpec:
        if self.type in ("int", "float"):
            self._check_range()
        elif self.low is not None or self.high is not None or self.step is not None or self.log:
            raise ValueError(f"low, high, step and log belong to int and float, not to {self.type}")
        elif self.type == "categorical" and not self.choices:
            raise ValueError("a categorical parameter needs choices; list at least one value")
        self._check_choices()
        if sum(target is not None for target in (self.flag, self.env, self.json_target)) > 1:
            raise ValueError("flag, env and json exclude each other; keep the one that takes the value")
        return self

    def _check_range(self) -> None:
        if self.low is None or self.high is None:
            raise ValueError(f"{self.type} needs low and high; give both")
        if self.choices:
            raise ValueError("low/high and choices exclude each other; use type categorical for a list of values")
        numbers = [number for number in (self.low, self.high, self.step) if number is not None]
        if self.type == "int" and any(isinstance(number, float) for number in numbers):
            raise ValueError("low, high and step of an int are whole numbers; use type float for others")
        if not all(math.isfinite(number) for number in numbers):
            raise ValueError("low, high and step must be finite numbers; correct them")
        if any(abs(number) > LARGEST_NUMBER for number in numbers):
            raise ValueError(f"low, high and step are at most {LARGEST_NUMBER:g}; correct them")
        if self.low > self.high:
            raise ValueError(f"low {self.low} is above high {self.high}; swap or correct them")
        if self.step is not None and self.step <= 0:
            raise ValueError(f"step {self.step} is not above 0; leave it out or give a positive number")
        if self.step is not None and (self.high - self.low) / self.step > _LARGEST_SIZE:
            raise ValueError(f"step {self.step} gives more than {_LARGEST_SIZE:g} values; give a larger one")
        if self.log and (self.low <= 0 or self.step is not None):
            raise ValueError("log needs low above 0 and no step; raise low, or leave log or step out")

    def _check_choices(self) -> None:
        values = [(type(choice.value), choice.value) for choice in self.choices]
        if len(set(values)) != len(values):
            raise ValueError(f"choices repeat a value: {[value for _, value in values]}; list each value once")
        if self.type == "bool" and any(not isinstance(choice.value, bool) for choice in self.choices):
            raise ValueError("the choices of a bool are true and false; use type categorical for others")


class RuleSpec(_Model):
    """A rule across parameters: a configuration for which `forbid` is true is excluded, and `why` is the reason.

    Names in braces in `why`, such as `{max_num_seqs}` or `{effective.max_model_len}`, are replaced by their values.
    """

    name: StrictStr = Field(pattern=r"^[a-z][a-z0-9-]*$")
    forbid: ExpressionText
    why: StrictStr


class NamedConfig(_Model):
    """A named configuration, which a study can enqueue, with a description (`note`) and its `source`.

    One with a condition (`when`) is a recipe: a study tries it by itself where the condition holds.
    """

    config: dict[StrictStr, Scalar]
    when: ExpressionText | None = None
    note: StrictStr
    source: StrictStr


class SpaceSpec(_Model):
    """One YAML file of a space; `engine` is the engine whose flags it has."""

    description: StrictStr = ""
    engine: StrictStr = VLLM
    include: tuple[StrictStr, ...] = ()
    parameters: dict[Annotated[StrictStr, Field(pattern=r"^[a-z][a-z0-9_]*$")], ParameterSpec] = Field(
        default_factory=dict
    )
    rules: tuple[RuleSpec, ...] = ()
    named: dict[StrictStr, NamedConfig] = Field(default_factory=dict)
