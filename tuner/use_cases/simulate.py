"""The use case of `tuner simulate`, and whether a study is simulated: which card and which vLLM version."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from search_spaces import (
    HardwareProfile,
    Price,
    SpaceError,
    hardware_from_file,
    hardware_named,
    known_hardware,
    version_tuple,
)
from search_spaces.render import gpus_of
from search_spaces.schema import VLLM
from tuner import gpu as devices
from tuner.engines.base import EngineSettings
from tuner.engines.command_line import sampling_arguments
from tuner.engines.simulator.client import refuse_unmodelled
from tuner.engines.simulator.deployment import ConfiguredServer, SimulatedRun
from tuner.engines.simulator.flags import SIMULATED_PACKAGES, default_version
from tuner.engines.simulator.limits import TooFewGpus
from tuner.engines.simulator.memory import StartFailed
from tuner.engines.simulator.parameters import parameters_of
from tuner.engines.simulator.precision import ConfigRefused, NotSimulated, require_read
from tuner.engines.simulator.prediction import Platform, build_server, client_metrics, run_workload
from tuner.engines.simulator.roofline import Roofline, roofline_of
from tuner.engines.simulator.serve_config import refusal_of_every_trial
from tuner.errors import SettingError, UserError
from tuner.scoring.cost import token_costs
from tuner.settings.study import AskedSettings
from tuner.study.specification.find_model import find_simulated_model, longest_context, too_long
from tuner.study.specification.plan import StudyPlan
from tuner.study.specification.resolve_workload import check_price, find_price, find_workload, request_classes
from tuner.use_cases.devices import Devices
from tuner.use_cases.places import home
from tuner.workloads.presets import Preset, load_preset
from tuner.workloads.spec import SingleWorkload, Suite

_VERSION = re.compile(r"\d+\.\d+(\.\d+)?")
_OLDEST, _NEWEST = (0, 15), (0, 32)


def wants_simulation(engine: str, vllm: str | None, gpu: str | None) -> bool:
    """Return whether the engine is simulated: by its name, or by `auto` without a GPU and without a given vLLM."""
    if engine != "auto":
        return engine == "simulated"
    if vllm is not None or os.environ.get("TUNER_VLLM"):
        return False
    return gpu is not None or not devices.devices()


def refuse_simulation_options(gpu: str | None, version: str | None) -> None:
    """Refuse settings that only apply to a simulation."""
    if gpu is not None or version is not None:
        field, value = ("gpu", gpu) if gpu is not None else ("vllm_version", version)
        rule = "this setting is for a simulation, and this study is measured"
        raise SettingError(field, value, rule, "add {engine} simulated, or leave it out")


def refuse_unsimulated_arguments(plan: StudyPlan, settings: EngineSettings) -> None:
    """Refuse server arguments and requests with which no trial can be simulated."""
    card, version, shape = settings.card, settings.version, plan.shape
    assert card is not None
    assert version is not None
    assert shape is not None  # `find_simulated_model` returns no model without a shape
    server, release = plan.server, version_tuple(version)
    try:
        require_read(shape)
    except NotSimulated as error:
        raise SettingError("model", plan.model.name, str(error)) from None
    longest = longest_context(shape, VLLM, server.arguments, release)
    if longest is not None and plan.workload.longest_request > longest:
        raise too_long(plan.workload, longest)
    refusal = refusal_of_every_trial(
        server.arguments, server.environment, shape, card, release, SIMULATED_PACKAGES, settings.gpus
    )
    if refusal is not None:
        raise SettingError("server_arguments", None, refusal, "change the flags after `--`")
    for request_class in request_classes(plan.workload):
        refuse_unmodelled(request_class)


def simulated_engine(
    gpu: str | None, version: str | None, preset: str, workers: int | None
) -> tuple[EngineSettings, Devices]:
    """Return the settings of a simulated engine and its devices: the given card or the preset's.

    Raises:
        SettingError: for an unknown card or version.
    """
    card = find_card(gpu or load_preset(preset).hardware)
    settings = EngineSettings("simulated", None, home(), card=card, version=find_version(version, card))
    return settings, Devices((card.name,) * (workers or 1), card, gpus=False)


def find_card(name: str) -> HardwareProfile:
    """Return the card of a name or a YAML file.

    Raises:
        SettingError: when there is no such card, or the file does not describe one.
    """
    try:
        if name.endswith((".yaml", ".yml")):
            return hardware_from_file(Path(name))
        card = hardware_named(name)
    except SpaceError as error:
        raise SettingError("gpu", name, str(error).removeprefix(f"{name}: ")) from None
    if card.vendor != "nvidia":
        cards = ", ".join(key for key, each in known_hardware().items() if each.vendor == "nvidia")
        raise SettingError("gpu", name, f"this is no GPU, and only GPUs are simulated; known: {cards}, or a YAML file")
    return card


def find_version(version: str | None, card: HardwareProfile) -> str:
    """Return the vLLM to simulate.

    Raises:
        SettingError: for a version that is not simulated.
    """
    if version is None:
        return default_version(card)
    if not _VERSION.fullmatch(version) or not _OLDEST <= version_tuple(version)[:2] <= _NEWEST:
        raise SettingError("vllm_version", version, "0.15 to 0.32 are simulated", "give for example 0.25.1")
    return version


@dataclass(frozen=True)
class Simulation:
    """A prediction: metrics and counts of requests, the simulated server and its platform.

    `price` is the one that the costs follow from; None: unknown, and there are none.
    """

    metrics: Mapping[str, float | None]
    offered: int
    completed: int
    workload: SingleWorkload
    run: SimulatedRun
    roofline: Roofline
    machine: ConfiguredServer
    card: HardwareProfile
    vllm_version: str
    model: str
    price: Price | None = None

    @property
    def copies(self) -> int:
        """The copies of the model, each with its own queue and KV cache."""
        return self.machine.instances * self.machine.config.parallel.data

    @property
    def output_throughput_per_gpu(self) -> float | None:
        """The output throughput in tokens per second, divided by the GPUs that work."""
        value = self.metrics.get("output_throughput")
        return None if value is None else value / self.machine.gpus

    @property
    def time_shares(self) -> dict[str, float]:
        """The share of each part of an engine step in the time of all steps."""
        total = sum(self.run.seconds.values()) or 1.0
        return {name: seconds / total for name, seconds in self.run.seconds.items()}


def simulate(settings: AskedSettings, *, noise: bool = False, instances: int = 1) -> Simulation:
    """Predict one configuration on equal servers; with noise, as a measured run differs from the expected value.

    Raises:
        UserError: for a setting that cannot work, or a configuration that vLLM would refuse to serve.
    """
    preset = load_preset(settings.preset)
    check_price(settings.price)
    if instances < 1:
        raise SettingError("instances", instances, "at least 1 is needed")
    card = find_card(settings.gpu or preset.hardware)
    version = find_version(settings.vllm_version, card)
    load = _single_workload(preset, settings)
    reference, shape = find_simulated_model(settings.model or preset.model, None)
    words = (*sampling_arguments(load.temperature, VLLM), *settings.server_arguments)
    try:
        gpus = settings.gpus_per_trial or gpus_of(words)
        site = Platform(card, parameters_of(card.key), version_tuple(version), SIMULATED_PACKAGES, gpus)
        machine = build_server(site, words, settings.env, shape, instances)
        if load.longest_request > machine.config.max_model_len:
            raise too_long(load, machine.config.max_model_len)
    except NotSimulated as error:
        raise UserError(str(error)) from None
    except TooFewGpus as error:
        raise SettingError("gpus_per_trial", gpus, str(error), f"give {{gpus_per_trial}} {error.needed}") from None
    except (ConfigRefused, StartFailed) as error:
        raise UserError(f"vLLM {version} does not serve this configuration on {card.name}: {error}") from None
    done = run_workload(machine, load, settings.seed, noise=noise)
    metrics, price = client_metrics(load, done, machine) or {}, find_price(settings.price, card)
    return Simulation(
        metrics={**metrics, **token_costs(metrics, None if price is None else price.per_gpu_hour * machine.gpus)},
        offered=len(done.requests),
        completed=sum(request.status == "completed" for request in done.requests),
        workload=load,
        run=done,
        roofline=roofline_of(machine.config, done),
        machine=machine,
        card=card,
        vllm_version=version,
        model=reference.name,
        price=price,
    )


def _single_workload(preset: Preset, settings: AskedSettings) -> SingleWorkload:
    load = find_workload(preset, settings)
    if isinstance(load, Suite):
        rule = "one workload is simulated at a time"
        raise SettingError("workload", list(settings.files), rule, "give one traffic file")
    return load.model_copy(update={"seed": settings.seed})
