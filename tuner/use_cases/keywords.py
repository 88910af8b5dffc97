"""The keywords of `tuner.optimize`, which are also the settings of a submission to the service."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from tuner.errors import SettingError
from tuner.study.specification import settings

SEARCH_LOAD = 0.5
MIN_GAIN = 0.5


@dataclass(frozen=True, kw_only=True)
class Keywords:
    """What a person asks of a study; each field is described at `tuner.optimize`.

    Fields that say where it runs are not here: storage, workers, the executable, the cluster and the output.
    """

    trials: int = 60
    preset: str = settings.DEFAULT_PRESET
    study: str | None = None
    model: str | None = None
    tokenizer: str | None = None
    objective: tuple[str, ...] = ()
    slo: tuple[str, ...] = ()
    quality_task: str | None = None
    workload: tuple[str, ...] = ()
    rate: float | None = None
    max_concurrency: int | None = None
    num_prompts: int | None = None
    input_len: int | None = None
    output_len: int | None = None
    temperature: float | None = None
    space: str | None = None
    only: tuple[str, ...] = ()
    keep_answers: bool = False
    bunched_tokens: bool = False
    enqueue: tuple[str, ...] = ()
    baseline: str | None = None
    server_arguments: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    secret: tuple[str, ...] = ()
    engine: str = "auto"
    gpu: str | None = None
    vllm_version: str | None = None
    price: float | None = None
    gpus_per_trial: int | None = None
    nodes_per_trial: int = 1
    timeout: float | str | None = None
    seed: int = 0
    sampler: str = settings.AUTO
    learn_from: tuple[str, ...] = ()
    finalists: int = 3
    confirm_rounds: int = 3
    reduce: bool = True
    search_load: float = SEARCH_LOAD
    min_gain: float = MIN_GAIN
    ablate: bool = False

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> Keywords:
        """Return the keywords among the given names and values; lists become tuples, other names are left out."""
        names = [each.name for each in fields(cls) if each.name in given]
        values: dict[str, Any] = {name: _frozen(given[name]) for name in names}
        return cls(**values)

    def study_settings(self) -> settings.StudySettings:
        """Return the settings of the study."""
        return settings.StudySettings(
            preset=self.preset,
            name=self.study,
            model=settings.ModelSettings(self.model, self.tokenizer),
            workload=settings.WorkloadSettings(
                self.workload,
                *(self.rate, self.max_concurrency, self.num_prompts),
                *(self.input_len, self.output_len, self.temperature),
            ),
            search_load=self.search_load,
            goals=settings.GoalSettings(self.objective, self.slo, self.quality_task),
            space=settings.SpaceSettings(
                self.space, self.only, self.keep_answers, self.enqueue, self.bunched_tokens, self.baseline
            ),
            search=settings.SearchSettings(self.seed, self.sampler, self.learn_from),
            confirmation=settings.ConfirmationSettings(self.finalists, self.confirm_rounds, reduce=self.reduce),
            server=settings.ServerSettings(self.server_arguments, self.env, self.secret),
            price=self.price,
            gpus_per_trial=self.gpus_per_trial,
            nodes_per_trial=self.nodes_per_trial,
        )

    def budget(self) -> settings.Budget:
        """Return what a run may spend.

        Raises:
            SettingError: for a `timeout` that is not a duration.
        """
        seconds = _seconds(self.timeout)
        return settings.Budget(self.trials, seconds, min_gain=self.min_gain / 100, ablate=self.ablate)


def _frozen(value: object) -> object:
    return tuple(value) if isinstance(value, list) else value


def _seconds(timeout: float | str | None) -> float | None:
    if isinstance(timeout, str):
        return settings.read_duration("timeout", timeout)
    if timeout is not None and timeout <= 0:
        raise SettingError("timeout", timeout, "a duration is longer than 0", "give seconds, or for example '2h'")
    return timeout
