"""The use case of `tuner server verify`: send a study's workload to a server that runs anywhere, and compare."""

from __future__ import annotations

import gzip
import os
import tempfile
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import urlsplit

from records.measured import exported_of
from records.trials import Provenance, Repeat
from storage import open_store
from tuner.engines.server.devices import base_environment
from tuner.engines.server.traffic import ResultError
from tuner.engines.vllm.bench_serve import read_result
from tuner.engines.vllm.engine import CLIENT_API_KEY
from tuner.engines.vllm.toolbox import Toolbox, find_executable, installation
from tuner.errors import SettingError, TunerError, UserError
from tuner.export.deployment import Deployment
from tuner.export.from_study import deployment_of, verified_workload
from tuner.export.quoting import PORT_PLACEHOLDER, RESULTS_PLACEHOLDER, SEED_PLACEHOLDER
from tuner.export.references import Comparison, compared
from tuner.export.render import LOAD_SEED_STRIDE
from tuner.export.verification import CarriedTraffic
from tuner.files import home
from tuner.gpu import SlowdownWatch, devices, load_warning
from tuner.specs import Limits
from tuner.study.specification.spec import Budget
from tuner.use_cases.load import LoadSettings, send_load, served_model, server_key
from tuner.use_cases.places import find_study, storage_url
from tuner.workloads.spec import ClosedLoop, Workload
from tuner.workloads.traffic import is_as_read

_LOCAL_HOSTS = ("localhost", "127.0.0.1", "::1")
_LOCAL_URL = f"http://127.0.0.1:{PORT_PLACEHOLDER}"


@dataclass(frozen=True)
class VerifySettings:
    """The server's URL without `/v1`, study and trial as for an export, model and vllm as for `tuner server load`."""

    url: str
    study: str | None
    trial: int | None
    model: str | None
    vllm: str | None
    storage: str | None


@dataclass(frozen=True)
class Verified:
    """What a verification found: lines about what is not measured, and about what disturbs the measurement here."""

    comparison: Comparison
    study: str
    trial: int
    provenance: Provenance
    unverified: tuple[str, ...]
    disturbed: tuple[str, ...] = ()


def verify(settings: VerifySettings) -> Verified:
    """Send the workload of a trial as often as the study did, with seeds that no trial used, and compare.

    Raises:
        UserError: for a setting that cannot work, a server that does not answer, or a benchmark that fails.
    """
    with closing(open_store(storage_url(settings.storage, create=False))) as store:
        record = find_study(store, settings.study)
        number = exported_of(record.conclusion) if settings.trial is None else settings.trial
        if number is None:
            raise SettingError("trial", None, f"study {record.name!r} has no winner yet", "give {trial} N")
        records = store.trials(record.name)
    script = deployment_of(record, number, records)
    workload = verified_workload(record, number, records)
    name, _ = served_model(settings.url, settings.model or script.served_name)
    loaded = load_warning()
    indices = [device.index for device in devices()] if urlsplit(settings.url).hostname in _LOCAL_HOSTS else []
    try:
        with tempfile.TemporaryDirectory() as folder, SlowdownWatch(indices) as watch:
            repeats = _repeats(settings, script, workload, Path(folder), name)
    except UserError:
        raise
    except TunerError as error:
        raise UserError(f"the verification could not run: {error}") from None
    sent = script.verification
    comparison = compared(sent.reference, script.slos, repeats)
    disturbed = (*([] if loaded is None else [loaded]), *watch.warnings())
    return Verified(comparison, record.name, number, script.provenance, sent.unverified, disturbed)


def _repeats(settings: VerifySettings, script: Deployment, workload: Workload, folder: Path, name: str) -> list[Repeat]:
    if isinstance(workload, ClosedLoop) and script.verification.traffic is None:
        return _closed_loop(settings, script, workload, folder, name)
    sent = script.verification
    assert sent.traffic is not None
    assert sent.limit_s is not None
    load = LoadSettings(
        url=settings.url,
        workloads=_written(sent.traffic, folder),
        model=name,
        tokenizers=sent.tokenizers,
        seed=sent.first_seed,
        limit_s=sent.limit_s,
        vllm=settings.vllm,
        output=folder,
        new_connections=sent.new_connections,
    )
    return [_traffic(load, index, sent.repeats) for index in range(sent.repeats)]


def _written(traffic: CarriedTraffic, folder: Path) -> tuple[str, ...]:
    """Write the workloads and the files that they read; return the workloads' paths."""
    for path, digest in traffic.needed.items():
        if not is_as_read(Path(path), digest):
            rule = f"the study's traffic reads {path}, which is not there as it was"
            raise SettingError("study", None, rule, "copy the study's file there")
    for file, content in traffic.files.items():
        (folder / file).write_bytes(gzip.decompress(content))
    for file, text in traffic.workloads.items():
        (folder / file).write_text(text, encoding="utf-8")
    return tuple(str(folder / file) for file in traffic.workloads)


def _traffic(load: LoadSettings, index: int, repeats: int) -> Repeat:
    """Send the traffic once, and again where the load generator was late, as often as a study does."""
    reason = None
    for attempt in range(Budget.attempts):
        seed = load.seed + LOAD_SEED_STRIDE * (index + attempt * repeats)
        result = send_load(replace(load, seed=seed, output=load.output / f"requests-{seed}"))
        reason = result.invalid
        if not result.repeat.completed and result.failures:
            raise UserError(f"the traffic was not measured: {'; '.join(result.failures)}")
        if reason is None:
            return result.repeat
    raise UserError(f"the traffic was not measured: {reason}; run it on a machine with less work")


def _closed_loop(
    settings: VerifySettings, script: Deployment, workload: ClosedLoop, folder: Path, name: str
) -> list[Repeat]:
    sent = script.verification
    repeats = []
    vllm = installation(find_executable(settings.vllm), home())
    with closing(Toolbox(vllm, home(), base_environment(os.environ))) as tools:
        if sent.warmup_argv:
            _run(tools, _words(settings, script, sent.warmup_argv, folder / "warm-up", sent.first_seed, name))
        for index in range(sent.repeats):
            seed, results = sent.first_seed + index, folder / str(index)
            _run(tools, _words(settings, script, sent.bench_argv, results, seed, name))
            try:
                repeats.append(read_result(results / "result.json", workload, index, seed))
            except ResultError as error:
                raise UserError(f"the benchmark was not measured: {error}") from None
    return repeats


def _words(
    settings: VerifySettings, script: Deployment, words: tuple[str, ...], results: Path, seed: int, name: str
) -> tuple[list[str], Path]:
    """Return the arguments of `vllm` with their placeholders filled in, and the folder of the results, which exists."""
    results.mkdir()
    values = {_LOCAL_URL: settings.url, RESULTS_PLACEHOLDER: str(results), SEED_PLACEHOLDER: str(seed)}
    filled = list(words)
    for placeholder, value in values.items():
        filled = [word.replace(placeholder, value) for word in filled]
    place = filled.index("--model") + 1
    filled[place] = name if filled[place] == script.served_name else filled[place]
    return filled, results


def _run(tools: Toolbox, command: tuple[list[str], Path]) -> None:
    words, folder = command
    key, log = server_key(), folder / "client.log"
    environment = {**tools.environment, **({CLIENT_API_KEY: key} if key else {})}
    job = tools.start(words, environment, log, folder)
    try:
        ended = job.wait(Limits.benchmark_s)
    finally:
        job.cancel()
    if not ended:
        raise UserError(f"the benchmark was not done after {Limits.benchmark_s:g} s; see whether the server is slow")
    if job.exit_code != 0:
        lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines() if log.exists() else []
        raise UserError(f"the benchmark ended with {job.exit_code}: {lines[-1] if lines else 'no output'}")
