"""The settings of `tuner size`: the load, which is a study's, and the servers that are compared for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated

from tuner.settings.declared import SIZE, Entries, Setting, Settings
from tuner.settings.study import StudySettings

SIZE_PRESET = "chat"
"""The preset of a load that is sized, where none is given: that of a study has users and no rate."""

SIZED = (
    *("preset", "workload", "rate", "temperature", "slo", "model", "tokenizer", "vllm_version", "env", "secret"),
    *("keep_answers", "server_arguments"),
)
"""What is asked of a study that servers for a load depend on, too."""


@dataclass(frozen=True, kw_only=True)
class FleetSettings(Settings):
    """Which servers are compared for a load, and what they hold beyond it."""

    card: Annotated[
        Sequence[str],
        Setting(
            SIZE, "NAME", "Card to compare, such as h200.", shown="l4, l40s, h100 and h200", limit=Entries(20, 300)
        ),
    ] = ()
    card_price: Annotated[
        Mapping[str, float],
        Setting(
            SIZE, "CARD=NUMBER", "Price of one GPU for an hour.", shown="the cards' list prices", limit=Entries(20, 300)
        ),
    ] = field(default_factory=dict)
    most_gpus: Annotated[int, Setting(SIZE, "INTEGER", "GPUs of one server at most.", least=1, most=8)] = 8
    headroom: Annotated[
        float,
        Setting(SIZE, "SHARE", "What the servers hold beyond the peak, as a share of it.", least=0, most=10),
    ] = 0.2
    spares: Annotated[
        int,
        Setting(SIZE, "INTEGER", "Servers that may fail while the others hold the peak.", least=0, most=100),
    ] = 1
    confirm: Annotated[
        int,
        Setting(
            SIZE, "INTEGER", "Measure so many of the cheapest shapes on the GPUs that are there.", least=0, most=20
        ),
    ] = 0


@dataclass(frozen=True, kw_only=True)
class SizeSettings(StudySettings, FleetSettings):
    """Settings of `tuner size`: of a study's `SIZED`, programs and places; and the servers that are compared."""
