#!/usr/bin/env python3
"""Count what makes a checkout hard to find one's way in, and print the counts as a Markdown table.

    python3 scripts/house.py CHECKOUT [CHECKOUT …] [--list]

Each checkout is a column; `--list` prints below the table what was counted. The script reads syntax trees only and
imports nothing of the checkouts.

Measures, over the packages tuner, search_spaces, storage, dashboards and benchmarks:

- public top-level names (classes, functions, constants and aliases) that two or more modules define;
- folders with more than a dozen Python files at one level;
- string constants outside of tuner/cli that name an option of the command line. Docstrings do not count. An option
  whose name is also a flag of vLLM counts only in a text with other words, as a message is;
- functions with more than 40 lines, from the docstring on;
- imports inside functions;
- the median length of functions, in lines from the docstring on.
"""

from __future__ import annotations

import argparse
import ast
import re
import statistics
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

PACKAGES = ("tuner", "search_spaces", "storage", "dashboards", "benchmarks")
CLI_FOLDER = "tuner/cli"
ENGINES_FOLDER = "tuner/engines"
MOST_FILES = 12
MOST_LINES = 40
OPTION = re.compile(r"(?<![\w-])--[a-z][a-z0-9-]*")
COMMON_OPTIONS = {"--help", "--version"}
"""Options that every program has."""

Function = ast.FunctionDef | ast.AsyncFunctionDef
Modules = dict[str, ast.Module]
"""Syntax trees by the module's path in the checkout."""


@dataclass
class House:
    """The measures of one checkout; each list has a line for each thing that counts."""

    name: str
    files: int = 0
    repeated_names: list[str] = field(default_factory=list)
    large_folders: list[str] = field(default_factory=list)
    named_options: list[str] = field(default_factory=list)
    long_functions: list[str] = field(default_factory=list)
    inner_imports: list[str] = field(default_factory=list)
    median_lines: float = 0.0


def read_modules(checkout: Path) -> Modules:
    """Return the syntax tree of every module."""
    paths = sorted(path for package in PACKAGES for path in (checkout / package).rglob("*.py"))
    return {path.relative_to(checkout).as_posix(): ast.parse(path.read_text(encoding="utf-8")) for path in paths}


def is_constant(statement: ast.stmt) -> bool:
    """Return whether a statement is an expression without effect, as a docstring is."""
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)


def top_level_names(module: ast.Module) -> Iterator[str]:
    """Yield the public names that a module defines at its top level."""
    for node in module.body:
        targets: list[ast.expr] = []
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            targets = [ast.Name(node.name)]
        elif isinstance(node, ast.Assign):
            targets = [each for target in node.targets for each in getattr(target, "elts", [target])]
        elif isinstance(node, ast.AnnAssign):
            targets = [node.target]
        yield from (each.id for each in targets if isinstance(each, ast.Name) and not each.id.startswith("_"))


def repeated_names(modules: Modules) -> list[str]:
    """Return the names that several modules define, with the modules."""
    homes: dict[str, list[str]] = defaultdict(list)
    for path, module in modules.items():
        for name in dict.fromkeys(top_level_names(module)):
            homes[name].append(path)
    return [f"{name}: {', '.join(paths)}" for name, paths in sorted(homes.items()) if len(paths) > 1]


def large_folders(modules: Modules) -> list[str]:
    """Return the folders with too many files at one level."""
    counts: dict[str, int] = defaultdict(int)
    for path in modules:
        counts[str(Path(path).parent)] += 1
    return [f"{folder}: {count} files" for folder, count in sorted(counts.items()) if count > MOST_FILES]


def strings(module: ast.Module) -> Iterator[ast.Constant]:
    """Yield the string constants of a module without its docstrings."""
    docs = {id(node.value) for node in ast.walk(module) if isinstance(node, ast.Expr)}
    for node in ast.walk(module):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docs:
            yield node


def mentions_option(node: ast.AST | None, aliases: frozenset[str] = frozenset()) -> bool:
    """Return whether an expression has typer's `Option`, or an alias for an annotation that has it."""
    if node is None:
        return False
    names = {each.attr if isinstance(each, ast.Attribute) else getattr(each, "id", "") for each in ast.walk(node)}
    return "Option" in names or bool(names & aliases)


def cli_options(modules: Modules) -> set[str]:
    """Return the long options of the command line: those given as texts, and those named after a parameter."""
    cli = [module for path, module in modules.items() if path.startswith(f"{CLI_FOLDER}/")]
    texts = {text.value for module in cli for text in strings(module) if OPTION.fullmatch(str(text.value))}
    aliases = frozenset(
        target.id
        for module in cli
        for node in module.body
        if isinstance(node, ast.Assign | ast.AnnAssign) and mentions_option(node.value)
        for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
        if isinstance(target, ast.Name)
    )
    implied = set()
    for module in cli:
        for function in (node for node in ast.walk(module) if isinstance(node, Function)):
            for parameter in (*function.args.args, *function.args.kwonlyargs):
                if mentions_option(parameter.annotation, aliases):
                    implied.add("--" + parameter.arg.replace("_", "-"))
    return {str(text) for text in texts} - COMMON_OPTIONS | implied


def vllm_flags(modules: Modules) -> set[str]:
    """Return the flags of vLLM: the simulator's list, and every flag that is a whole string in an engine."""
    flags = set()
    for path, module in modules.items():
        if not path.startswith(f"{ENGINES_FOLDER}/"):
            continue
        for text in strings(module):
            value = str(text.value)
            if OPTION.fullmatch(value):
                flags.add(value)
            elif path.endswith("/flags.py") and re.fullmatch(r"[a-z][a-z0-9-]+", value):
                flags.add(f"--{value}")
    return flags


def named_options(modules: Modules) -> list[str]:
    """Return the strings outside of the CLI that name one of its options."""
    options, shared = cli_options(modules), vllm_flags(modules)
    found = []
    for path, module in modules.items():
        if path.startswith((f"{CLI_FOLDER}/", "benchmarks/")):
            continue
        for text in sorted(strings(module), key=lambda text: (text.lineno, text.col_offset)):
            value = str(text.value)
            named = {match for match in OPTION.findall(value) if match in options}
            if " " not in value:
                named -= shared
            if named:
                found.append(f"{path}:{text.lineno}: {', '.join(sorted(named))}")
    return found


def lines_of(function: Function) -> int:
    """Return the number of lines from the docstring on."""
    return (function.end_lineno or 0) - function.body[0].lineno + 1


def inner_imports(path: str, module: ast.Module) -> list[str]:
    """Return the imports inside functions."""
    found = set()
    for function in (node for node in ast.walk(module) if isinstance(node, Function)):
        for node in ast.walk(function):
            if isinstance(node, ast.Import | ast.ImportFrom):
                found.add((node.lineno, ast.unparse(node)))
    return [f"{path}:{line}: {text}" for line, text in sorted(found)]


def measure_house(checkout: Path) -> House:
    """Return the measures of a checkout."""
    modules = read_modules(checkout)
    house = House(checkout.resolve().name, len(modules))
    house.repeated_names = repeated_names(modules)
    house.large_folders = large_folders(modules)
    house.named_options = named_options(modules)
    lengths = []
    for path, module in modules.items():
        house.inner_imports += inner_imports(path, module)
        for function in (node for node in ast.walk(module) if isinstance(node, Function)):
            lengths.append(lines_of(function))
            if lengths[-1] > MOST_LINES:
                house.long_functions.append(f"{path}:{function.lineno}: {function.name}, {lengths[-1]} lines")
    house.median_lines = statistics.median(lengths)
    return house


def print_houses(houses: list[House], with_lists: bool) -> None:
    """Print the table, and what was counted."""
    lists = {
        "public names that two or more modules define": "repeated_names",
        f"folders with more than {MOST_FILES} Python files": "large_folders",
        "strings outside of tuner/cli that name a CLI option": "named_options",
        f"functions with more than {MOST_LINES} lines": "long_functions",
        "imports inside functions": "inner_imports",
    }
    print("| measure | " + " | ".join(house.name for house in houses) + " |")
    print("|---" * (1 + len(houses)) + "|")
    print("| Python files | " + " | ".join(str(house.files) for house in houses) + " |")
    for title, attribute in lists.items():
        print(f"| {title} | " + " | ".join(str(len(getattr(house, attribute))) for house in houses) + " |")
    print("| median length of functions, lines | " + " | ".join(f"{house.median_lines:g}" for house in houses) + " |")
    if not with_lists:
        return
    for house in houses:
        for title, attribute in lists.items():
            print(f"\n{house.name}: {title}\n")
            print("\n".join(f"- {line}" for line in getattr(house, attribute)) or "- none")


def main() -> None:
    """Measure the checkouts and print the table."""
    summary = (__doc__ or "").splitlines()[0]
    parser = argparse.ArgumentParser(description=summary)
    parser.add_argument("checkouts", nargs="+", type=Path, metavar="CHECKOUT", help="a folder with the packages")
    parser.add_argument("--list", action="store_true", help="print what was counted, too")
    arguments = parser.parse_args()
    print_houses([measure_house(checkout) for checkout in arguments.checkouts], arguments.list)


if __name__ == "__main__":
    main()
