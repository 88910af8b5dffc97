"""The Python API: run a study, and read one that is stored.

    import tuner

    study = tuner.optimize(model="Qwen/Qwen2.5-0.5B", slo=["p99_ttft_ms<1500"], trials=60)
    print(study.conclusion["reason"], study.best.config)

`tuner` exports these names and loads this module on first use, so `import tuner` stays cheap.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

from storage import open_store
from storage.records import TrialRecord
from tuner.cancellation import Wishes
from tuner.errors import SettingError, UserError
from tuner.observers.quiet import LineObserver, SilentObserver
from tuner.results.best_trial import BestTrial, best_trial
from tuner.study.specification import settings
from tuner.use_cases import optimize as optimize_use_case
from tuner.use_cases.files import export as export_use_case
from tuner.use_cases.keywords import MIN_GAIN, SEARCH_LOAD, Keywords
from tuner.use_cases.places import find_study, storage_url

if TYPE_CHECKING:
    import pandas as pd

    from tuner.use_cases.report.plots import StudyPlots


class Study:
    """A stored study. Every property reads the database, so it shows the progress of a run in another process."""

    def __init__(self, name: str, url: str) -> None:
        self.name = name
        self.storage_url = url
        """SQLAlchemy URL of the database; `optuna.load_study(study_name=…, storage=…)` takes it, too."""

    def __repr__(self) -> str:
        return f"Study({self.name!r})"

    @property
    def trials(self) -> list[TrialRecord]:
        """Every trial and every measurement of a finalist (`round` above 0), by number and round."""
        with closing(open_store(self.storage_url)) as store:
            return store.trials(self.name)

    @property
    def conclusion(self) -> Mapping[str, Any] | None:
        """The result: winner, reason, finalists with ratios and intervals, flag effects; None before the study ends."""
        with closing(open_store(self.storage_url)) as store:
            return find_study(store, self.name).conclusion

    @property
    def best(self) -> BestTrial | None:
        """The configuration that the study recommends; None before it ends, or if no trial satisfies the SLOs."""
        conclusion = self.conclusion
        if conclusion is None or conclusion.get("winner") is None:
            return None
        return best_trial(conclusion, self.trials)

    def trials_dataframe(self) -> pd.DataFrame:
        """Return one row for each finished trial and round: state, score, configuration, metrics and timings."""
        from dashboards.analysis.trials_frame import trials_frame

        return trials_frame(self.trials)

    @property
    def plot(self) -> StudyPlots:
        """The figures of the report, as Plotly figures: `study.plot.pareto().show()`."""
        from tuner.use_cases.report.plots import StudyPlots

        return StudyPlots(self.name, self.storage_url)

    def report(self, path: str | os.PathLike[str]) -> Path:
        """Write the report, one HTML file, and return its path.

        Raises:
            UserError: if the study has no finished trial, or the file cannot be written.
        """
        from tuner.use_cases.report.write import report

        return report([self.name], Path(path), self.storage_url)

    def export(self, path: str | os.PathLike[str], trial: int | None = None, format: str = "script") -> Path:
        """Write a file that starts the server of a trial, and return its path.

        The format `script` is a bash script that, with `--verify`, measures the server again. Formats with a second
        file write it beside the first.

        Args:
            path: the file's path.
            trial: number of the trial; None: the winner.
            format: `script`, `command`, `vllm-config`, `compose`, `kubernetes`, `kserve`, `ray-serve` or `systemd`.

        Raises:
            UserError: if there is no such trial or format, the trial has no metrics, the format cannot hold its server,
                or the file cannot be written.
        """
        return export_use_case.export(self.name, trial, Path(path), self.storage_url, format)[0]


def optimize(
    *,
    trials: int = 60,
    preset: str = settings.DEFAULT_PRESET,
    study: str | None = None,
    model: str | None = None,
    tokenizer: str | None = None,
    objective: Sequence[str] = (),
    slo: Sequence[str] = (),
    quality_task: str | None = None,
    workload: Sequence[str | os.PathLike[str]] = (),
    rate: float | None = None,
    max_concurrency: int | None = None,
    num_prompts: int | None = None,
    input_len: int | None = None,
    output_len: int | None = None,
    temperature: float | None = None,
    space: str | None = None,
    only: Sequence[str] = (),
    keep_answers: bool = False,
    bunched_tokens: bool = False,
    enqueue: Sequence[str] = (),
    baseline: str | None = None,
    server_arguments: Sequence[str] = (),
    env: Mapping[str, str] | None = None,
    secret: Sequence[str] = (),
    engine: str = "auto",
    vllm: str | None = None,
    llama_server: str | None = None,
    sglang: str | None = None,
    trtllm_serve: str | None = None,
    server_command: str | None = None,
    gpu: str | None = None,
    vllm_version: str | None = None,
    price: float | None = None,
    gpus_per_trial: int | None = None,
    nodes_per_trial: int = 1,
    workers: int | None = None,
    ray_address: str | None = None,
    storage: str | None = None,
    timeout: float | str | None = None,
    seed: int = 0,
    sampler: str = settings.AUTO,
    learn_from: Sequence[str] = (),
    finalists: int = 3,
    confirm_rounds: int = 3,
    reduce: bool = True,
    search_load: float = SEARCH_LOAD,
    min_gain: float = MIN_GAIN,
    ablate: bool = False,
    output: str | os.PathLike[str] = settings.SCRIPT,
    progress: bool = False,
) -> Study:
    """Run a study, or resume the one of the same name, and return it.

    The keywords are the options of `tuner optimize`, whose help describes each; `max_concurrency` is `--users` and
    `num_prompts` is `--prompts`. Without a GPU the engine is simulated, and every trial has the provenance `simulated`.

    Args:
        trials: trials of the study, the defaults and trials of earlier runs included.
        preset: model, workload, SLOs and search space under one name; other keywords replace its parts.
        study: name of the study; None: from preset, model, card and workload.
        model: folder or hub name of the model; for llama.cpp, a GGUF file.
        tokenizer: of the load generator; None: the model's.
        objective: `METRIC` or `METRIC:WEIGHT`, such as `output_throughput:40`.
        slo: bounds on metrics, such as `p99_ttft_ms<1500`.
        quality_task: JSONL file of questions, for an SLO such as `quality>=0.99`.
        workload: traffic files, sent one after another.
        rate: mean requests per second of the traffic.
        max_concurrency: users of a closed loop.
        num_prompts: requests of one benchmark of a closed loop.
        input_len: tokens of a prompt.
        output_len: tokens of an answer.
        temperature: sampling temperature, set on the server.
        space: a shipped search space or a YAML file.
        only: tune only these parameters.
        keep_answers: leave out parameters that change the model's answers.
        bunched_tokens: offer parameters that send tokens to users in groups, also without an SLO on ITL.
        enqueue: configurations to measure before the search, by name or as JSON.
        baseline: what runs today, by name, as JSON or as flags; the winner is compared with it. None: the defaults.
        server_arguments: flags of every server.
        env: environment variables of every server; `${NAME}` in a value refers to a variable of this process.
        secret: variables and flags of the server that are secrets, beside those whose names say so.
        engine: `vllm`, `llama.cpp`, `sglang`, `tensorrt-llm`, `openai`, `simulated`, or `auto`: simulated without a
            GPU.
        vllm: the vLLM executable.
        llama_server: the llama-server executable.
        sglang: the Python that has SGLang.
        trtllm_serve: TensorRT-LLM's trtllm-serve executable.
        server_command: the command of the engine `openai`, with `{port}` for the port.
        gpu: the card to simulate.
        vllm_version: the vLLM version to simulate.
        price: of one GPU for an hour, in any currency, for the cost of tokens; None: the card's list price.
        gpus_per_trial: GPUs of each worker; None: as many as the server's own flags need.
        nodes_per_trial: nodes of the cluster over which they are spread evenly.
        workers: number of workers; None: as many as the GPUs allow.
        ray_address: Ray cluster to run on; None: this machine.
        storage: file or SQLAlchemy URL of the database; None: tuner_study/tuner.db.
        timeout: wall-clock time of this run, in seconds or such as "2h".
        seed: seed of the search.
        sampler: `residual`, `tpe` or `auto`.
        learn_from: source studies in the same database.
        finalists: trials that are measured again at the end.
        confirm_rounds: rounds of the finalists; 0: none.
        reduce: measure the winner with fewer flags, too; the smallest form that is as good is exported.
        search_load: share of a closed loop's requests that the search sends.
        min_gain: the search ends when the expected gain stays below this many per cent of the score; 0: never.
        ablate: measure the best configuration without each of its flags.
        output: where the winner's script is written.
        progress: print a line for each trial to standard error.

    Raises:
        SettingError: for a setting that cannot work; `field` is the keyword.
        UserError: for anything else that the caller can correct.
        TunerError: for errors of the tuner or its infrastructure.
    """
    given = dict(locals())  # every keyword of this function, before any other name is bound
    keywords = Keywords.of({**given, "workload": [os.fspath(each) for each in workload], "env": env or {}})
    choice = settings.EngineChoice(
        *(engine, vllm, gpu, vllm_version, workers),
        ray_address=ray_address,
        llama_server=llama_server,
        sglang=sglang,
        trtllm_serve=trtllm_serve,
        server_command=server_command,
    )
    run = settings.RunSettings(keywords.budget(), choice, storage, Path(output))
    observer = LineObserver() if progress else SilentObserver()
    result = optimize_use_case.optimize(keywords.study_settings(), run, observer, Wishes())
    return Study(result.spec.name, storage_url(storage, create=False))


def load_study(name: str | None = None, storage: str | None = None) -> Study:
    """Return a stored study.

    Args:
        name: name of the study; None: the latest of the database.
        storage: file or SQLAlchemy URL of the database; None: tuner_study/tuner.db in the current folder.

    Raises:
        UserError: if there is no such database or study.
    """
    url = storage_url(storage, create=False)
    with closing(open_store(url)) as store:
        return Study(find_study(store, name).name, url)


__all__ = ["BestTrial", "SettingError", "Study", "UserError", "load_study", "optimize"]
