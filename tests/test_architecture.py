"""The layers of docs/architecture.md and the rules for modules, checked on every module's syntax tree."""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from tests.cli.command import PATHS, TREE
from tuner.engines.simulator.flags import flag_names

ROOT = Path(__file__).parents[1]
PACKAGES = ("tuner", "records", "search_spaces", "storage", "dashboards")
RESIDENT = "tuner.engines.vllm.resident"
MAX_WAITING_IMPORTS = 41
MAX_FUNCTION_LINES = 40

HOMES = {
    "mcp": ("tuner.use_cases.agent",),
    "optuna": (
        "tuner.study.optuna_study",
        "tuner.study.optuna_storage",
        "tuner.study.optuna_study",
        "tuner.sampler",
        "tuner.service.http.optimizations.studies",
        "tuner.service.http.optimizations.proposals",
    ),
    "ray": (
        "tuner.executors.ray_pool",
        "tuner.executors.ray_start",
        "tuner.executors.ray_head",
        "tuner.executors.ray_cluster",
        "tuner.executors.ray_worker",
    ),
    "mlflow": ("dashboards.mlflow.log",),
    "pynvml": ("tuner.gpu",),
    "sqlalchemy": ("storage",),
    "alembic": ("storage",),
    "vllm": (RESIDENT,),
    "yaml": ("search_spaces.yaml_file", "search_spaces.loader"),
    "fastapi": ("tuner.service.http",),
    "tokenizers": ("tuner.engines.server.token_prompts",),
    "regex": ("tuner.quality.task",),
    "xllamacpp": ("tuner.engines.llama_cpp.launcher",),
}
HOME_EXCEPTIONS = {
    ("dashboards.mlflow.log", "sqlalchemy"): "MLflow's embedded database raises SQLAlchemy's errors",
    ("tuner.study.optuna_storage", "sqlalchemy"): "Optuna's storage raises SQLAlchemy's errors",
}
BROAD_EXCEPT = {
    "tuner.executors.ray_start": (1, "Ray raises plain Exception if a part of it does not answer"),
    "tuner.executors.ray_head": (1, "Ray raises plain Exception if a part of it does not start"),
    "tuner.engines.server.token_prompts": (1, "tokenizers raises plain Exception for an unreadable file"),
    "tuner.trial.pipeline": (1, "the trial's boundary: whatever a trial does, its server is stopped"),
    "tuner.cli.main": (1, "the command's boundary: an exception becomes one line and an exit code"),
    "tuner.service.driver.__main__": (1, "the run's boundary: whatever it raises, the submission ends with a reason"),
    f"{RESIDENT}.helper": (1, "it runs vLLM's own code in vLLM's interpreter, and what that raises ends a fork"),
    f"{RESIDENT}.introspection": (1, "it calls vLLM's own code, and the answer contains what that raises"),
}


OTHER_PROGRAMS = {
    "tuner.observers.mlflow_follower": "starts the program dashboards.mlflow.follower with its own options",
    "dashboards.mlflow.follower": "is a program with its own options",
    "dashboards.mlflow.ui": "starts `mlflow server`",
    "tuner.engines.llama_cpp.launcher": "is a program with the options of llama-server",
    "search_spaces.render": "reads the options of tuner-vllm-instances",
    "tuner.quality.harness": "starts lm_eval with its own options",
    "tuner.quality.examiner": "writes the command that checks the answers into a script",
    "tuner.export.verification": "writes a command that starts `tuner server load` from a script",
    "tuner.testing.exporter": "has the command line of tuner-vllm-instances",
    "tuner.use_cases.report.page": "writes the command that exports the script into a page",
}


@cache
def modules() -> dict[str, ast.Module]:
    """Return every module of the product with its syntax tree."""
    found = {}
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            parts = path.relative_to(ROOT).with_suffix("").parts
            name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
            found[name] = ast.parse(path.read_text(encoding="utf-8"), filename=str(path))
    return found


def within(module: str, package: str) -> bool:
    return module == package or module.startswith(f"{package}.")


def imports(tree: ast.Module) -> Iterator[str]:
    """Yield what is imported, anywhere in the module; `from a import b` gives both `a` and `a.b`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            yield node.module or ""
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


@cache
def imported_by() -> dict[str, set[str]]:
    """Return what each module of the product imports."""
    return {name: {*imports(tree)} for name, tree in modules().items()}


@cache
def layers() -> list[list[str]]:
    """Return the layers as the document draws them, the highest first."""
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    block = re.search(r"## Layers.*?```\n(.*?)```", text, re.DOTALL)
    assert block is not None
    return [line.split() for line in block[1].splitlines()]


def layer_of(module: str) -> tuple[int, str] | None:
    """Return the layer's place from the top and the name in the drawing that the module belongs to."""
    for place, names in enumerate(layers()):
        for name in names:
            if within(module, name):
                return place, name
    return None


def test_the_document_draws_every_package() -> None:
    drawn = {name for names in layers() for name in names}
    assert {name for name in drawn if not any(within(module, name) for module in modules())} == set()
    shared = {"tuner", "tuner.engines"}
    assert {module for module in modules() if layer_of(module) is None} == shared


def is_upward(importing: str, imported: str) -> bool:
    """Return whether an import leads to a place that is not below the module's own in the drawing."""
    here, there = layer_of(importing), layer_of(imported)
    return here is not None and there is not None and there[1] != here[1] and there[0] <= here[0]


def test_imports_go_down_only() -> None:
    found = [f"{name} imports {i}" for name, those in imported_by().items() for i in those if is_upward(name, i)]
    assert found == [], "docs/architecture.md draws what is below a module"


def test_leaves_never_import_the_tuner() -> None:
    leaves = ("records", "search_spaces", "storage", "dashboards")
    found = [
        f"{name} imports {imported}"
        for name, those in imported_by().items()
        if any(within(name, leaf) for leaf in leaves)
        for imported in those
        if within(imported, "tuner")
    ]
    assert found == []


def test_each_library_has_one_home() -> None:
    found = {
        f"{name} imports {library}"
        for name, those in imported_by().items()
        for library, homes in HOMES.items()
        if any(within(imported, library) for imported in those)
        if not any(within(name, home) for home in homes) and (name, library) not in HOME_EXCEPTIONS
    }
    assert found == set()


def test_what_runs_in_vllm_imports_nothing_of_ours() -> None:
    found = {
        (name, imported)
        for name, those in imported_by().items()
        if within(name, RESIDENT)
        for imported in those
        if any(within(imported, package) for package in PACKAGES)
    }
    assert found == set()


def calls(tree: ast.Module) -> Iterator[tuple[str, ast.Call]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            yield ast.unparse(node.func), node


FORBIDDEN = ("eval", "exec", "compile", "os.system", "os.popen", "yaml.load", "yaml.full_load", "yaml.unsafe_load")


def runs_a_shell(call: ast.Call) -> bool:
    return any(each.arg == "shell" and getattr(each.value, "value", True) is not False for each in call.keywords)


def test_nothing_is_evaluated_and_no_shell_is_run() -> None:
    found = [
        f"{module}:{call.lineno}: {ast.unparse(call)}"
        for module, tree in modules().items()
        for name, call in calls(tree)
        if name in FORBIDDEN or runs_a_shell(call)
    ]
    assert found == []


def is_broad(handler: ast.ExceptHandler) -> bool:
    caught = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
    return any(each is None or ast.unparse(each) in ("Exception", "BaseException") for each in caught)


def raises_again(handler: ast.ExceptHandler) -> bool:
    """Return True for a handler whose last statement is a bare `raise`: it cleans up and swallows nothing."""
    last = handler.body[-1]
    return isinstance(last, ast.Raise) and last.exc is None


def test_nothing_is_swallowed_broadly() -> None:
    found = {}
    for module, tree in modules().items():
        handlers = [node for node in ast.walk(tree) if isinstance(node, ast.ExceptHandler)]
        broad = [node.lineno for node in handlers if is_broad(node) and not raises_again(node)]
        if len(broad) != BROAD_EXCEPT.get(module, (0, ""))[0]:
            found[module] = broad
    assert found == {}, "lines of broad excepts, in modules with more or fewer than `BROAD_EXCEPT` allows"


def body_lines(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Return the lines of a function from its first statement after the docstring."""
    first = node.body[0]
    documented = isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and len(node.body) > 1
    last = node.end_lineno or node.lineno
    return last - node.body[1 if documented else 0].lineno + 1


def test_few_imports_wait_inside_functions() -> None:
    """An import waits for a heavy library that most runs do not need, or for variables that one reads at its import."""
    waiting = {
        f"{module}:{inner.lineno}"
        for module, tree in modules().items()
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        for inner in ast.walk(node)
        if isinstance(inner, ast.Import | ast.ImportFrom)
    }
    assert len(waiting) <= MAX_WAITING_IMPORTS, sorted(waiting)


def test_functions_stay_small() -> None:
    """A function's lines are counted after its docstring; a command's signature is its table of options."""
    long = [
        f"{module}.{node.name} has {body_lines(node)} lines"
        for module, tree in modules().items()
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and body_lines(node) > MAX_FUNCTION_LINES
    ]
    assert long == []


@cache
def own_options() -> set[str]:
    """Return the long options of the command line, without those that `vllm` has too."""
    parameters = [parameter for command in (TREE, *PATHS.values()) for parameter in command.params]
    options = {name for parameter in parameters for name in (*parameter.opts, *parameter.secondary_opts)}
    return {name for name in options if name.startswith("--")} - flag_names() - {"--model", "--version"}


def texts(tree: ast.Module) -> Iterator[ast.Constant]:
    """Yield the string constants of a module that are not docstrings."""
    alone = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in alone:
            yield node


def test_nothing_below_the_command_line_names_its_options() -> None:
    assert {"--trials", "--slo", "--storage"} <= own_options()
    found = {
        f"{module}:{node.lineno}: {option}"
        for module, tree in modules().items()
        if not within(module, "tuner.cli") and module not in OTHER_PROGRAMS
        for node in texts(tree)
        for option in re.findall(r"--[a-z][a-z-]*", str(node.value))
        if option in own_options()
    }
    assert found == set(), "raise `SettingError` with the field; tuner/cli/options.py has its option"
