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

    Raises:
        SpaceError: at construction, with the part that the subset does not allow.
    """

    def __init__(self, source: str) -> None:
        self.source = source
        if len(source) > _MAX_LENGTH:
            raise SpaceError(f"the expression is {len(source)} characters long; shorten it to at most {_MAX_LENGTH}")
        try:
            self._body = ast.parse(source.strip(), mode="eval").body
            _check(self._body, source)
            self.names = frozenset(_names(self._body))
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
            return _evaluate(self._body, lookup)
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


@cache
def _name_of(node: ast.expr) -> str:
    """Return a name as it is written. The cache keeps working, because parsed expressions are never freed."""
    return ast.unparse(node)


def _evaluate(node: ast.expr, lookup: Lookup) -> object:
    match node:
        case ast.Constant(value=value):
            return value
        case ast.Name() | ast.Attribute():
            return lookup(_name_of(node))
        case ast.Tuple(elts=items) | ast.List(elts=items):
            values = tuple(_evaluate(item, lookup) for item in items)
            return UNKNOWN if UNKNOWN in values else values
        case ast.BoolOp(op=op, values=items):
            return _connect(isinstance(op, ast.Or), items, lookup)
        case ast.UnaryOp(op=op, operand=operand):
            return _unary(op, _evaluate(operand, lookup))
        case ast.BinOp(left=left, op=op, right=right):
            return _calculate(op, _evaluate(left, lookup), _evaluate(right, lookup))
        case ast.Compare():
            return _compare(node, lookup)
        case ast.Call(func=ast.Name(id=name), args=items):
            return _FUNCTIONS[name](*(_evaluate(item, lookup) for item in items))
    raise _refused(node, ast.unparse(node))


def _connect(decisive: bool, items: list[ast.expr], lookup: Lookup) -> object:
    """Return Kleene's `or` (decisive True) or `and` (decisive False) of the items."""
    unknown = False
    for item in items:
        value = _evaluate(item, lookup)
        if value is UNKNOWN:
            unknown = True
        elif bool(value) is decisive:
            return decisive
    return UNKNOWN if unknown else not decisive


def _unary(op: ast.unaryop, value: object) -> object:
    if value is UNKNOWN:
        return UNKNOWN
    if isinstance(op, ast.Not):
        return not value
    if value is None:
        return UNKNOWN
    if not isinstance(value, int | float):
        raise TypeError(f"-{value!r}")
    return -value


def _calculate(op: ast.operator, left: object, right: object) -> object:
    if UNKNOWN in (left, right) or left is None or right is None:
        return UNKNOWN
    if not isinstance(left, int | float) or not isinstance(right, int | float):
        raise TypeError(f"arithmetic with {left!r} and {right!r}")
    if right == 0 and isinstance(op, ast.Div | ast.FloorDiv | ast.Mod):
        return UNKNOWN
    return _ARITHMETIC[type(op)](left, right)


def _compare(node: ast.Compare, lookup: Lookup) -> object:
    left = _evaluate(node.left, lookup)
    unknown = False
    for op, comparator in zip(node.ops, node.comparators, strict=True):
        right = _evaluate(comparator, lookup)
        answer = _compare_two(op, left, right)
        if answer is UNKNOWN:
            unknown = True
        elif not answer:
            return False
        left = right
    return UNKNOWN if unknown else True


def _compare_two(op: ast.cmpop, left: object, right: object) -> object:
    if left is UNKNOWN or right is UNKNOWN:
        return UNKNOWN
    if isinstance(op, ast.Eq | ast.NotEq):
        return (left == right) is isinstance(op, ast.Eq)
    if isinstance(op, ast.In | ast.NotIn):
        if not isinstance(right, tuple | frozenset | str):
            raise TypeError(f"{right!r} is not a tuple or string")
        return (left in right) is isinstance(op, ast.In)
    if left is None or right is None:
        return UNKNOWN
    return _ORDERINGS[type(op)](left, right)


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
