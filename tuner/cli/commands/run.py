"""The commands that measure or predict: `capacity`, `optimize`, `quality`, `size`, `simulate` and `recheck`.

A command takes the settings that `takes_settings` names, and its own options. A keyword of `takes_settings` changes the
help or default of one setting.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from tuner.cli.help import flag, option
from tuner.cli.options import AsJson, Margin, Storage, numbers, of, takes_settings
from tuner.cli.output import pages
from tuner.settings.declared import GOALS, MODEL, OUTPUT, RUN, SERVER, SIZE, STUDY, WORKLOAD, settings_of
from tuner.settings.fleet import SIZE_PRESET, SIZED, FleetSettings, SizeSettings
from tuner.settings.study import AskedSettings, StudySettings, WorkloadSettings


@takes_settings(
    StudySettings,
    *("preset", "workload", "rate", "temperature", "slo", "model", "tokenizer", "engine", "vllm", "llama_server"),
    *("sglang", "trtllm_serve", "server_command", "gpu", "vllm_version", "env", "secret", "repeats"),
    *("startup_timeout", "output"),
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
    settings = replace(settings, study="capacity", objective=("capacity",))
    raise typer.Exit(pages.benchmarks.run_capacity(settings, as_json=as_json))


@takes_settings(StudySettings)
def optimize(
    settings: StudySettings,
    plain: Annotated[
        bool,
        flag(OUTPUT, "Print one line per trial instead of a live view.", "--plain"),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Find the best configuration and write it as a script.

    Searches, measures the finalists and the defaults again in rounds, and writes best_serve.sh. Exits with 3 if no
    configuration meets the SLOs, and with 4 if --timeout came before a result; the same command continues.

    Flags after `--` go to every server, as in `-- --load-format dummy`.
    """
    raise typer.Exit(pages.optimize.run_study(settings, plain=plain, as_json=as_json))


@takes_settings(
    StudySettings,
    *("study", "model", "vllm", "env", "secret", "quality_task", "startup_timeout", "storage", "server_arguments"),
    study={"help": "Check a trial of this study.", "shown": "none"},
    model={
        "value": "DIR|NAME",
        "help": "The model to check: a folder or a hub name, possibly a quantized checkpoint.",
        "shown": "Qwen/Qwen2.5-0.5B",
        "kind": str | None,
    },
    vllm={"kind": str | None},
    startup_timeout={"panel": MODEL},
)
def quality(
    settings: StudySettings,
    trial: Annotated[int | None, option(STUDY, "INTEGER", "Number of the study's trial.", shown="the winner")] = None,
    reference: Annotated[
        str | None,
        option(MODEL, "DIR|NAME", "The unquantized model.", shown="--model, or the study's"),
    ] = None,
    slo: Annotated[
        str,
        option(GOALS, "SLO", "The accuracy to keep, as a share of the reference's."),
    ] = "quality>=0.99",
    as_json: AsJson = False,
) -> None:
    """Check whether a configuration keeps the model's answers.

    Starts the reference and the candidate one after another, each once: the database keeps what they answered. The
    candidate is --model with the flags of `vllm serve` after `--`. The reference has no flag that changes answers:

    tuner quality --model DIR --quality-task questions.jsonl -- --quantization fp8

    With --study, the candidate is a trial of a study, and its script shows the result:

    tuner quality --study NAME --quality-task questions.jsonl
    """
    pages.benchmarks.run_quality(settings, reference, slo, trial, as_json=as_json)


_, _CARDS = settings_of(FleetSettings)["card"]
_, _PRICES = settings_of(FleetSettings)["card_price"]


@takes_settings(
    SizeSettings,
    *(*SIZED, "vllm", "startup_timeout", "most_gpus", "headroom", "spares", "confirm", "output"),
    preset={"panel": WORKLOAD, "help": "Preset with traffic, model and SLOs.", "default": SIZE_PRESET},
    workload={"kind": str | None, "help": "Traffic, a YAML file."},
    rate={"help": "Mean request rate that the fleet gets, in requests per second."},
    output={"value": "DIR", "help": "Folder of the page, the JSON document and logs.", "default": "tuner_size"},
)
def size(
    settings: SizeSettings,
    gpu: Annotated[
        list[str] | None,
        of("gpu", panel=SIZE, help="Card to compare: a name such as h200, or a YAML file.", shown=_CARDS.shown),
    ] = None,
    price: Annotated[
        list[str] | None,
        of("price", panel=SIZE, value="CARD=NUMBER", help=_PRICES.help, shown=_PRICES.shown),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Find how many servers of which card and shape a load needs.

    Predicts the rate that one server holds within the SLOs, for each card and shape, the servers for the peak with
    headroom and spares, and their cost. Writes a page and a JSON document. With --confirm, the cheapest shapes are
    measured, and the others corrected by them. Flags after `--` are passed to every server.

    tuner size --workload chat.yaml --gpu l4 --gpu h100 --price h100=2.5
    """
    settings = replace(settings, card=tuple(gpu or ()), card_price=numbers("price", price, "CARD=NUMBER"))
    raise typer.Exit(pages.size.run_size(settings, as_json=as_json))


@takes_settings(
    AskedSettings,
    *("preset", "gpu", "gpus_per_trial", "price", "model", "vllm_version", "env", "server_arguments"),
    *(*settings_of(WorkloadSettings), "seed"),
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
    host: Annotated[
        str | None, option(RUN, "NAME", "Host whose measured trials correct the prediction.", shown="this one")
    ] = None,
    noise: Annotated[bool, flag(OUTPUT, "Add the noise of a measured benchmark.", "--noise")] = False,
    storage: Storage = None,
    as_json: AsJson = False,
) -> None:
    """Predict the metrics of one configuration.

    Nothing is started, and no GPU is needed. What measured trials of a host told about the predictor is used, for the
    same card and version of vLLM. The configuration is the flags of `vllm serve` after `--`:

    tuner simulate --gpu h200 -- --max-num-seqs 64 --quantization fp8

    tuner simulate --gpu h200 --model Qwen/Qwen2.5-72B-Instruct -- --tensor-parallel-size 4
    """
    pages.benchmarks.print_prediction(
        settings, noise=noise, instances=instances, host=host, storage=storage, as_json=as_json
    )


def recheck(
    study: Annotated[
        str | None,
        typer.Argument(
            metavar="[STUDY]", help="Name of a study, or a file that --save wrote.", show_default="the latest"
        ),
    ] = None,
    vllm: Annotated[
        list[str] | None,
        option(SERVER, "FILE", "The vllm executable of today; several are compared.", shown="that of this machine"),
    ] = None,
    model: Annotated[
        str | None, option(MODEL, "DIR|NAME", "Model to serve, such as new weights.", shown="the study's")
    ] = None,
    margin: Margin = 3.0,
    rounds: Annotated[
        int, option(RUN, "INTEGER", "Rounds of all servers; at most twice as many are run.", least=2)
    ] = 3,
    save: Annotated[
        Path | None, option(OUTPUT, "FILE", "Write today's measurements, to be rechecked later.", shown="none")
    ] = None,
    junit: Annotated[Path | None, option(OUTPUT, "FILE", "Write the result as JUnit XML.", shown="none")] = None,
    summary: Annotated[Path | None, option(OUTPUT, "FILE", "Append the result as Markdown.", shown="none")] = None,
    storage: Storage = None,
    output: Annotated[Path, option(OUTPUT, "DIR", "Folder of the logs.", "--output", "-o")] = Path("tuner_recheck"),
    as_json: AsJson = False,
) -> None:
    """Recheck a study's winner on the installation of today.

    Says what changed since the study, measures the winner and the reference in alternation, and compares the gain with
    the study's. With --vllm twice, the winner runs on each version, and each is compared with the first. Exits with 0
    if the answer holds or is better, with 6 if it is worse, and with 5 if the rounds cannot tell.

    tuner recheck --vllm old/bin/vllm --vllm new/bin/vllm
    """
    settings = pages.recheck.RecheckSettings(
        study=study,
        programs=tuple(vllm or ()),
        model=model,
        margin=margin / 100,
        rounds=rounds,
        save=save,
        output=output,
        storage=storage,
    )
    raise typer.Exit(pages.recheck.run_recheck(settings, junit_file=junit, summary=summary, as_json=as_json))
