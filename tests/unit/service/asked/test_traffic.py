"""Traffic that a short file describes and no server should make."""

from __future__ import annotations

from pathlib import Path

import pytest

from tuner.errors import SettingError
from tuner.service.asked.traffic import check_traffic
from tuner.settings.study import StudySettings

POISSON = "arrivals: {process: poisson, rate: 1000}\n"
ONE = "classes: {a: {input: 1, output: 1}}\n"
MANY = "classes: {" + ", ".join(f"c{i}: {{input: 1, output: 1}}" for i in range(101)) + "}\n"
PREFIX = "{input: 1, output: 1, prefix: {tokens: 1, documents: 600000}}"


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        (f"{POISSON}requests: 10000000\n{ONE}", "10,000,000 requests, and 1,000,000"),
        (f"{POISSON}duration_s: 1001\n{ONE}", "1,001,000 requests, and 1,000,000"),
        (
            f"arrivals: {{process: ramp, start_rate: 1, end_rate: 1000}}\nduration_s: 2000\n{ONE}",
            "2,000,000 requests, and 1,000,000",
        ),
        (f"{POISSON}requests: 5\nwarmup_requests: 2000000\n{ONE}", "2,000,000 requests, and 1,000,000"),
        (f"{POISSON}requests: 5\n{MANY}", "101 classes, and 100"),
        (f"{POISSON}requests: 5\nclasses: {{a: {PREFIX}, b: {PREFIX}}}\n", "1,200,000 documents, and 1,000,000"),
    ],
)
def test_too_much_is_refused_with_the_number(tmp_path: Path, text: str, rule: str) -> None:
    (tmp_path / "t.yaml").write_text(text)
    with pytest.raises(SettingError, match=rule) as caught:
        check_traffic(StudySettings(workload=(str(tmp_path / "t.yaml"),)))
    assert caught.value.field == "workload"


def test_a_rate_of_the_submission_counts(tmp_path: Path) -> None:
    (tmp_path / "t.yaml").write_text(f"{POISSON}duration_s: 10\n{ONE}")
    check_traffic(StudySettings(workload=(str(tmp_path / "t.yaml"),)))
    with pytest.raises(SettingError, match="50,000 requests, and 20,000"):
        check_traffic(StudySettings(workload=(str(tmp_path / "t.yaml"),), rate=5000.0), 20_000)
