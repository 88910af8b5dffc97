"""The YAML format of a search space, as pydantic models; `docs/search-space.md` describes it for people."""

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

from search_spaces.expressions import parsed

Scalar = StrictBool | StrictInt | StrictFloat | StrictStr | None
Number = StrictInt | StrictFloat


def _expression(source: object) -> object:
    if isinstance(source, str):
        parsed(source)
    return source


ExpressionText = Annotated[StrictStr, BeforeValidator(_expression)]


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True)


class Requirement(_Model):
    """What must not be false, over facts and `value`; else the parameter, or the value, is dropped, and why."""

    rule: ExpressionText
    why: StrictStr


class JsonTarget(_Model):
    """A key of the JSON object that a flag takes; all parameters of one flag are merged into one object."""

    flag: StrictStr = Field(pattern=r"^--[a-z][a-z0-9-]*$")
    key: StrictStr


class ChoiceSpec(_Model):
    """One value. With `args`, `env` or `json` it says itself what it emits, instead of its parameter."""

    value: Scalar
    args: tuple[StrictStr, ...] | None = None
    env: dict[StrictStr, StrictStr] | None = None
    json_object: dict[StrictStr, Scalar] | None = Field(default=None, alias="json")
    checkpoint: StrictStr | None = None
    draft_model: StrictBool = False
    compute: Literal["capture_sizes"] | None = None
    requires: tuple[Requirement, ...] = ()
    weight_bits: StrictInt | None = Field(default=None, ge=1)
    kv_bits: StrictInt | None = Field(default=None, ge=1)
    note: StrictStr | None = None

    @property
    def emits_itself(self) -> bool:
        """True if the choice, not its parameter, says what it emits."""
        given = (self.args, self.env, self.json_object, self.compute, self.checkpoint)
        return any(part is not None for part in given)


class DefaultCase(_Model):
    """One case of an engine's default: the first whose `when` holds counts; `expression` computes the value."""

    when: ExpressionText | None = None
    value: Scalar = None
    expression: ExpressionText | None = None


def _as_choice(raw: object) -> object:
    return raw if isinstance(raw, dict) else {"value": raw}


class ParameterSpec(_Model):
    """One parameter as declared."""

    description: StrictStr
    type: Literal["int", "float", "bool", "categorical"]
    low: Number | None = None
    high: Number | None = None
    step: Number | None = None
    log: StrictBool = False
    choices: tuple[Annotated[ChoiceSpec, BeforeValidator(_as_choice)], ...] = ()
    flag: StrictStr | None = Field(default=None, pattern=r"^--[a-z][a-z0-9-]*$")
    no_flag: StrictStr | None = Field(default=None, pattern=r"^--no-[a-z][a-z0-9-]*$")
    env: StrictStr | None = Field(default=None, pattern=r"^[A-Z][A-Z0-9_]*$")
    json_target: JsonTarget | None = Field(default=None, alias="json")
    when: ExpressionText | None = None
    changes_answers: StrictBool = False
    engine_default: Scalar | tuple[DefaultCase, ...] = None
    requires: tuple[Requirement, ...] = ()

    @model_validator(mode="after")
    def _domain_is_sound(self) -> ParameterSpec:
        if self.type in ("int", "float"):
            self._check_range()
        elif self.low is not None or self.high is not None or self.step is not None or self.log:
            raise ValueError(f"low, high, step and log belong to int and float, not to {self.type}")
        elif self.type == "categorical" and not self.choices:
            raise ValueError("a categorical parameter needs choices; list at least one value")
        self._check_choices()
        if sum(target is not None for target in (self.flag, self.env, self.json_target)) > 1:
            raise ValueError("flag, env and json exclude each other; keep the one that carries the value")
        return self

    def _check_range(self) -> None:
        if self.low is None or self.high is None:
            raise ValueError(f"{self.type} needs low and high; give both")
        if self.choices:
            raise ValueError("low/high and choices exclude each other; use type categorical for a list of values")
        numbers = [number for number in (self.low, self.high, self.step) if number is not None]
        if self.type == "int" and any(isinstance(number, float) for number in numbers):
            raise ValueError("int takes whole numbers for low, high and step; use type float for others")
        if not all(math.isfinite(number) for number in numbers):
            raise ValueError("low, high and step must be finite; give plain numbers")
        if self.low > self.high:
            raise ValueError(f"low {self.low} is above high {self.high}; swap or correct them")
        if self.step is not None and self.step <= 0:
            raise ValueError(f"step {self.step} must be above 0; leave it out or give a positive one")
        if self.log and (self.low <= 0 or self.step is not None):
            raise ValueError("log needs low above 0 and takes no step; raise low, or leave log or step out")

    def _check_choices(self) -> None:
        values = [(type(choice.value), choice.value) for choice in self.choices]
        if len(set(values)) != len(values):
            raise ValueError(f"choices repeat a value: {[value for _, value in values]}; keep each once")
        if self.type == "bool" and any(not isinstance(choice.value, bool) for choice in self.choices):
            raise ValueError("a bool's choices are true and false; use type categorical for others")


class RuleSpec(_Model):
    """A rule across parameters: a configuration for which `forbid` is true is refused, because of `why`.

    `why` may hold names in braces, `{max_num_seqs}` or `{effective.max_model_len}`, which are filled in.
    """

    name: StrictStr = Field(pattern=r"^[a-z][a-z0-9-]*$")
    forbid: ExpressionText
    why: StrictStr


class NamedSpec(_Model):
    """A known configuration that can be enqueued by name, and where it comes from."""

    config: dict[StrictStr, Scalar]
    note: StrictStr
    source: StrictStr


class SpaceSpec(_Model):
    """One YAML file."""

    description: StrictStr = ""
    include: tuple[StrictStr, ...] = ()
    parameters: dict[Annotated[StrictStr, Field(pattern=r"^[a-z][a-z0-9_]*$")], ParameterSpec] = Field(
        default_factory=dict
    )
    rules: tuple[RuleSpec, ...] = ()
    named: dict[StrictStr, NamedSpec] = Field(default_factory=dict)
