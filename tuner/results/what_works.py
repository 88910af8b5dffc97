"""What to change where the defaults fail: the parameters that the server's own message names, with its numbers."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from records.trials import Failure
from search_spaces import ParameterValue, ResolvedSpace
from search_spaces.parameter import Parameter
from tuner.results.text import number


@dataclass(frozen=True)
class Wish:
    """A change that a message asks for.

    Attributes:
        name: of the parameter or variable, without dashes and prefixes: `max_model_len`.
        higher: whether the value has to rise.
        bound: the message's number; the largest value of a parameter that has to fall, or else what it has to exceed.
    """

    name: str
    higher: bool
    bound: float | None = None

    def __str__(self) -> str:
        at = "" if self.bound is None else f" ({'above' if self.higher else 'at most'} {number(self.bound)})"
        return f"a {'higher' if self.higher else 'lower'} {self.name}{at}"


_VERB = re.compile(
    r"\b(?:(?P<higher>increas(?:e|ing)|rais(?:e|ing))|decreas(?:e|ing)|lower(?:ing)?|reduc(?:e|ing))\b", re.I
)
_SENTENCE = re.compile(r"\.(?:\s|$)|\n")
_NAME = re.compile(r"(?:--|\b)(?:[a-z]\w*\.)*([A-Za-z]+(?:[_-][A-Za-z]+)+)\b")
_TO_A_VALUE = re.compile(r"\bset --([\w-]+) to a (?:smaller|(?P<higher>larger|higher)) value")
_NUMBER = re.compile(r"\b(?:at most|above|below) (\d+(?:\.\d+)?)\b")
_BOUNDS = (
    (re.compile(r"estimated maximum model length is (\d+)"), "max_model_len", 1.0),
    (re.compile(r"can be stored in KV cache \((\d+)\)"), "max_model_len", 1.0),
    (re.compile(r"exceeds available Mamba cache blocks \((\d+)\)"), "max_num_seqs", 1.0),
    (re.compile(r"sampler with (\d+) dummy requests"), "max_num_seqs", 0.5),
)
"""Numbers that stand apart from the parameter, and the share of one that the parameter may have."""


def wishes(text: str) -> list[Wish]:
    """Return the changes that a server's message asks for, those with a number first."""
    found: dict[str, Wish] = {}
    for name, higher, bound in (*_asked(text), *_set(text)):
        found.setdefault(name, Wish(name, higher, _bound(text, name) if bound is None else bound))
    for _, name, _ in _BOUNDS:  # the sentence with the verb may be cut off
        if (bound := _bound(text, name)) is not None:
            found.setdefault(name, Wish(name, False, bound))
    return sorted(found.values(), key=lambda wish: wish.bound is None)


def _asked(text: str) -> Iterator[tuple[str, bool, float | None]]:
    """Yield what stands after "increase", "lowering" and the like, up to the next verb or the end of the sentence."""
    for verb, following in itertools.pairwise([*_VERB.finditer(text), None]):
        assert verb is not None
        rest = text[verb.end() : following.start() if following else None]
        clause = _SENTENCE.split(rest, maxsplit=1)[0]
        if "will not help" in clause:
            continue
        bound = _NUMBER.search(clause)
        for name in _NAME.findall(clause.replace("`", "")):
            yield name.replace("-", "_"), verb["higher"] is not None, float(bound[1]) if bound else None


def _set(text: str) -> Iterator[tuple[str, bool, None]]:
    yield from ((each[1].replace("-", "_"), each["higher"] is not None, None) for each in _TO_A_VALUE.finditer(text))


def _bound(text: str, name: str) -> float | None:
    for pattern, of, share in _BOUNDS:
        found = pattern.search(text)
        if found is not None and of == name:
            return int(found[1]) * share
    return None


_LESS_MEMORY = (
    "max_num_seqs",
    "max_num_batched_tokens",
    "mem_fraction_static",
    "ctx_size",
    "max_batch_size",
    "max_num_tokens",
)
"""Parameters of the engines that lower the memory of a start, for a message that names none."""
_LESS = 0.25
"""The share of such a parameter's value that is advised."""
_SHARE_LESS = 0.1
"""By how much a share of the memory is lowered where the message has no number."""


def asked(failure: Failure) -> str:
    """Return what a failure's message asks for, `a lower max_model_len (at most 8,192) or a higher …`; or nothing."""
    return " or ".join(map(str, _wishes_of(failure)))


def _wishes_of(failure: Failure) -> list[Wish]:
    return wishes(f"{failure.message}\n{failure.evidence or ''}")


def what_works(failure: Failure, space: ResolvedSpace) -> tuple[str, dict[str, ParameterValue]]:
    """Return what the user can change so that a first configuration starts, as text and as a configuration.

    The configuration is an example; it is empty where the space has none.

    Args:
        failure: of the defaults.
        space: the study's space, which has the values that a configuration can have.
    """
    found = _wishes_of(failure)
    if found:
        config = next((one for wish in found if (one := _with(space, {}, wish))), {})
        return f"the server asks for {asked(failure)}", config
    if failure.kind.lacks_memory:
        return "the server lacks memory, and its message names no flag", _with_less_memory(space)
    return "give a configuration that works", {}


def _with_less_memory(space: ResolvedSpace) -> dict[str, ParameterValue]:
    """Return the first two parameters that lower the memory of a start, with values that do."""
    config: dict[str, ParameterValue] = {}
    for name in _LESS_MEMORY:
        value = _default(space, name)
        if value is None or len(config) == 2:
            continue
        config = _with(space, config, Wish(name, higher=False, bound=value * _LESS if value > 1 else None)) or config
    return config


def _with(space: ResolvedSpace, config: dict[str, ParameterValue], wish: Wish) -> dict[str, ParameterValue]:
    """Return a configuration of the space with the wished change; empty without one."""
    parameter = next((each for each in space.parameters if each.name == wish.name), None)
    if parameter is None:
        return {}
    for value in _values(parameter, wish, _default(space, wish.name)):
        wanted = {**config, wish.name: value}
        if space.contains(wanted) and not space.violations(wanted):
            return wanted
    return {}


def _default(space: ResolvedSpace, name: str) -> float | None:
    """Return the engine's own value; None for an unknown one and for one that is no number."""
    value = space.known_defaults().get(name)
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None


def _values(parameter: Parameter, wish: Wish, default: float | None) -> Iterable[int | float]:
    """Return the parameter's numbers that fulfil a wish, the best first: the largest ones."""
    numbers = parameter.listed() if parameter.size() is not None else ()
    known = [each for each in numbers if isinstance(each, int | float) and not isinstance(each, bool)]
    if wish.higher:
        least = max(each for each in (default, wish.bound, 0.0) if each is not None)
        return sorted((each for each in known if each > least), reverse=True)
    most = wish.bound
    if most is None and default is not None:
        most = default - _SHARE_LESS if default <= 1 else default / 2
    return sorted((each for each in known if most is not None and each <= most), reverse=True)
