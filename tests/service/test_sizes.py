"""Servers for a load in the real service: from the terminal to the report, by a driver of the service."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.command import ran
from tests.service.running import Service, running_service
from tests.service_samples import SIZED_TRAFFIC
from tuner.client.client import Client


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with running_service(tmp_path_factory.mktemp("service"), "--simulated", "1") as found:
        yield found


def test_servers_for_a_load_from_submission_to_the_report(
    service: Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TUNER_SERVER", service.address)
    monkeypatch.setenv("TUNER_TOKEN", service.token)
    (tmp_path / "traffic.yaml").write_text(SIZED_TRAFFIC)
    load = ("--model", "Qwen/Qwen2.5-7B-Instruct", "--workload", "traffic.yaml", "--most-gpus", "1")
    size = ("service", "submit", "--size", "--id", "fleet", "--watch", "--card", "h100", "--card-price", "h100=2")
    printed = ran(tmp_path, *size, *load)
    assert "predicts each card and shape" in printed.err
    assert "fleet is DONE: 2 servers of NVIDIA H100 80GB HBM3, one GPU, 2,920 a month" in printed.out, printed.out
    assert "SIMULATED: predicted, not measured" in printed.out
    with Client() as client:
        answer = client.conclusion("fleet")
        assert answer is not None
        (only,) = answer["shapes"]
        assert (only["card"], only["origin"], only["fleet"]["servers"]) == ("h100", "predicted", 2)
        assert only["fleet"]["cost_per_month"] == pytest.approx(2 * 2.0 * 730)
        assert client.trials("fleet") == []
        report = client.report("fleet", tmp_path / "fleet.html").read_text()
        study = client.study("fleet")
    assert report.startswith("<!doctype html>")
    assert "Simulated, not measured" in report
    assert "Cost against latency" in report
    assert str(service.folder) not in report
    assert study.gpu_seconds > 0  # a simulated device, within the quota
    service.call("DELETE", "/v1/studies/fleet")
