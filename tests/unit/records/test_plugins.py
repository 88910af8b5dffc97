"""Engines, metrics and deployment formats of installed packages: found by name, and refused in one line."""

from collections.abc import Callable, Iterator, Sequence
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest

from records import plugins
from records.metrics import Direction, Metric, metric, registered
from records.plugins import PluginError
from tuner.engines.kinds import kinds
from tuner.errors import SettingError
from tuner.export.formats.document import File
from tuner.export.formats.registry import Format, default_file, formats, names
from tuner.scoring.goals import parse_slo
from tuner.study.specification.resolve_workload import _check_measured
from tuner.workloads.results import RequestRecord, RequestStatus
from tuner.workloads.run_metrics import run_metrics
from tuner.workloads.spec import ClosedLoop


def longest(records: Sequence[RequestRecord], duration_s: float | None) -> float | None:
    return max((float(each.output_tokens or 0) for each in records), default=None)


LONGEST = Metric("longest_answer", "tok/s", Direction.MINIMIZE, "Tokens of the longest answer.", longest)
WITHOUT_UNIT = Metric("longest_answer", "tokens", Direction.MINIMIZE, "Tokens of the longest answer.", longest)
TAKEN = Metric("goodput", "req/s", Direction.MAXIMIZE, "Goodput.", longest)
UNCOMPUTED = Metric("longest_answer", "tok/s", Direction.MINIMIZE, "Tokens of the longest answer.")
NAMES_ONLY = Format(lambda deployment, stem: (File(deployment.name),), "names.txt", "a list of names", any_engine=True)

CACHES: tuple[Callable[..., Any], ...] = (kinds, registered, formats)


@pytest.fixture
def register(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str, str, str], None]]:
    """Return a function that registers an object, by its group, its name and its place."""

    def add(group: str, name: str, value: str) -> None:
        entries = [EntryPoint(name, value, group)]
        monkeypatch.setattr(plugins, "entry_points", lambda group: [each for each in entries if each.group == group])
        forget()

    yield add
    forget()


def forget() -> None:
    for each in CACHES:
        each.cache_clear()  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("group", "value", "rule"),
    [
        ("tuner.engines", "no_such_package:TOY", "cannot be loaded: No module named 'no_such_package'; update its"),
        ("tuner.engines", f"{__name__}:NOTHING", "cannot be loaded: module "),
        ("tuner.engines", f"{__name__}:LONGEST", "is no EngineKind, but a Metric"),
        ("tuner.engines", "tuner.engines.vllm.kind:VLLM", "has the name of another engine, 'vllm'"),
        ("tuner.metrics", f"{__name__}:UNCOMPUTED", "has no `of_requests`"),
        ("tuner.metrics", f"{__name__}:WITHOUT_UNIT", "has the unit 'tokens', and units are J/tok, "),
        ("tuner.metrics", f"{__name__}:TAKEN", "has the name 'goodput', which is taken or no identifier"),
        ("tuner.exporters", f"{__name__}:LONGEST", "is no Format, but a Metric"),
    ],
)
def test_what_cannot_be_used_is_refused_in_one_line(
    register: Callable[[str, str, str], None], group: str, value: str, rule: str
) -> None:
    register(group, "toy", value)
    with pytest.raises(PluginError, match=f"^{value}, which is registered as 'toy' of {group}, {rule}") as refused:
        [every() for every in CACHES]
    assert "\n" not in str(refused.value)


def test_a_registered_metric_is_a_bound_and_a_column_of_each_class(register: Callable[[str, str, str], None]) -> None:
    register("tuner.metrics", "longest", f"{__name__}:LONGEST")
    assert parse_slo("chat.longest_answer<=100").threshold == 100
    assert metric("longest_answer") is LONGEST
    records = [
        RequestRecord(index, name, RequestStatus.COMPLETED, output_tokens=tokens)
        for index, (name, tokens) in enumerate([("chat", 7), ("chat", 9), ("code", 4)])
    ]
    found = run_metrics(records, ["chat", "code"])
    own = {name: value for name, value in found.items() if name.endswith("longest_answer")}
    assert own == {
        "longest_answer": 9.0,
        "chat.longest_answer": 9.0,
        "code.longest_answer": 4.0,
        "worst.longest_answer": 9.0,
    }
    with pytest.raises(SettingError, match="this metric needs traffic"):
        _check_measured("slo", "longest_answer", ClosedLoop())


def test_a_registered_format_is_written_by_its_name(register: Callable[[str, str, str], None]) -> None:
    register("tuner.exporters", "names", f"{__name__}:NAMES_ONLY")
    assert "names" in names()
    assert default_file("names") == Path("names.txt")
    register("tuner.exporters", "systemd", f"{__name__}:NAMES_ONLY")
    with pytest.raises(PluginError, match="has the name of another format"):
        formats()
