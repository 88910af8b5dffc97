"""Expressions of a search space, for conditions and rules: a small subset of Python, and the facts that it reads.

Allowed are names with dots, numbers, strings, True/False/None, tuples and lists, `+ - * / // %`, comparisons, `in`,
`and`, `or`, `not`, and the functions `version("0.25")`, `capability(8, 9)`, `known(x)`, `min(…)` and `max(…)`.

The logic is Kleene's three-valued one. A fact without a value is UNKNOWN, and so is a comparison with it;
`False and UNKNOWN` is False, and `True or UNKNOWN` is True. `None` is a value and means "the engine's default": `==`,
`!=` and `in` compare it, and an order or arithmetic with it is UNKNOWN. An UNKNOWN rule excludes nothing, an UNKNOWN
requirement drops nothing, and an UNKNOWN condition does not hold.
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from functools import cache
from typing import Any

from search_spaces.argv import has_random_weights
from search_spaces.catalogue.hardware import HardwareProfile
from search_spaces.catalogue.models import ModelShape
from search_spaces.errors import SpaceError
from search_spaces.units import GIB

_MAX_LENGTH = 500


class Unknown(Enum):
    """The type of `UNKNOWN`."""

    UNKNOWN = "unknown"


UNKNOWN = Unknown.UNKNOWN

Lookup = Callable[[str], object]
"""Maps a dotted name to its value; `UNKNOWN` if it has none."""

Evaluator = Callable[[Lookup], object]
"""Computes a part of an expression."""

_ORDERINGS: Mapping[type[ast.cmpop], Callable[[Any, Any], bool]] = {
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}
_ARITHMETIC: Mapping[type[ast.operator], Callable[[Any, Any], object]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}


def version_tuple(text: str) -> tuple[int, int, int]:
    """Return the release numbers of a version as three integers: `0.32.0+cpu` gives (0, 32, 0).

    Raises:
        SpaceError: if the text does not start with a number.
    """
    match = re.match(r"v?(\d+)(?:\.(\d+))?(?:\.(\d+))?", text)
    if match is None:
        raise SpaceError(f"{text!r} is not a version; write one such as 0.25 or 0.32.0")
    major, minor, patch = (int(part or 0) for part in match.groups())
    return (major, minor, patch)


def _version(text: object) -> object:
    if not isinstance(text, str):
        raise SpaceError(f"version() takes one string such as version('0.25'), not {text!r}")
    return version_tuple(text)


def _capability(major: object, minor: object) -> object:
    if not isinstance(major, int) or not isinstance(minor, int):
        raise SpaceError(f"capability() takes two integers such as capability(8, 9), not {major!r} and {minor!r}")
    return (major, minor)


def _extreme(pick: Callable[..., object]) -> Callable[..., object]:
    def function(*values: object) -> object:
        if any(value is UNKNOWN or value is None for value in values):
            return UNKNOWN
        return pick(*values)

    return function


_FUNCTIONS: Mapping[str, Callable[..., object]] = {
    "version": _version,
    "capability": _capability,
    "known": lambda value: value is not UNKNOWN,
    "min": _extreme(min),
    "max": _extreme(max),
}


class Expression:
    """A parsed expression. `names` has every dotted name in it, without the functions.

    Its parts are compiled into functions once: a search evaluates each expression thousands of times.

    Raises:
        SpaceError: at construction, with the part that the subset does not allow.
    """

    def __init__(self, source: str) -> None:
        self.source = source
        if len(source) > _MAX_LENGTH:
            raise SpaceError(f"the expression is {len(source)} characters long; shorten it to at most {_MAX_LENGTH}")
        try:
            body = ast.parse(source.strip(), mode="eval").body
            _check(body, source)
            self.names = frozenset(_names(body))
            self._evaluate = _compiled(body)
        except SpaceError:
            raise
        except (SyntaxError, ValueError) as error:
            raise SpaceError(
                f"the expression {source!r} does not parse ({error.args[0]}); see docs/search-space.md"
            ) from None
        except (RecursionError, MemoryError):
            raise SpaceError(f"the expression {source!r} is nested too deep; shorten it") from None

    def __repr__(self) -> str:
        return f"Expression({self.source!r})"

    def evaluate(self, lookup: Lookup) -> object:
        """Return the value, or `UNKNOWN`.

        Raises:
            SpaceError: if types do not match, as in `"a" < 3`, or a number is too large to compute with.
        """
        try:
            return self._evaluate(lookup)
        except TypeError as error:
            raise SpaceError(
                f"the expression {self.source!r} mixes types ({error}); compare values of one type"
            ) from None
        except ArithmeticError as error:
            raise SpaceError(f"the expression {self.source!r} overflows ({error}); use smaller numbers") from None
        except RecursionError:
            raise SpaceError(f"the expression {self.source!r} is nested too deep; shorten it") from None

    def holds(self, lookup: Lookup) -> bool | None:
        """Return whether the expression is true; None if that is unknown."""
        value = self.evaluate(lookup)
        return None if value is UNKNOWN else bool(value)


@cache
def parsed(source: str) -> Expression:
    """Return the parsed expression of a text; equal texts are parsed once."""
    return Expression(source)


def _check(node: ast.expr, source: str) -> None:
    children: list[ast.expr] = []
    match node:
        case ast.Constant(value=bool() | int() | float() | str() | None):
            pass
        case ast.Name() | ast.Attribute():
            _dotted(node, source)
        case ast.Tuple(elts=items) | ast.List(elts=items) | ast.BoolOp(values=items):
            children = items
        case ast.UnaryOp(op=ast.Not() | ast.USub(), operand=operand):
            children = [operand]
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _ARITHMETIC:
            children = [left, right]
        case ast.Compare(left=left, ops=ops, comparators=rest) if all(_comparable(op) for op in ops):
            children = [left, *rest]
        case ast.Call(func=ast.Name(id=name), args=items, keywords=[]) if name in _FUNCTIONS:
            children = items
        case _:
            raise _refused(node, source)
    for child in children:
        _check(child, source)


def _refused(node: ast.expr, source: str) -> SpaceError:
    part = ast.unparse(node)
    return SpaceError(
        f"{part!r} is not allowed in the expression {source!r}; use names, numbers, strings, comparisons, "
        f"and/or/not, arithmetic, in, and {', '.join(sorted(_FUNCTIONS))}"
    )


def _comparable(op: ast.cmpop) -> bool:
    return type(op) in _ORDERINGS or isinstance(op, ast.Eq | ast.NotEq | ast.In | ast.NotIn)


def _dotted(node: ast.expr, source: str) -> str:
    match node:
        case ast.Name(id=name) if not name.startswith("_"):
            return name
        case ast.Attribute(value=value, attr=attr) if not attr.startswith("_"):
            return f"{_dotted(value, source)}.{attr}"
    raise _refused(node, source)


def _names(node: ast.expr) -> list[str]:
    if isinstance(node, ast.Name | ast.Attribute):
        return [ast.unparse(node)]
    children = node.args if isinstance(node, ast.Call) else ast.iter_child_nodes(node)
    return [name for child in children if isinstance(child, ast.expr) for name in _names(child)]


def _compiled(node: ast.expr) -> Evaluator:
    """Return the function that computes a checked node."""
    match node:
        case ast.Constant(value=constant):
            return lambda _: constant
        case ast.Name() | ast.Attribute():
            name = ast.unparse(node)
            return lambda lookup: lookup(name)
        case ast.Tuple(elts=items) | ast.List(elts=items):
            return _folded(items, _tuple([_compiled(item) for item in items]))
        case ast.BoolOp(op=op, values=items):
            return _connection(isinstance(op, ast.Or), [_compiled(item) for item in items])
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return _negation(_compiled(operand))
        case ast.UnaryOp(operand=operand):
            return _minus(_compiled(operand))
        case ast.BinOp(left=left, op=op, right=right):
            return _calculation(op, _compiled(left), _compiled(right))
        case ast.Compare(left=left, ops=ops, comparators=rest):
            return _comparison([_comparator(op) for op in ops], _compiled(left), [_compiled(each) for each in rest])
        case ast.Call(func=ast.Name(id=name), args=items):
            return _folded(items, _call(_FUNCTIONS[name], [_compiled(item) for item in items]))
    raise _refused(node, ast.unparse(node))


def _folded(items: list[ast.expr], function: Evaluator) -> Evaluator:
    """Return a function of constants as its value; one that raises an error does so whenever it is evaluated."""
    if not all(isinstance(item, ast.Constant) for item in items):
        return function
    try:
        value = function(lambda _: UNKNOWN)
    except (SpaceError, TypeError, ArithmeticError):
        return function
    return lambda _: value


def _tuple(items: list[Evaluator]) -> Evaluator:
    def evaluate(lookup: Lookup) -> object:
        values = tuple([item(lookup) for item in items])
        return UNKNOWN if UNKNOWN in values else values

    return evaluate


def _call(function: Callable[..., object], items: list[Evaluator]) -> Evaluator:
    return lambda lookup: function(*[item(lookup) for item in items])


def _connection(decisive: bool, items: list[Evaluator]) -> Evaluator:
    """Return Kleene's `or` (decisive True) or `and` (decisive False) of the items."""

    def evaluate(lookup: Lookup) -> object:
        unknown = False
        for item in items:
            value = item(lookup)
            if value is UNKNOWN:
                unknown = True
            elif bool(value) is decisive:
                return decisive
        return UNKNOWN if unknown else not decisive

    return evaluate


def _negation(operand: Evaluator) -> Evaluator:
    def evaluate(lookup: Lookup) -> object:
        value = operand(lookup)
        return UNKNOWN if value is UNKNOWN else not value

    return evaluate


def _minus(operand: Evaluator) -> Evaluator:
    def evaluate(lookup: Lookup) -> object:
        value = operand(lookup)
        if value is UNKNOWN or value is None:
            return UNKNOWN
        if not isinstance(value, int | float):
            raise TypeError(f"-{value!r}")
        return -value

    return evaluate


def _calculation(op: ast.operator, left: Evaluator, right: Evaluator) -> Evaluator:
    calculate, divides = _ARITHMETIC[type(op)], isinstance(op, ast.Div | ast.FloorDiv | ast.Mod)

    def evaluate(lookup: Lookup) -> object:
        one, other = left(lookup), right(lookup)
        if one is UNKNOWN or other is UNKNOWN or one is None or other is None:
            return UNKNOWN
        if not isinstance(one, int | float) or not isinstance(other, int | float):
            raise TypeError(f"arithmetic with {one!r} and {other!r}")
        return UNKNOWN if divides and other == 0 else calculate(one, other)

    return evaluate


Comparator = Callable[[object, object], bool | Unknown]
"""Compares two values, which may be unknown."""


def _comparison(comparators: list[Comparator], first: Evaluator, rest: list[Evaluator]) -> Evaluator:
    if len(comparators) == 1:
        compare, second = comparators[0], rest[0]
        return lambda lookup: compare(first(lookup), second(lookup))

    def evaluate(lookup: Lookup) -> object:
        left = first(lookup)
        unknown = False
        for compare, operand in zip(comparators, rest, strict=True):
            right = operand(lookup)
            answer = compare(left, right)
            if answer is UNKNOWN:
                unknown = True
            elif not answer:
                return False
            left = right
        return UNKNOWN if unknown else True

    return evaluate


def _comparator(op: ast.cmpop) -> Comparator:
    if isinstance(op, ast.Eq | ast.NotEq):
        return _equality(isinstance(op, ast.Eq))
    if isinstance(op, ast.In | ast.NotIn):
        return _membership(isinstance(op, ast.In))
    return _order(_ORDERINGS[type(op)])


def _equality(wanted: bool) -> Comparator:
    def compare(left: object, right: object) -> bool | Unknown:
        return UNKNOWN if left is UNKNOWN or right is UNKNOWN else (left == right) is wanted

    return compare


def _membership(wanted: bool) -> Comparator:
    def compare(left: object, right: object) -> bool | Unknown:
        if left is UNKNOWN or right is UNKNOWN:
            return UNKNOWN
        if not isinstance(right, tuple | frozenset | str):
            raise TypeError(f"{right!r} is not a tuple or string")
        return (left in right) is wanted

    return compare


def _order(ordered: Callable[[Any, Any], bool]) -> Comparator:
    def compare(left: object, right: object) -> bool | Unknown:
        if left is UNKNOWN or right is UNKNOWN or left is None or right is None:
            return UNKNOWN
        return ordered(left, right)

    return compare


VLLM_NAME = "vLLM"
"""The engine's name in texts, unless a context has another."""


@dataclass(frozen=True)
class Context:
    """The facts that a space is resolved for. None means unknown, and an unknown fact excludes nothing.

    Attributes:
        hardware: the card.
        engine_version: the engine's version, such as `0.25.1`.
        flags: option strings of the installed engine; a parameter with another flag is dropped.
        model: the shape of the model.
        packages: packages that the engine's environment can import.
        concurrency: requests in flight at most.
        input_len, output_len: tokens of the longest prompt and of the longest answer.
        priorities: whether the workload's requests have different priorities.
        request_rate: requests/s that arrive on average.
        prefix_len: tokens of the longest prefix that prompts share; 0 without one.
        repetitive: whether the workload's text repeats, so that drafts can be looked up in it.
        temperature: of the sampling; 0 is greedy.
        tpot_ms, ttft_ms: the lowest upper bounds of SLOs on TPOT and TTFT.
        draft_model: a model for speculative decoding.
        draft_kind: what the draft model is: `model`, `eagle3` or `mtp`.
        checkpoints: the checkpoint of each quantization method that a study offers.
        checkpoint_shapes: the shape of each checkpoint, as far as its config.json is on this machine.
        engine: the engine's name in texts.
        cores: the processor cores that a server may use.
        host_memory_gib: the host's memory.
        shm_gib: the size of `/dev/shm`, which the processes of a server share.
        gpus: the GPUs of a trial.
        nodes: over which they are spread evenly.
        simulated: whether the engine is simulated.
        base_argv: server arguments that the study sets. Parameters that they set are dropped, and expressions use their
            values.
    """

    hardware: HardwareProfile
    engine_version: str | None = None
    flags: frozenset[str] | None = None
    model: ModelShape | None = None
    packages: frozenset[str] | None = None
    concurrency: int | None = None
    input_len: int | None = None
    output_len: int | None = None
    priorities: bool | None = None
    request_rate: float | None = None
    prefix_len: int | None = None
    repetitive: bool | None = None
    temperature: float | None = None
    tpot_ms: float | None = None
    ttft_ms: float | None = None
    draft_model: str | None = None
    draft_kind: str | None = None
    checkpoints: Mapping[str, str] = field(default_factory=dict)
    checkpoint_shapes: Mapping[str, ModelShape] = field(default_factory=dict)
    base_argv: tuple[str, ...] = ()
    engine: str = VLLM_NAME
    cores: int | None = None
    gpus: int = 1
    nodes: int = 1
    host_memory_gib: float | None = None
    shm_gib: float | None = None
    simulated: bool | None = None


_KINDS_OF_MODELS: Mapping[str, Callable[[ModelShape], object]] = {
    "model.latent": lambda model: model.has_latent_attention if model.groups else None,
    "model.recurrent": lambda model: model.has_recurrent_layers if model.groups else None,
    "model.windowed": lambda model: model.has_windows if model.groups else None,
    "model.multimodal": lambda model: model.beside > 0,
    "model.weight_bits": lambda model: model.stored_bits if model.quantization is None else model.weight_bits,
    "model.weight_type": lambda model: "float" if model.quantization is None else model.weight_type,
    "model.weight_blocks": lambda model: model.weight_blocks,
}
"""Facts of a model's kind and of its checkpoint's format, by their names; None is unknown."""


def _model_facts(model: ModelShape | None, version: tuple[int, ...] | None) -> dict[str, object]:
    names = ("layers", "hidden", "intermediate", "heads", "kv_heads", "head_dim", "vocab")
    facts: dict[str, object] = {f"model.{name}": None if model is None else getattr(model, name) for name in names}
    facts["model.dtype"] = None if model is None else model.dtype.removeprefix("torch.")
    facts["model.quantization"] = None if model is None else (model.quantization or "none")
    facts["model.max_position_embeddings"] = None if model is None else model.longest_context(version)
    facts["model.default_context"] = None if model is None else model.default_context or model.longest_context(version)
    known = model is not None and model.has_known_weights and bool(model.groups)
    weights = model.weight_bytes() if model is not None and known else None
    facts["model.weight_gib"] = None if weights is None else weights / GIB
    facts["model.experts"] = None if model is None else model.experts
    facts["model.draft_layers"] = None if model is None else model.draft_layers
    facts |= {name: None if model is None else kind(model) for name, kind in _KINDS_OF_MODELS.items()}
    per_token = 0 if model is None else model.kv_bytes_per_token(2)
    facts["model.kv_gib_per_token"] = per_token / GIB if per_token else None
    return facts


_OF_CARD = ("name", "key", "vendor", "compute_capability", "memory_gib", "bandwidth_gbs")
_OF_CONTEXT = {
    "hardware": ("cores", "gpus", "nodes", "host_memory_gib", "shm_gib"),
    "workload": ("concurrency", "input_len", "output_len", "priorities", "prefix_len", "repetitive", "temperature"),
    "slo": ("tpot_ms", "ttft_ms"),
}
"""Facts that are called as a field of the card or of the context."""


def facts_of(context: Context) -> dict[str, object]:
    """Return every fact by its dotted name; `UNKNOWN` where the context has None.

    `model.quantization` is "none" for a known model that is not quantized.
    """
    version = None if context.engine_version is None else version_tuple(context.engine_version)
    facts: dict[str, object] = {
        **{f"hardware.{name}": getattr(context.hardware, name) for name in _OF_CARD},
        **{f"{part}.{name}": getattr(context, name) for part, names in _OF_CONTEXT.items() for name in names},
        "engine.version": version,
        "engine.flags": context.flags,
        "engine.packages": context.packages,
        "engine.simulated": context.simulated,
        "engine.random_weights": has_random_weights(context.base_argv),
        "workload.rate": context.request_rate,
        "draft.kind": context.draft_kind,
        **_model_facts(context.model, version),
    }
    return {name: UNKNOWN if value is None else value for name, value in facts.items()}


CHECKPOINT_FACTS = ("weight_bits", "activation_bits", "weight_type")
"""Facts of the checkpoint of a choice, as `checkpoint.weight_bits`, which only a requirement of that choice has."""


def checkpoint_fact(shape: ModelShape | None, name: str) -> object:
    """Return a fact of a choice's checkpoint by its dotted name; `UNKNOWN` where it is not known."""
    value = None if shape is None else getattr(shape, name.removeprefix("checkpoint."))
    return UNKNOWN if value is None else value


FACT_NAMES = frozenset(facts_of(Context(HardwareProfile("", "", "cpu", None, None, None))))
"""The names of all facts that an expression may use."""


def shown_fact(name: str, value: object) -> str:
    """Return a fact as text: a version with dots, a compute capability such as 7.5."""
    if isinstance(value, tuple):
        return ".".join(str(part) for part in value)
    return "unknown" if value is UNKNOWN else str(value)
