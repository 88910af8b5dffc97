"""The commands that run benchmarks, measured or simulated."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from tuner.cli.from_server import ServerInstead, refuse_both
from tuner.cli.help import flag, option
from tuner.cli.options import (
    SERVER,
    AsJson,
    Env,
    Insecure,
    Margin,
    QualityTask,
    Rate,
    Secret,
    Slos,
    Storage,
    StudyName,
    Vllm,
    numbers,
    of,
    pairs,
    server_arguments,
    takes_settings,
)
from tuner.cli.output import pages
from tuner.errors import UserError
from tuner.settings.declared import GOALS, MODEL, OUTPUT, RUN, SIZE, STUDY, WORKLOAD, read_duration, settings_of
from tuner.settings.fleet import SIZE_PRESET, SIZED, FleetSettings, SizeSettings
from tuner.settings.study import AskedSettings, StudySettings, WorkloadSettings

_HERE = "http://127.0.0.1:8000"

CAPACITY_SETTINGS = (
    *("preset", "workload", "rate", "temperature", "slo", "model", "tokenizer", "engine", "vllm", "llama_server"),
    *("sglang", "trtllm_serve", "server_command", "gpu", "vllm_version", "env", "secret", "repeats"),
    *("startup_timeout", "output"),
)


@takes_settings(
    StudySettings,
    *CAPACITY_SETTINGS,
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


Text = str | None


def load(
    url: Annotated[str, option(SERVER, "URL", "URL of the server.")] = "http://127.0.0.1:8000",
    model: Annotated[
        Text,
        option(SERVER, "NAME", "Name of the model in requests.", shown="the first that the server lists"),
    ] = None,
    preset: Annotated[Text, of("preset", panel=WORKLOAD, help="Send the traffic of this preset.")] = None,
    workload: Annotated[
        list[str] | None,
        of("workload", help="Send the traffic of this YAML file; several are sent in turn.", shown=None),
    ] = None,
    study: Annotated[Text, of("study", panel=WORKLOAD, help="Send the traffic of this study.", shown=None)] = None,
    rate: Rate = None,
    seed: Annotated[int, of("seed", panel=WORKLOAD, help="Seed of arrivals and prompts.")] = 900_000,
    slo: Slos = None,
    tokenizer: Annotated[
        list[str] | None,
        option(
            MODEL,
            "DIR|NAME",
            "Tokenizer of the load generator: a folder or a hub name; with several, prompts use their common tokens.",
            shown="the model's",
        ),
    ] = None,
    vllm: Annotated[
        Text,
        of(
            "vllm",
            help="The vllm executable, whose Python reads the tokenizer; without one, the package tokenizers does.",
        ),
    ] = None,
    new_connections: Annotated[
        bool,
        flag(RUN, "Send each request over a connection of its own, as studies of a command do.", "--new-connections"),
    ] = False,
    timeout: Annotated[str, of("timeout", panel=RUN, help="Time limit of the benchmark.", shown=None)] = "30m",
    storage: Storage = None,
    output: Annotated[
        Path,
        option(OUTPUT, "DIR", "Folder of the recorded requests.", "--output", "-o"),
    ] = Path("tuner_load"),
    as_json: AsJson = False,
) -> None:
    """Benchmark a running server and check its SLOs.

    Sends the traffic of a preset, a file or a study, and prints metrics by request class. Exits with 1 if an SLO is
    missed, or if the load generator sent requests so late that the metrics are not valid. TUNER_API_KEY or VLLM_API_KEY
    is sent as the server's API key.

    tuner load --url http://127.0.0.1:8000 --preset chat
    """
    settings = pages.benchmarks.LoadSettings(
        url=url.rstrip("/").removesuffix("/v1"),
        workloads=tuple(workload or ()),
        preset=preset,
        study=study,
        rate=rate,
        slos=tuple(slo or ()),
        model=model,
        tokenizers=tuple(tokenizer or ()),
        seed=seed,
        limit_s=read_duration("timeout", timeout),
        vllm=vllm,
        storage=storage,
        output=output,
        new_connections=new_connections,
    )
    raise typer.Exit(pages.benchmarks.run_load(settings, as_json=as_json))


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
    configuration meets the SLOs; the script is then of the nearest one, and says so. Exits with 4 if --timeout ended
    the run before it had a result; the same command then continues it.

    Flags after `--` are passed to every server, such as `-- --load-format dummy`.
    """
    raise typer.Exit(pages.optimize.run_study(settings, plain=plain, as_json=as_json))


Number = int | None


def quality(
    context: typer.Context,
    study: Annotated[Text, of("study", help="Check a trial of this study.", shown="none")] = None,
    trial: Annotated[Number, option(STUDY, "INTEGER", "Number of the study's trial.", shown="the winner")] = None,
    model: Annotated[
        Text,
        option(
            MODEL,
            "DIR|NAME",
            "The model to check: a folder or a hub name, possibly a quantized checkpoint.",
            shown="Qwen/Qwen2.5-0.5B",
        ),
    ] = None,
    reference: Annotated[
        Text,
        option(MODEL, "DIR|NAME", "The unquantized model.", shown="--model, or the study's"),
    ] = None,
    vllm: Vllm = None,
    env: Env = None,
    secret: Secret = None,
    quality_task: QualityTask = None,
    slo: Annotated[
        str,
        option(GOALS, "SLO", "The accuracy to keep, as a share of the reference's."),
    ] = "quality>=0.99",
    startup_timeout: Annotated[str, of("startup_timeout", panel=MODEL)] = "15m",
    storage: Storage = None,
    as_json: AsJson = False,
) -> None:
    """Check whether a configuration keeps the model's answers.

    Starts the reference and the candidate one after another, each once: the database keeps what they answered. The
    candidate is --model with the flags of `vllm serve` after `--`. The reference has no flag that changes answers:

    tuner quality --model DIR --quality-task questions.jsonl -- --quantization fp8

    With --study, the candidate is a trial of a study, and its script shows the result:

    tuner quality --study NAME --quality-task questions.jsonl
    """
    settings = pages.benchmarks.QualitySettings(
        model=model,
        reference=reference,
        task=quality_task,
        slo=slo,
        vllm=vllm,
        server=pages.benchmarks.ServerSettings(server_arguments(context), pairs("env", env), tuple(secret or ())),
        storage=storage,
        startup_s=read_duration("startup_timeout", startup_timeout),
        study=study,
        trial=trial,
    )
    pages.benchmarks.run_quality(settings, as_json=as_json)


_CARDS, _PRICES = (settings_of(FleetSettings)[name][1] for name in ("card", "card_price"))


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


SIMULATE_SETTINGS = ("preset", "gpu", "gpus_per_trial", "price", "model", "vllm_version", "env", "server_arguments")


@takes_settings(
    AskedSettings,
    *(*SIMULATE_SETTINGS, *settings_of(WorkloadSettings), "seed"),
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


def verify(
    url: Annotated[str, option(None, "URL", "URL of the server.")] = _HERE,
    study: StudyName = None,
    trial: Annotated[int | None, option(None, "INTEGER", "Number of the trial.", shown="the winner")] = None,
    model: Annotated[str | None, option(None, "NAME", "Name of the model in requests.", shown="the study's")] = None,
    vllm: Vllm = None,
    storage: Storage = None,
) -> None:
    """Compare a running server with what the study measured.

    Sends the study's workload with seeds that no trial used, and prints one line for each metric and SLO, as
    best_serve.sh --verify does. Exits with 1 if a metric is worse than its recorded interval or an SLO is missed, with
    2 if it could not run, and with 5 if the study's own measurements vary too much to tell. TUNER_API_KEY or
    VLLM_API_KEY is sent as the server's API key.

    tuner verify --url http://10.0.0.7:8000 --study mine
    """
    settings = pages.benchmarks.VerifySettings(url.rstrip("/").removesuffix("/v1"), study, trial, model, vllm, storage)
    raise typer.Exit(pages.benchmarks.run_verification(settings))


def drift(
    url: Annotated[list[str] | None, option(None, "URL", "URL of a server of vLLM.", shown=_HERE)] = None,
    study: StudyName = None,
    window: Annotated[str, option(None, "DURATION", "Length of a window.")] = "5m",
    limit: Annotated[
        str | None, option(None, "DURATION", "How long to watch.", "--for", shown="until something has drifted")
    ] = None,
    end: Annotated[bool, flag(None, "With --server: the service watches no longer.", "--end")] = False,
    storage: Storage = None,
    server: ServerInstead = None,
    insecure: Insecure = False,
) -> None:
    """Watch running servers until their traffic is no longer that of the study.

    Reads /metrics, and prints a line for each window. Rate, lengths, cached prompts and latencies are compared with
    what the study measured. Exits with 6 once a property has deviated in three windows in a row. Nothing is sent to the
    servers, and nothing is changed. TUNER_API_KEY or VLLM_API_KEY is sent as their API key.

    tuner drift --url http://10.0.0.7:8000 --url http://10.0.0.8:8000 --study mine

    With --server, the service of the study watches from now on, and the command ends at once.
    """
    if server is not None:
        refuse_both(server, storage)
        if study is None or limit is not None:
            raise UserError("with --server, give --study, and leave --for out")
        if end == bool(url):
            raise UserError("with --server, give either --url URL or --end")
        window_s = read_duration("window", window)
        pages.service.watch_deployed(server, study, url or (), window_s, insecure=insecure)
        return
    if end:
        raise UserError("--end is for a service; give --server URL, or end this command with Ctrl-C")
    urls = tuple(each.rstrip("/").removesuffix("/v1") for each in url or [_HERE])
    limit_s = None if limit is None else read_duration("for", limit)
    settings = pages.benchmarks.DriftSettings(urls, study, storage, read_duration("window", window), limit_s)
    raise typer.Exit(pages.benchmarks.run_drift(settings))


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
        Text, option(MODEL, "DIR|NAME", "Model to serve, such as new weights.", shown="the study's")
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
