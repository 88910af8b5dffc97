"""A walk over all settings with hostile values: no plan that is accepted gives a server anything outside the list.

The assertion is about the command lines and environments of an accepted plan's trials, not about the answer.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from records.trials import Provenance, TrialKind
from search_spaces import ParameterValue, hardware_named
from tests.contracts.space_contract import FLAGS, RandomTrial
from tuner.engines.base import EngineInfo
from tuner.engines.simulator.flags import SIMULATED_PACKAGES
from tuner.errors import UserError
from tuner.service.asked.check import check_asked, check_plan
from tuner.service.asked.contents import files_of, with_files
from tuner.service.asked.rules import ServerRules
from tuner.service.asked.settings import names, read_settings
from tuner.service.driver.run import _permit
from tuner.study.specification.builder import build_spec
from tuner.study.specification.plan import plan_study

ENGINE = EngineInfo("vllm", "0.32.0", None, FLAGS["0.32.0+cpu"], Provenance.MEASURED, SIMULATED_PACKAGES)
DRAWN = 3
"""Random configurations of each accepted plan."""

FLAGS_THAT_HARM = (
    *("--trust-remote-code", "--tr", "--trust_remote_code", "--config", "--hf-overrides", "--worker-cls"),
    *("--worker-extension-cls", "--middleware", "--scheduler-cls", "--logits-processors", "--tool-parser-plugin"),
    *("--reasoning-parser-plugin", "--io-processor-plugin", "--distributed-executor-backend", "--kv-transfer-config"),
    *("--kv-events-config", "--ec-transfer-config", "--chat-template", "--lora-modules", "--enable-lora"),
    *("--ssl-keyfile", "--ssl-certfile", "--ssl-ca-certs", "--allowed-local-media-path", "--allowed-media-domains"),
    *("--otlp-traces-endpoint", "--model", "--tokenizer", "--hf-config-path", "--load-format", "--download-dir"),
    *("--model-loader-extra-config", "--additional-config", "--compilation-config.backend", "-cc.inductor_passes"),
    *("--compilation-config.cache_dir", "-O.backend", "--speculative-config.draft_load_config", "--api-key"),
    *("--uds", "--root-path", "--log-config-file", "--hf-token", "--served-model-name", "--host", "--port"),
    *("--data-parallel-address", "--master-addr", "--node-rank", "--headless", "--ray-workers-use-nsight"),
    *("--profiler-config", "--collect-detailed-traces", "--show-hidden-metrics-for-version", "--swap-space"),
    *("--cpu-offload-gb", "--weight-transfer-config", "--mm-processor-kwargs", "--media-io-kwargs", "--runner"),
)
FOREIGN = ("/etc/passwd", "contents/p.yaml", "../../secret", "http://169.254.169.254/", "file:///etc/passwd")
PRESET = "description: x\nsource: x\nmodel: m\nhardware: h100\nspace: contents/s.yaml\nworkload: {}\n"
FILES = {"p.yaml": PRESET, "s.yaml": "parameters: {}\n"}
HOSTILE = (*FOREIGN, *FLAGS_THAT_HARM)

LISTS = ("objective", "slo", "workload", "only", "enqueue", "server_arguments", "secret", "learn_from")
MODEL = "Qwen/Qwen2.5-0.5B"


def test_the_list_of_harmful_flags_has_sixty() -> None:
    assert len(set(FLAGS_THAT_HARM)) == 60


def values_for(field: str, hostile: str) -> Iterator[Any]:
    """Yield the forms in which a setting could carry a hostile word."""
    if field == "env":
        yield from ({hostile: "1"}, {"LD_PRELOAD": hostile}, {"VLLM_USE_FLASHINFER_SAMPLER": hostile})
    elif field == "files":
        yield {"a.yaml": f"include: ['{hostile}']\n"}
    elif field in LISTS:
        yield from ([hostile], ["--max-num-seqs", "8", hostile, "x"])
        yield [json.dumps({"max_num_seqs": 8, "x": hostile})]
    elif field == "baseline":
        yield from (hostile, f"--max-num-seqs 8 {hostile} x")
    elif field == "space":
        yield from (hostile, *own_spaces(hostile))
    else:
        yield from (hostile, f"lm-eval:{hostile}", f"{hostile}\n")


def own_spaces(hostile: str) -> Iterator[str]:
    """Yield search spaces that try to write a word: as flag, argument, value, key and variable."""
    word = json.dumps(hostile)
    head = "parameters:\n  own:\n    description: x\n    type: categorical\n"
    yield f"{head}    flag: {word}\n    choices: [a, b]\n"
    yield f"{head}    choices: [{{value: a, args: [{word}]}}, {{value: b, args: []}}]\n"
    yield f"{head}    flag: --attention-backend\n    choices: [{word}, FLASHINFER]\n"
    yield f"{head}    env: LD_PRELOAD\n    choices: [{word}, b]\n"
    yield f"{head}    env: VLLM_USE_FLASHINFER_SAMPLER\n    choices: [{word}, b]\n"
    yield f"{head}    json: {{flag: --compilation-config, key: {word}}}\n    choices: [a, b]\n"
    yield f"{head}    json: {{flag: --speculative-config, key: method}}\n    choices: [{word}, ngram]\n"
    yield f"include: [{word}]\n{head}    flag: --attention-backend\n    choices: [FLASHINFER, FLASH_ATTN]\n"


def accepted(given: Mapping[str, Any], folder: Path) -> list[tuple[tuple[str, ...], Mapping[str, str]]] | None:
    """Return the command lines and environments of a submission's trials; None if it is refused."""
    rules = ServerRules()
    try:
        keywords, files = read_settings(given, "walk"), files_of(given)
        check_asked(keywords, files, rules)
        check_plan(keywords, files, "h100", simulated=False)
        own = with_files(keywords, files, folder)
        plan = plan_study(own, simulated=True, card="h100")
        spec = build_spec(plan, ENGINE, hardware_named("h100"), folder)
        _permit(spec, rules)
    except UserError:
        return None
    configs: list[Mapping[str, ParameterValue]] = [spec.space.suggest(RandomTrial(seed)) for seed in range(DRAWN)]
    configs += [each.config for each in (*spec.enqueue, spec.baseline) if each is not None]
    launches = [spec.trial(0, 0, 0, TrialKind.SEARCH, config).launch for config in configs]
    assert all(launch.model.name == MODEL for launch in launches)
    return [((*launch.base_argv, *launch.argv), launch.environment) for launch in launches]


def written_by_shipped_spaces() -> set[str]:
    """Return the flags in the texts of the shipped spaces, found without the code under test."""
    folder = Path(__file__).parents[4] / "search_spaces" / "vllm"
    text = "\n".join(path.read_text() for path in folder.glob("*.yaml"))
    return {*re.findall(r"--[a-z0-9-]+", text), "--cudagraph-capture-sizes"}


SHIPPED = written_by_shipped_spaces()


def check_words_and_variables(argv: tuple[str, ...], environment: Mapping[str, str], hostile: str) -> None:
    flags = {word.partition("=")[0] for word in argv if word.startswith("--")}
    assert flags <= SHIPPED, (hostile, flags - SHIPPED)
    assert {*environment} <= {"VLLM_USE_FLASHINFER_SAMPLER", "VLLM_MARLIN_INPUT_DTYPE"}
    assert not any(hostile in word for word in (*argv, *environment.values())), (hostile, argv)


FIELDS = [*names(), "files"]
WRITING = ("baseline", "enqueue", "env", "files", "preset", "server_arguments", "space")
"""Settings that reach a command line."""


@pytest.mark.parametrize("field", FIELDS)
def test_no_accepted_plan_leaves_the_list(field: str, tmp_path: Path) -> None:
    walk(field, HOSTILE[:: 3 if field in WRITING else 16], tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("field", FIELDS)
def test_no_accepted_plan_leaves_the_whole_list(field: str, tmp_path: Path) -> None:
    walk(field, HOSTILE[:: 1 if field in WRITING else 4], tmp_path)


def walk(field: str, words: Sequence[str], folder: Path) -> None:
    for number, hostile in enumerate(words):
        for form, value in enumerate(values_for(field, hostile)):
            given = {"engine": "vllm", "model": MODEL, "files": FILES, field: value}
            if field == "files":
                given = {**given, "files": {**FILES, **value}, "space": "include: [a.yaml]\nparameters: {}\n"}
            for argv, environment in accepted(given, folder / f"{number}-{form}") or ():
                check_words_and_variables(argv, environment, hostile)


def test_the_walk_accepts_plans_that_are_harmless(tmp_path: Path) -> None:
    """The walk above would also pass if everything were refused."""
    own = "parameters:\n  own:\n    description: x\n    type: categorical\n    flag: --attention-backend\n"
    given = {"engine": "vllm", "model": MODEL, "space": f"{own}    choices: [FLASHINFER, FLASH_ATTN]\n"}
    found = accepted({**given, "server_arguments": ["--max-num-seqs", "8"]}, tmp_path)
    assert found is not None
    assert {argv[:2] for argv, _ in found} == {("--max-num-seqs", "8")}
    assert {argv[3] for argv, _ in found} == {"FLASHINFER", "FLASH_ATTN"}
    assert accepted({"engine": "vllm", "model": MODEL, "baseline": "--max-num-seqs 64"}, tmp_path / "b") is not None
