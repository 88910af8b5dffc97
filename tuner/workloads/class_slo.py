"""SLOs of request classes in a traffic file, such as `slo: {chat: {p95_ttft_ms: 5000, tpot_ms: 50}}`.

A bound holds for each request: a request meets the SLO if its own value is below the bound. For ITL the value is the
bound's percentile over the gaps within the request's answer (95 if the bound has none). A bound with a percentile also
holds for the class: the percentile over its requests must be below the bound, as a constraint of the study.
`ttft_p95_ms` means the same as `p95_ttft_ms`. `goodput_share: 0.95` is a constraint: at least 95 % of the offered
requests of the class meet their SLO.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass

from storage.metrics import PERCENTILES
from tuner.workloads.results.summary import RequestSlo

_KEY = re.compile(r"(?:p(\d+)_)?(ttft|tpot|itl|e2el)(?:_p(\d+))?_ms")
_SHARES = ("goodput_share", "success_rate")
_EXAMPLE = "a latency such as p95_ttft_ms, tpot_ms or p95_itl_ms, or goodput_share"


@dataclass(frozen=True)
class ClassSlo:
    """The SLO of a class: the bounds on each request, and the study's constraints as texts (`p95_ttft_ms<2000`)."""

    request: RequestSlo
    constraints: tuple[str, ...]


def read_class_slo(bounds: Mapping[str, float]) -> ClassSlo:
    """Return the SLO that the bounds of one class state.

    Raises:
        ValueError: for an unknown name, two bounds on one latency, or a value that is not a positive number.
    """
    bounds_ms: dict[str, float] = {}
    constraints: list[str] = []
    itl_percentile = 95
    for key, value in bounds.items():
        if key in _SHARES:
            _check(key, value, 1.0)
            constraints.append(f"{key}>={value:g}")
            continue
        match = _KEY.fullmatch(key)
        if match is None or (match[1] and match[3]):
            raise ValueError(f"{key!r} is not a bound; give {_EXAMPLE}")
        name, percentile = match[2], match[1] or match[3]
        _check(key, value, math.inf)
        if percentile is not None and int(percentile) not in PERCENTILES:
            raise ValueError(f"{key!r}: the percentiles are {', '.join(map(str, PERCENTILES))}; use one of them")
        if name in bounds_ms:
            raise ValueError(f"{name} has two bounds; keep one")
        bounds_ms[name] = float(value)
        if percentile is not None:
            constraints.append(f"p{percentile}_{name}_ms<{value:g}")
            itl_percentile = int(percentile) if name == "itl" else itl_percentile
    return ClassSlo(RequestSlo(bounds_ms, itl_percentile), tuple(constraints))


def _check(key: str, value: float, maximum: float) -> None:
    if isinstance(value, bool) or not (math.isfinite(value) and 0 < value <= maximum):
        upper = "" if math.isinf(maximum) else f" and at most {maximum:g}"
        raise ValueError(f"{key}: {value!r} is not a bound; give a number above 0{upper}")
