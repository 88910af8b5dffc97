"""Loads a space from YAML: includes, checks of names, and errors with file and line."""

from __future__ import annotations

import difflib
from functools import cache
from pathlib import Path

import yaml
from pydantic import ValidationError

from search_spaces.argv import conflicting_keys
from search_spaces.errors import SpaceError
from search_spaces.expressions import CHECKPOINT_FACTS, FACT_NAMES, UNKNOWN, parsed
from search_spaces.parameter import EFFECTIVE
from search_spaces.schema import VLLM, NamedConfig, ParameterSpec, RuleSpec, SpaceSpec
from search_spaces.space import Space
from search_spaces.yaml_file import SIZE_LIMIT, YamlError, parse_yaml, read_yaml

_FOLDERS = {
    VLLM: Path(__file__).with_name("vllm"),
    "llama.cpp": Path(__file__).with_name("llama_cpp"),
    "sglang": Path(__file__).with_name("sglang"),
    "tensorrt-llm": Path(__file__).with_name("tensorrt_llm"),
}
"""The folder of the shipped spaces of each engine."""

_PART = "_"

FILE_LIMIT = 50
"""The most files of a space; a file that is included twice counts twice."""

_PARAMETER_LIMIT = 200
COST_LIMIT = 1000
"""The most defaults that are computed for one default that depends on others."""


def space_names(engine: str = VLLM) -> list[str]:
    """Return the names of an engine's shipped spaces; files whose names start with `_` are parts of others."""
    files = _FOLDERS[engine].glob("*.yaml") if engine in _FOLDERS else ()
    return sorted(path.stem for path in files if not path.name.startswith(_PART))


def load_space(name: str | Path) -> Space:
    """Return a shipped space by its name, or the space of a YAML file (a path that ends in .yaml or .yml).

    Loading checks the format, the names in all expressions, and the named configurations.

    Raises:
        SpaceError: if there is no such space, or (with file and line) it is not valid.
    """
    path = Path(name)
    if path.suffix not in (".yaml", ".yml"):
        names = [each for engine in _FOLDERS for each in space_names(engine)]
        if str(name) not in names:
            raise SpaceError(f"no search space is called {str(name)!r}; give a .yaml file or one of {', '.join(names)}")
        return _shipped(str(name))
    return _Reader().read_space(path)


def parse_space(text: str, name: str = "space") -> Space:
    """Return the space of a YAML text from outside, which can include no file.

    Raises:
        SpaceError: with name and line, if it is not valid.
    """
    content = text.encode("utf-8", "replace")
    if len(content) > SIZE_LIMIT:
        raise SpaceError(f"{name}: the text has {len(content):,} bytes, and {SIZE_LIMIT:,} are possible; shorten it")
    return _Reader(content).read_space(Path(name))


@cache
def _shipped(name: str) -> Space:
    folder = next(folder for engine, folder in _FOLDERS.items() if name in space_names(engine))
    return _Reader().read_space(folder / f"{name}.yaml")


class _Reader:
    """Reads the files of a space, or one text, and records the file and line of each part, for error messages."""

    def __init__(self, text: bytes | None = None) -> None:
        self.text = text
        self.parameters: dict[str, ParameterSpec] = {}
        self.rules: dict[str, RuleSpec] = {}
        self.named: dict[str, NamedConfig] = {}
        self.places: dict[tuple[str, str], str] = {}
        self.files = 0

    def read_space(self, path: Path) -> Space:
        spec = self._read(path, ())
        if not self.parameters:
            raise SpaceError(f"{path}: the space has no parameters; add `parameters:`")
        if len(self.parameters) > _PARAMETER_LIMIT:
            rule = f"the space has {len(self.parameters)} parameters, and {_PARAMETER_LIMIT} are possible"
            raise SpaceError(f"{path}: {rule}; leave some out")
        self._check_references()
        self._check_json_keys()
        rules = tuple(self.rules.values())
        space = Space(path.stem, spec.description, self.parameters, rules, self.named, spec.engine)
        for name, named in self.named.items():
            if named.when is not None:
                self._check(named.when, FACT_NAMES, f"{self.places['named', name]}: when of {name!r}")
            try:
                space.check_named(named.config)
            except SpaceError as error:
                raise SpaceError(f"{self.places['named', name]}: named configuration {name!r}: {error}") from None
        return space

    def _read(self, path: Path, including: tuple[Path, ...], place: str | None = None) -> SpaceSpec:
        """Read a file and those that it includes; `place` is the file and line that include it."""
        if _resolved(path) in including:
            raise SpaceError(f"{path}: the file includes itself; remove the circular include")
        self.files += 1
        if self.files > FILE_LIMIT:
            raise SpaceError(f"{path}: the space includes more than {FILE_LIMIT} files; include each once")
        spec, node = _parse(path, place, self.text)
        if spec.include and self.text is not None:
            raise SpaceError(f"{path}:{_line(node, ('include',))}: a text can include no file; write all in one")
        for index, part in enumerate(spec.include):
            line = _line(node, ("include", index))
            self._read(path.parent / part, (*including, _resolved(path)), f"{path}:{line}")
        self._add(spec, node, path)
        return spec

    def _add(self, spec: SpaceSpec, node: yaml.Node, path: Path) -> None:
        for name in spec.parameters:
            self._place("parameters", name, f"{path}:{_line(node, ('parameters', name))}")
        for name in spec.named:
            self._place("named", name, f"{path}:{_line(node, ('named', name))}")
        for index, rule in enumerate(spec.rules):
            self._place("rules", rule.name, f"{path}:{_line(node, ('rules', index))}")
        self.parameters.update(spec.parameters)
        self.named.update(spec.named)
        self.rules.update({rule.name: rule for rule in spec.rules})

    def _place(self, kind: str, name: str, place: str) -> None:
        first = self.places.setdefault((kind, name), place)
        if first != place:
            raise SpaceError(f"{place}: {name!r} is already in {kind} at {first}; keep one of them")

    def _check_references(self) -> None:
        declared: set[str] = set()
        everything = set(self.parameters) | {f"{EFFECTIVE}{name}" for name in self.parameters} | FACT_NAMES
        for name, spec in self.parameters.items():
            place = self.places["parameters", name]
            if spec.when is not None:
                above = declared | {f"{EFFECTIVE}{parameter}" for parameter in declared} | FACT_NAMES
                self._check(spec.when, above, f"{place}: when of {name!r}")
            each = {"value"} if spec.choices else set()
            for requirement in spec.requires:
                self._check(requirement.rule, FACT_NAMES | each, f"{place}: a requirement of {name!r}")
            for choice in spec.choices:
                own = set() if choice.checkpoint is None else {f"checkpoint.{fact}" for fact in CHECKPOINT_FACTS}
                for requirement in choice.requires:
                    self._check(requirement.rule, FACT_NAMES | each | own, f"{place}: a requirement of {name!r}")
            for source in _default_expressions(spec):
                self._check(source, everything, f"{place}: engine_default of {name!r}")
            declared.add(name)
        for rule in self.rules.values():
            self._check(rule.forbid, everything, f"{self.places['rules', rule.name]}: rule {rule.name!r}")
        self._check_defaults()

    def _check_defaults(self) -> None:
        """Refuse defaults that depend on themselves, or on so many others that they cannot be computed."""
        costs: dict[str, int] = {}

        def cost(name: str, above: tuple[str, ...]) -> int:
            place = f"{self.places['parameters', name]}: engine_default of {name!r}"
            if name in above:
                raise SpaceError(f"{place} depends on itself by `effective.{name}`; leave that out")
            if name not in costs:
                found = 1
                for source in _default_expressions(self.parameters[name]):
                    for other in parsed(source).names & {f"{EFFECTIVE}{each}" for each in self.parameters}:
                        found += source.count(other) * cost(other.removeprefix(EFFECTIVE), (*above, name))
                if found > COST_LIMIT:
                    raise SpaceError(f"{place} depends on more than {COST_LIMIT} other defaults; use fewer")
                costs[name] = found
            return costs[name]

        for name in self.parameters:
            cost(name, ())

    def _check_json_keys(self) -> None:
        keys: dict[str, set[str]] = {}
        for name, spec in self.parameters.items():
            if spec.json_target is None:
                continue
            mine = {spec.json_target.key, *(key for choice in spec.choices for key in choice.json_object or ())}
            known = keys.setdefault(spec.json_target.flag, set())
            known |= mine
            pair = conflicting_keys(known)
            if pair is not None:
                rule = f"the keys {pair[0]!r} and {pair[1]!r} of {spec.json_target.flag} exclude each other"
                raise SpaceError(f"{self.places['parameters', name]}: {name!r}: {rule}; rename one of them")

    def _check(self, source: str, allowed: set[str] | frozenset[str], where: str) -> None:
        expression = parsed(source)
        try:
            expression.evaluate(lambda _: UNKNOWN)  # the parts without names
        except SpaceError as error:
            raise SpaceError(f"{where}: {error}") from None
        for name in sorted(expression.names - allowed):
            near = difflib.get_close_matches(name, sorted(allowed), n=1)
            if name in self.parameters:
                hint = "a condition may use parameters that are declared above it, and a requirement facts only"
            else:
                hint = f"did you mean {near[0]!r}?" if near else "use a declared parameter or a fact"
            raise SpaceError(f"{where} uses {name!r}; {hint}")


def _default_expressions(spec: ParameterSpec) -> list[str]:
    cases = spec.engine_default if isinstance(spec.engine_default, tuple) else ()
    return [source for case in cases for source in (case.when, case.expression) if source is not None]


def _resolved(path: Path) -> Path:
    """Return the path without links; one with a null character, which no file has, as it is."""
    return path if "\0" in str(path) else path.resolve()


def _parse(path: Path, place: str | None, text: bytes | None) -> tuple[SpaceSpec, yaml.Node]:
    try:
        file = read_yaml(path) if text is None else parse_yaml(text, path)
    except OSError as error:
        what = f"{path}: the search space" if place is None else f"{place}: the included {str(path)!r}"
        raise SpaceError(f"{what} cannot be read ({error.strerror}); check the path") from None
    except YamlError as error:
        raise SpaceError(f"{error.place}: not valid YAML ({error.reason}); correct that line") from None
    node = file.node
    if not isinstance(node, yaml.MappingNode):
        raise SpaceError(f"{path}:1: a search space is a mapping; start it with `parameters:`")
    _refuse_duplicates(node, path)
    try:
        return SpaceSpec.model_validate(file.data), node
    except ValidationError as error:
        raise _schema_error(error, node, path) from None


def _refuse_duplicates(node: yaml.Node, path: Path) -> None:
    seen: set[str] = set()
    children: list[yaml.Node] = []
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            if key.value in seen:
                line = key.start_mark.line + 1
                raise SpaceError(f"{path}:{line}: the key {key.value!r} occurs twice; keep one of them")
            seen.add(key.value)
            children.append(value)
    elif isinstance(node, yaml.SequenceNode):
        children = list(node.value)
    for child in children:
        _refuse_duplicates(child, path)


def _schema_error(error: ValidationError, node: yaml.Node, path: Path) -> SpaceError:
    first = error.errors()[0]
    place = tuple(part for part in first["loc"] if isinstance(part, str | int))
    dotted = ".".join(str(part) for part in place if part in _parts_in_file(node, place))
    reason = str(first["msg"]).removeprefix("Value error, ")
    if first["type"] == "extra_forbidden":
        reason = "this key does not exist; see docs/search-space.md"
    elif first["type"] == "missing":
        near = difflib.get_close_matches(str(place[-1]), _keys(node, place[:-1]), 1, 0.7)
        hint = f"write it in place of {near[0]!r}" if near else "add it"
        dotted, reason = ".".join(str(part) for part in place), f"this key is missing; {hint}"
    return SpaceError(f"{path}:{_line(node, place)}: {dotted or 'the space'}: {' '.join(reason.split())}")


def _parts_in_file(node: yaml.Node, place: tuple[str | int, ...]) -> set[str | int]:
    """Return the parts of a pydantic location that are in the file; pydantic adds names of union members."""
    parts: set[str | int] = set()
    for part in place:
        found = _child(node, part)
        if found is not None:
            parts.add(part)
            node = found[1]
    return parts


def _child(node: yaml.Node, part: str | int) -> tuple[yaml.Node, yaml.Node] | None:
    """Return where a part of a node begins, at its key if it has one, and the part itself; None if it is not there."""
    if isinstance(node, yaml.MappingNode):
        return next(((key, value) for key, value in node.value if key.value == str(part)), None)
    if isinstance(node, yaml.SequenceNode) and isinstance(part, int) and part < len(node.value):
        return node.value[part], node.value[part]
    return None


def _keys(node: yaml.Node, place: tuple[str | int, ...]) -> list[str]:
    """Return the keys of the deepest mapping of `place` that is in the file."""
    for part in place:
        found = _child(node, part)
        node = node if found is None else found[1]
    return [str(key.value) for key, _ in node.value] if isinstance(node, yaml.MappingNode) else []


def _line(node: yaml.Node, place: tuple[str | int, ...]) -> int:
    """Return the 1-based line of the deepest part of `place` that is in the file."""
    line: int = node.start_mark.line + 1
    for part in place:
        found = _child(node, part)
        if found is not None:
            line = found[0].start_mark.line + 1
            node = found[1]
    return line
