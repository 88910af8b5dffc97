"""What a service takes of a submission: the settings of either kind of study, and how the study is queued."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from tuner.settings.declared import QUEUE, SIZE, Setting, Settings
from tuner.settings.fleet import FleetSettings
from tuner.settings.study import AskedSettings


@dataclass(frozen=True, kw_only=True)
class KindSettings(Settings):
    """Which kind of study a submission is."""

    size: Annotated[bool, Setting(SIZE, "", "Find how many servers of which card and shape the load needs.")] = False


@dataclass(frozen=True, kw_only=True)
class SubmittedSettings(AskedSettings, FleetSettings, KindSettings):
    """All that a service takes: what is asked of a study that tunes, or of one that finds servers for a load."""


@dataclass(frozen=True, kw_only=True)
class SubmitSettings(SubmittedSettings):
    """What is asked of a study, and how a service queues it."""

    id: Annotated[
        str | None,
        Setting(QUEUE, "NAME", "Id of the study, which is its name. A repetition changes nothing.", shown="a new one"),
    ] = None
    kind: Annotated[
        str | None, Setting(QUEUE, "KIND", "Kind of the devices, such as h200.", shown="the server's only one")
    ] = None
    gpus: Annotated[int, Setting(QUEUE, "INTEGER", "Most devices at once.", least=1)] = 1
    priority: Annotated[
        int, Setting(QUEUE, "INTEGER", "Larger is sooner, among your own studies.", least=-100, most=100)
    ] = 0
    shared: Annotated[bool, Setting(QUEUE, "", "Let every token read the study.", option="share")] = False
    webhook: Annotated[
        str | None,
        Setting(QUEUE, "NAME", "Webhook of the server that hears of the study's end.", shown="the server's choice"),
    ] = None
