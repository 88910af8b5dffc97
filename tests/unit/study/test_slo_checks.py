"""SLOs that cannot mean what was meant are refused with the one that can."""

from __future__ import annotations

import pytest

from tuner.errors import SettingError
from tuner.scoring.goals import Slo
from tuner.study.specification.resolve_workload import check_slo


@pytest.mark.parametrize(
    ("text", "remedy"),
    [
        ("output_throughput<500", "give 'output_throughput>=500'"),
        ("chat.goodput<=3", "give 'chat.goodput>=3'"),
        ("quality<0.99", "give 'quality>=0.99'"),
        ("p99_ttft_ms>1500", "give 'p99_ttft_ms<1500'"),
        ("client.mean_tpot_ms>=20", "give 'client.mean_tpot_ms<20'"),
        ("cost_per_million_output_tokens>1", "give 'cost_per_million_output_tokens<1'"),
        ("p99_ttft_ms<=0", "give a bound above 0"),
        ("success_rate>1", "give 'success_rate>=1'"),
        ("chat.goodput_share>=1.2", "give 'chat.goodput_share>=1'"),
    ],
)
def test_a_reversed_or_impossible_slo_is_refused(text: str, remedy: str) -> None:
    with pytest.raises(SettingError, match=remedy) as caught:
        check_slo(text)
    assert caught.value.exit_code == 2


@pytest.mark.parametrize(
    ("text", "slo"),
    [
        ("success_rate>=1", Slo("success_rate", ">=", 1.0)),
        ("p99_itl_ms<0.5", Slo("p99_itl_ms", "<", 0.5)),
        ("quality>=1.01", Slo("quality", ">=", 1.01)),
        ("output_throughput>500", Slo("output_throughput", ">", 500.0)),
    ],
)
def test_an_slo_that_can_be_met_is_read(text: str, slo: Slo) -> None:
    assert check_slo(text) == slo
