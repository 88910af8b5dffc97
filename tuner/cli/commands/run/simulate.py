"""`tuner simulate`: the predicted metrics of one configuration."""

from __future__ import annotations

from typing import Annotated

from tuner.cli.help import flag, option
from tuner.cli.options import AsJson, takes_settings
from tuner.settings.declared import MODEL, OUTPUT, RUN, WORKLOAD, settings_of
from tuner.settings.study import AskedSettings, WorkloadSettings

SETTINGS = ("preset", "gpu", "gpus_per_trial", "price", "model", "vllm_version", "env", "server_arguments")


@takes_settings(
    AskedSettings,
    *(*SETTINGS, *settings_of(WorkloadSettings), "seed"),
    preset={"panel": MODEL, "help": "Preset with model, card and workload."},
    model={"value": "NAME|DIR", "help": "Model: a known name, or a folder with its config.json."},
    workload={"kind": str | None, "help": "Traffic, a YAML file."},
    seed={"panel": WORKLOAD, "help": "Seed of the workload.", "default": 1000},
)
def simulate(
    settings: AskedSettings,
    instances: Annotated[
        int,
        option(RUN, "INTEGER", "Equal servers behind a router; with fewer GPUs than servers they share them.", least=1),
    ] = 1,
    noise: Annotated[bool, flag(OUTPUT, "Add the noise of a measured benchmark.", "--noise")] = False,
    as_json: AsJson = False,
) -> None:
    """Predict the metrics of one configuration.

    Nothing is started, and no GPU is needed. The configuration is the flags of `vllm serve` after `--`:

    tuner simulate --gpu h200 -- --max-num-seqs 64 --quantization fp8

    tuner simulate --gpu h200 --model Qwen/Qwen2.5-72B-Instruct -- --tensor-parallel-size 4
    """
    from tuner.cli.output.pages.simulate import report
    from tuner.use_cases.simulate import simulate as predict

    report(predict(settings, noise=noise, instances=instances), as_json=as_json)
