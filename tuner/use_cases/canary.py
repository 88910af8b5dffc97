"""The use case of `tuner server compare`: the same requests to two servers in alternation, until a verdict is known.

A pair of runs sends the same requests to both. A block is two pairs, ABBA: one begins with A, the other with B, so that
a slow change of the machine counts for neither.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from tuner.errors import InfrastructureError, SettingError
from tuner.scoring.change import MARGIN, Change
from tuner.scoring.sequential import looks
from tuner.use_cases.load import KEY_VARIABLES, LoadResult, LoadSender, LoadSettings
from tuner.use_cases.mirrored import Mirrored, Pair
from tuner.use_cases.places import new_folder
from tuner.workloads.spec import Suite
from tuner.workloads.traffic import Traffic

SIDES = ("A", "B")
RUN_REQUESTS = 50
"""Requests of a run, if the workload has more and no other number is given."""

_SEED = 950_000
_SEED_STEP = 1000
"""Between the seeds of two attempts at a pair, so that each has other requests."""

_ATTEMPTS = 10
"""Attempts at a pair until this machine sends its requests in time. Each takes seconds only."""


@dataclass(frozen=True, kw_only=True)
class CanarySettings:
    """Two servers and their load.

    Attributes:
        urls: of A and B, without `/v1`.
        workloads: traffic files.
        model: its name in requests; None: the first that each server lists.
        tokenizer: of the load generator; None: that of A's model.
        requests: of each run; None: those of the workload, at most `RUN_REQUESTS`.
        margin: the smallest change that matters, as a share.
        blocks: ABBA blocks at most.
        limit_s: time limit of each run, in seconds.
        vllm: executable whose Python reads the tokenizer; None: the one that is found.
        output: folder in which each comparison makes a folder of its own for the recorded requests.
    """

    urls: tuple[str, ...]
    workloads: tuple[str, ...]
    model: str | None = None
    tokenizer: str | None = None
    requests: int | None = None
    margin: float = MARGIN
    blocks: int = 10
    limit_s: float = 1800.0
    vllm: str | None = None
    output: Path = Path("tuner_compare")


@dataclass(frozen=True)
class CanaryResult:
    """Two servers that were compared; `settings.output` is the folder of this comparison."""

    settings: CanarySettings
    mirrored: Mirrored
    verdict: Change


def compare_servers(settings: CanarySettings, say: Callable[[str], None]) -> CanaryResult:
    """Send pairs of runs until the verdict is known, at most `blocks` blocks; `say` receives a line after each pair.

    Raises:
        UserError: for a setting that cannot work, or a server that does not answer.
        InfrastructureError: if this machine is too busy to send the requests in time.
    """
    if len(settings.urls) != len(SIDES) or settings.urls[0] == settings.urls[1]:
        raise SettingError("url", " ".join(settings.urls), "two servers are compared", "give {url} twice, A and B")
    with ExitStack() as stack:
        first = stack.enter_context(LoadSender(_load_settings(settings, 0, settings.tokenizer)))
        second = stack.enter_context(LoadSender(_load_settings(settings, 1, first.tokenizer)))
        settings = replace(settings, output=new_folder(settings.output))
        senders, pairs = (first, second), list[Pair]()
        load = _with_each(first.traffic, lambda each: _shortened(each, settings.requests))
        ends = looks(settings.blocks)
        for number in range(ends[-1]):
            pairs.append(_pair(settings, senders, load if number == 0 else _with_each(load, _without_warmup), number))
            found = Mirrored(pairs, len(ends), settings.margin)
            say(f"pair {number + 1} of at most {ends[-1]}: {found.requests} requests")
            if number + 1 in ends and found.verdict.is_known:
                break
    return CanaryResult(settings, found, found.verdict)


def _load_settings(settings: CanarySettings, side: int, tokenizer: str | None) -> LoadSettings:
    """Return the settings of one server's load; `side` is 0 for A and 1 for B."""
    own_key = f"{KEY_VARIABLES[0]}_{SIDES[side]}"
    return LoadSettings(
        url=settings.urls[side],
        workloads=settings.workloads,
        model=settings.model,
        tokenizers=() if tokenizer is None else (tokenizer,),
        seed=_SEED,
        limit_s=settings.limit_s,
        vllm=settings.vllm,
        output=settings.output,
        keys=(own_key, *KEY_VARIABLES),
    )


def _shortened(traffic: Traffic, requests: int | None) -> Traffic:
    """Return traffic with the requests of one run."""
    kept = requests or min(traffic.requests or RUN_REQUESTS, RUN_REQUESTS)
    return traffic.model_copy(update={"requests": kept, "duration_s": None})


def _without_warmup(traffic: Traffic) -> Traffic:
    """Return traffic for servers that are warm."""
    return traffic.model_copy(update={"warmup_requests": 0})


def _with_each(load: Traffic | Suite, change: Callable[[Traffic], Traffic]) -> Traffic | Suite:
    """Return a load with each of its traffics changed."""
    if isinstance(load, Suite):
        return load.model_copy(update={"loads": {name: change(each) for name, each in load.loads.items()}})
    return change(load)


def _pair(settings: CanarySettings, senders: tuple[LoadSender, LoadSender], load: Traffic | Suite, number: int) -> Pair:
    """Send one pair of runs; a pair that this machine sent late is sent again, with other requests."""
    reason: str | None = None
    for attempt in range(_ATTEMPTS):
        seed = _SEED + _SEED_STEP * (number * _ATTEMPTS + attempt)
        results: dict[int, LoadResult] = {}
        for side in (0, 1) if number % 2 == 0 else (1, 0):
            folder = settings.output / f"{number}-{SIDES[side]}"
            results[side] = senders[side].send(seed, folder, load)
        reason = next((each.invalid for each in results.values() if each.invalid is not None), None)
        if reason is None:
            return Pair(results[0].records, results[1].records)
    raise InfrastructureError(f"the requests were not sent in time: {reason}; run it on a machine with less work")
