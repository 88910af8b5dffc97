"""SLOs of a class of requests, as a traffic file gives them: `slo: {chat: {p95_ttft_ms: 5000, tpot_ms: 50}}`.

Each bound says two things. Of one request: its own value must be below the bound (of inter-token gaps: their percentile
within the answer), or the request is not good. Of the class, if the bound names a percentile: that percentile over the
class's requests must be below it, which is a constraint of the study. `ttft_p95_ms` reads the same as `p95_ttft_ms`.
`goodput_share: 0.95` asks that at least such a share of the class's offered requests be good.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass

from storage.metrics import PERCENTILES
from tuner.workloads.summary import RequestSlo

_KEY = re.compile(r"(?:p(\d+)_)?(ttft|tpot|itl|e2el)(?:_p(\d+))?_ms")
_SHARES = ("goodput_share", "success_rate")
_EXAMPLE = "for example p95_ttft_ms, tpot_ms, p95_itl_ms or goodput_share"


@dataclass(frozen=True)
class ClassSlo:
    """What a class was promised: what each request must meet, and the study's constraints as texts (`metric<bound`)."""

    request: RequestSlo
    constraints: tuple[str, ...]


def read_class_slo(bounds: Mapping[str, float]) -> ClassSlo:
    """Return what the bounds of one class say.

    Raises:
        ValueError: for a name that is no bound, a bound given twice, or a value that cannot be one.
    """
    limits: dict[str, float] = {}
    constraints: list[str] = []
    itl_percentile = 95
    for key, value in bounds.items():
        if key in _SHARES:
            _check(key, value, 1.0)
            constraints.append(f"{key}>={value:g}")
            continue
        match = _KEY.fullmatch(key)
        if match is None or (match[1] and match[3]):
            raise ValueError(f"{key!r} is no bound; {_EXAMPLE}")
        name, percentile = match[2], match[1] or match[3]
        _check(key, value, math.inf)
        if percentile is not None and int(percentile) not in PERCENTILES:
            raise ValueError(f"{key!r}: percentiles are {', '.join(map(str, PERCENTILES))}")
        if name in limits:
            raise ValueError(f"{name} has two bounds; give one")
        limits[name] = float(value)
        if percentile is not None:
            constraints.append(f"p{percentile}_{name}_ms<{value:g}")
            itl_percentile = int(percentile) if name == "itl" else itl_percentile
    return ClassSlo(RequestSlo(limits, itl_percentile), tuple(constraints))


def _check(key: str, value: float, most: float) -> None:
    if isinstance(value, bool) or not (math.isfinite(value) and 0 < value <= most):
        upper = "" if math.isinf(most) else f" and at most {most:g}"
        raise ValueError(f"{key}: {value!r} is no bound; give a number above 0{upper}")
