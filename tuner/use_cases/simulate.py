"""The use case of `tuner simulate`: one configuration on a simulated vLLM."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial

from search_spaces import HardwareProfile, ModelShape, Price
from search_spaces.argv import one_spelling
from search_spaces.render import gpus_of
from search_spaces.schema import VLLM
from tuner.engines.command_line import sampling_arguments
from tuner.engines.simulator.deployment import ConfiguredServer
from tuner.engines.simulator.learning import HostPosterior, linearised, moved
from tuner.engines.simulator.limits import TooFewGpus
from tuner.engines.simulator.memory import StartFailed
from tuner.engines.simulator.metrics import SimulatedRun
from tuner.engines.simulator.parameters import ErrorBands
from tuner.engines.simulator.precision import ConfigRefused, NotSimulated
from tuner.engines.simulator.prediction import Platform, build_server, client_metrics, run_workload
from tuner.engines.simulator.roofline import Roofline, roofline_of
from tuner.errors import SettingError, UserError
from tuner.scoring.cost import token_costs
from tuner.settings.study import AskedSettings
from tuner.study.specification.find_model import find_simulated_model, too_long
from tuner.study.specification.resolve_workload import check_price, find_price, find_workload
from tuner.use_cases.engines import find_card, find_version
from tuner.workloads.presets import Preset, load_preset
from tuner.workloads.spec import SingleWorkload, Suite

MOST_GPUS = 8
"""GPUs of the largest common machine."""
_SPLITS = ("--tensor-parallel-size", "--pipeline-parallel-size", "--data-parallel-size")


Learned = Callable[[HardwareProfile, str], "HostPosterior | None"]
"""Returns what is learned of a host with a card and a version of vLLM; None: nothing."""


def _nothing(card: HardwareProfile, version: str) -> None:
    """Return that nothing is learned: the stored parameters count."""


@dataclass(frozen=True)
class Simulation:
    """A prediction: metrics, the simulated server and its platform.

    `price` is the one that the costs follow from; None: unknown, and there are none. `error_bands` are the documented
    ones, or follow from the measured trials of the host that it was `learned` from; None: nothing was learned.
    """

    metrics: Mapping[str, float | None]
    workload: SingleWorkload
    run: SimulatedRun
    roofline: Roofline
    machine: ConfiguredServer
    card: HardwareProfile
    vllm_version: str
    model: str
    error_bands: ErrorBands
    price: Price | None = None
    learned: HostPosterior | None = None

    @property
    def offered(self) -> int:
        """The requests of the workload."""
        return len(self.run.requests)

    @property
    def completed(self) -> int:
        """The requests that completed."""
        return self.run.completed

    @property
    def copies(self) -> int:
        """The copies of the model, each with its own queue and KV cache."""
        return self.machine.instances * self.machine.config.parallel.data

    @property
    def output_throughput_per_gpu(self) -> float | None:
        """The output throughput in tokens per second, divided by the GPUs that work."""
        value = self.metrics.get("output_throughput")
        return None if value is None else value / self.machine.gpus


def simulate(
    settings: AskedSettings, *, noise: bool = False, instances: int = 1, learned: Learned = _nothing
) -> Simulation:
    """Predict one configuration on equal servers; with noise, as a measured run differs from the expected value.

    `learned` returns what is known of the host.

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
        known, gpus = learned(card, version), settings.gpus_per_trial or gpus_of(words)
        stored = Platform.simulated(card, version, gpus)
        site = stored if known is None else moved(stored, known.point)
        machine = build_server(site, words, settings.env, shape, instances)
        if load.longest_request > machine.config.max_model_len:
            raise too_long(load, machine.config.max_model_len)
    except NotSimulated as error:
        raise UserError(str(error)) from None
    except TooFewGpus as error:
        raise SettingError("gpus_per_trial", gpus, str(error), f"give {{gpus_per_trial}} {error.needed}") from None
    except StartFailed as error:
        advice = split_advice(site, words, settings.env, shape)
        raise UserError(f"{_refused(version, card)}: {error}{advice}") from None
    except ConfigRefused as error:
        raise UserError(f"{_refused(version, card)}: {error}") from None
    done = run_workload(machine, load, settings.seed, noise=noise)
    metrics, price = client_metrics(load, done) or {}, find_price(settings.price, card)
    return Simulation(
        metrics={**metrics, **token_costs(metrics, None if price is None else price.per_gpu_hour * machine.gpus)},
        workload=load,
        run=done,
        roofline=roofline_of(done),
        machine=machine,
        card=card,
        vllm_version=version,
        model=reference.name,
        error_bands=_bands(machine, known, stored, partial(_metrics_on, words, settings, shape, instances, load)),
        price=price,
        learned=known,
    )


def _metrics_on(
    words: Sequence[str],
    settings: AskedSettings,
    shape: ModelShape,
    instances: int,
    load: SingleWorkload,
    platform: Platform,
) -> Mapping[str, float | None] | None:
    """Return the metrics on another platform; None for a closed loop that does not end."""
    server = build_server(platform, words, settings.env, shape, instances)
    return client_metrics(load, run_workload(server, load, settings.seed))


def _bands(
    machine: ConfiguredServer,
    known: HostPosterior | None,
    stored: Platform,
    predict: Callable[[Platform], Mapping[str, float | None] | None],
) -> ErrorBands:
    """Return the documented error bands, or those of what is known of the host; drafts are not part of that."""
    if known is None or machine.config.speculation is not None:
        return machine.error_bands
    found = linearised(stored, predict, known.point, experts=machine.config.model.is_mixture_of_experts)
    return machine.error_bands if found is None else ErrorBands(known.bands(found[1]))


def _refused(version: str, card: HardwareProfile) -> str:
    return f"vLLM {version} does not serve this configuration on {card.name}"


def split_advice(site: Platform, words: Sequence[str], environment: Mapping[str, str], shape: ModelShape) -> str:
    """Return the fewest GPUs of a machine over which a server that lacks memory fits, as the end of a message.

    Empty where the words split the server already.
    """
    if any(flag in one_spelling(words) for flag in _SPLITS):
        return ""
    for tensor in (2**power for power in range(1, MOST_GPUS.bit_length())):
        with suppress(ConfigRefused, StartFailed):
            build_server(replace(site, gpus=tensor), (*words, _SPLITS[0], str(tensor)), environment, shape, 1)
            return f" It fits on {tensor} GPUs: {_SPLITS[0]} {tensor}"
    rule = f"It does not fit on {MOST_GPUS} such GPUs either, by tensor parallelism"
    return f" {rule}: take a larger card or a smaller format"


def _single_workload(preset: Preset, settings: AskedSettings) -> SingleWorkload:
    load = find_workload(preset, settings)
    if isinstance(load, Suite):
        rule = "one workload is simulated at a time"
        raise SettingError("workload", list(settings.files), rule, "give one traffic file")
    return load.model_copy(update={"seed": settings.seed})
