"""`tuner capacity`: the highest request rate that meets every SLO, for one configuration."""

from __future__ import annotations

from dataclasses import replace

import typer

from tuner.cli.options import AsJson, takes_settings
from tuner.settings.declared import RUN, WORKLOAD
from tuner.settings.study import StudySettings

SETTINGS = (
    *("preset", "workload", "rate", "temperature", "slo", "model", "tokenizer", "engine", "vllm", "llama_server"),
    *("sglang", "trtllm_serve", "server_command", "gpu", "vllm_version", "env", "secret", "repeats"),
    *("startup_timeout", "output"),
)


@takes_settings(
    StudySettings,
    *SETTINGS,
    preset={"panel": WORKLOAD, "help": "Preset with traffic, model and SLOs.", "default": "chat"},
    workload={"kind": str | None, "help": "Traffic, a YAML file."},
    rate={"help": "First request rate that is tried, in requests per second."},
    repeats={"panel": RUN, "help": "Searches on the same server; their median is the capacity."},
    output={"value": "DIR", "help": "Folder of logs; each search has a subfolder.", "default": "tuner_capacity"},
)
def capacity(settings: StudySettings, as_json: AsJson = False) -> None:
    """Find the highest request rate that meets every SLO.

    Starts one server and bisects the request rate. Without a GPU, or with --gpu, vLLM is simulated and the
    capacity is marked as such.

    Flags after `--` are passed to the server:

    tuner capacity --workload chat.yaml -- --max-num-seqs 64
    """
    from tuner.cli.output.pages.capacity import CapacityProgress, report
    from tuner.cli.signals import stop_on_signals
    from tuner.use_cases.capacity import search_capacity

    settings = replace(settings, study="capacity", objective=("capacity",))
    with stop_on_signals() as stop:
        result = search_capacity(settings, CapacityProgress(), stop)
    raise typer.Exit(report(result, as_json=as_json))
