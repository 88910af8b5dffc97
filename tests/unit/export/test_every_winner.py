"""Each format against each launcher and winners drawn at random from the whole space of each engine.

A format writes a winner, and the program that it is for reads the words and variables of the space again; or it refuses
the winner with the reason that holds for it. The default run draws a few of each, the run of `slow` tests as many as
meet every reason, and that of `release` tests 200.
"""

import functools
import json
import os
import re
import subprocess
from collections import Counter
from pathlib import Path

import pytest
import yaml

from search_spaces.render import gpus_of, instances_of, without_instances
from search_spaces.schema import VLLM
from tests.contracts.space_contract import recorded_flags
from tests.programs import needed
from tests.unit.export.formats import test_containers, test_files
from tests.unit.export.formats.readers import SHELL, documents
from tests.unit.export.winners import Winner, launchers, winner
from tuner.engines.tensorrt_llm.options import FILE_FLAG, split_options
from tuner.errors import SettingError
from tuner.export.formats.ray_serve import SERVE_ONLY
from tuner.export.formats.registry import FORMATS, SCRIPT, default_file, write_deployment
from tuner.export.render import write_serve_script
from tuner.export.words import arguments_of
from tuner.testing.exporter import FormatContract, Started

NEWEST = test_containers.VERSIONS[-1:]
FEW, ENOUGH, MANY = 3, 20, 200
LAUNCHERS = tuple(launchers(""))
ANY_ENGINE = (SCRIPT, "command", "systemd")
CONTAINERS = ("compose", "kubernetes", "kserve", "ray-serve")
READERS: dict[str, tuple[FormatContract, ...]] = {
    "vllm-config": (test_files.TestVllmConfig(),),
    "compose": (test_containers.TestCompose(),),
    "kubernetes": (test_containers.TestKubernetes(),),
    "kserve": (test_containers.TestLlmInferenceService(), test_containers.TestInferenceService()),
    "ray-serve": (test_containers.TestRayServe(),),
}
DATA = Path(__file__).parents[2] / "data" / "vllm_flags"
FIELDS = json.loads((DATA / "fields.json").read_text(encoding="utf-8"))
STUB = """#!/bin/sh
case "$1" in --version | -c) exit ;; esac
printf '%s\\0' "$@" >"$RECORD/argv"
cat /proc/$$/environ >"$RECORD/env"
while [ $# -gt 1 ]; do
  if [ "$1" = --extra_llm_api_options ]; then cat "$2" >"$RECORD/options"; fi
  shift
done
"""
PROGRAMS = ("vllm", "tuner-vllm-instances", "llama-server", "tuner-llama-server", "python3", "trtllm-serve", "serve")


@pytest.fixture(scope="module")
def tools(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a program of each name, which records what it is started with."""
    folder = tmp_path_factory.mktemp("tools")
    for name in PROGRAMS:
        (folder / name).write_text(STUB)
        (folder / name).chmod(0o755)
    return folder


def refusal(form: str, drawn: Winner) -> str | None:
    """Return the reason for which a format must refuse a winner."""
    number = instances_of(drawn.flags)
    if form in ANY_ENGINE:
        return None
    if drawn.program.engine != VLLM:
        return f"for vLLM's servers only, and the study ran {drawn.program.title}"
    if form not in CONTAINERS:
        return f"the flags of one server, and this trial has {number} behind a router" if number > 1 else None
    if "lmcache" in drawn.flags:
        return "vLLM's image may lack LMCache"
    if number > 1 and number * gpus_of(drawn.flags) > drawn.gpus:
        return f"the {number} instances of this trial shared {drawn.gpus} GPU"
    return None


def check(form: str, drawn: Winner, folder: Path, tools: Path) -> str:
    """Write a winner and read it back; return the result in a few words."""
    expected, path = refusal(form, drawn), folder / default_file(form)
    if expected is not None:
        with pytest.raises(SettingError, match=re.escape(expected)):
            write_deployment(FORMATS[form], drawn.deployment, path)
        return f"refused: {re.sub(r'[0-9]+', 'N', expected)}"
    if form == SCRIPT:
        write_serve_script(drawn.deployment, path)
    else:
        write_deployment(FORMATS[form], drawn.deployment, path)
    if form in ANY_ENGINE:
        started(form, drawn, path, unit(path, drawn) if form == "systemd" else run(path, folder, tools))
    else:
        for reader in READERS[form]:
            as_vllm_reads(form, drawn, reader, path)
    return "written"


def as_vllm_reads(form: str, drawn: Winner, reader: FormatContract, path: Path) -> None:
    """Check what a format's own program reads for `vllm serve`."""
    found, flags = reader.read(path, {}), without_instances(drawn.flags)
    version = drawn.deployment.public_version
    if form == "ray-serve":
        flags = tuple(taken_by_ray(flags))
        fields = {each.flag.removeprefix("--").replace("-", "_") for each in arguments_of(found.words)}
        assert {name.removeprefix("no_") for name in fields} <= set(FIELDS[version])
    named = drawn.deployment.served_name
    model = (drawn.model, *(() if named == drawn.model else ("--served-model-name", named)))
    expected = (*model, *flags) if reader.passes_model else flags
    assert reader.canonical(found.words) == reader.canonical(expected)
    assert drawn.environment.items() <= found.environment.items()
    assert recorded_flags(version).problem(flags) is None
    if form in ("kubernetes", "kserve") and drawn.deployment.gpus_of_server:
        card = drawn.deployment.device.rpartition("× ")[2].replace(" ", "-")
        assert f"nvidia.com/gpu.product: {card}\n" in path.read_text(encoding="utf-8").replace("'", "")
    if form in CONTAINERS:
        assert replicas(form, path) == instances_of(drawn.flags)


def taken_by_ray(flags: tuple[str, ...]) -> list[str]:
    left_out = flags.index("--api-server-count") if "--api-server-count" in flags else len(flags)
    return [*flags[:left_out], *flags[left_out + 2 :]]


def replicas(form: str, path: Path) -> int:
    """Return how many servers a file starts."""
    found = documents(path)
    if form == "kubernetes":
        return int(test_containers.validated(path, NEWEST)[-2]["spec"]["replicas"])
    if form == "kserve":
        return int(found[0]["spec"]["replicas"])
    if form == "compose":
        return sum("command" in each and "healthcheck" in each for each in found[0]["services"].values())
    arguments = found[0]["applications"][0]["args"]
    (config,) = arguments.get("llm_configs") or [arguments["llm_config"]]
    return int(config["deployment_config"]["num_replicas"])


def started(form: str, drawn: Winner, path: Path, seen: Started) -> None:
    """Check what the program is started with by a file that starts a program of any engine."""
    program, served = drawn.program, drawn.deployment.served_name
    words = program.words(drawn.model, served, drawn.flags)
    plain, options = split_options(words) if program.options else (words, {})
    listens = form != "command" or bool(program.command)
    expected = list(program.listening(plain, "127.0.0.1", 8000) if listens else plain)
    given = list(seen.words)
    if FILE_FLAG in given:
        place = given.index(FILE_FLAG)
        del given[place : place + 2]
        file = path.with_suffix(".yaml") if form == "systemd" else path.parent / "options"
        assert yaml.safe_load(file.read_text(encoding="utf-8")) == options
    assert given == expected
    assert drawn.environment.items() <= seen.environment.items()
    if instances_of(drawn.flags) > 1:
        used = min(gpus_of(drawn.flags) * instances_of(drawn.flags), drawn.gpus)
        assert seen.environment["CUDA_VISIBLE_DEVICES"] == ",".join(map(str, range(used)))


def run(path: Path, folder: Path, tools: Path) -> Started:
    environment = {"PATH": f"{tools}:/usr/bin:/bin", "RECORD": str(folder), "LANG": "C.UTF-8"}
    done = subprocess.run([SHELL, path], cwd=folder, env=environment, capture_output=True, timeout=60)
    assert done.returncode == 0, done.stderr
    words = (folder / "argv").read_bytes().decode().split("\0")[:-1]
    pairs = (folder / "env").read_bytes().decode().split("\0")[:-1]
    return Started(tuple(words), dict(pair.split("=", 1) for pair in pairs))


def unit(path: Path, drawn: Winner) -> Started:
    """Return what systemd reads."""
    text = test_files.dumped(path)
    command = next(line for line in test_files._COMMAND.findall(text) if "8000/health" not in line)
    words = [test_files.expanded(word, {}) for word in test_files.unquoted(command)]
    assert Path(words[0]).name in (drawn.program.name, "python3")
    found = re.findall(r"^\t\tEnvironment: (\w+)=(.*?)(?=\n\t\t\w)", text, re.DOTALL | re.MULTILINE)
    return Started(tuple(words[1:]), dict(found))


FORMS = [
    pytest.param(form, marks=pytest.mark.program("systemd") if form == "systemd" else ()) for form in (SCRIPT, *FORMATS)
]


@functools.cache
def winners(name: str, tools: Path, count: int) -> list[Winner]:
    """Return the first winners of a launcher, which all formats write."""
    launcher = launchers(str(tools))[name]
    return [winner(launcher, seed) for seed in range(count)]


def walk(form: str, name: str, count: int, folder: Path, tools: Path) -> Counter[str]:
    return Counter(check(form, drawn, folder, tools) for drawn in winners(name, tools, count))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", LAUNCHERS)
def test_a_few_winners_are_read_back_or_refused(name: str, form: str, tmp_path: Path, tools: Path) -> None:
    assert walk(form, name, FEW, tmp_path, tools).total() == FEW


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", LAUNCHERS)
@pytest.mark.parametrize("count", [ENOUGH, pytest.param(MANY, marks=pytest.mark.release)])
def test_many_winners_are_read_back_or_refused(count: int, name: str, form: str, tmp_path: Path, tools: Path) -> None:
    found = walk(form, name, count, tmp_path, tools)
    print(f"\n{form} {name} {dict(found)}")
    assert found.total() == count
    reasons = {refusal(form, drawn) for drawn in winners(name, tools, MANY)}
    assert len(found) == len({re.sub(r"[0-9]+", "N", str(reason)) for reason in reasons})  # each reason was met


@pytest.mark.program("shellcheck")
@pytest.mark.parametrize("name", LAUNCHERS)
def test_shellcheck_finds_nothing_in_the_scripts(name: str, tmp_path: Path) -> None:
    made = winner(launchers("/opt")[name], 0).deployment
    write_serve_script(made, tmp_path / "best_serve.sh")
    write_deployment(FORMATS["command"], made, tmp_path / "command.sh")
    words = [str(needed("shellcheck")), str(tmp_path / "best_serve.sh"), str(tmp_path / "command.sh")]
    done = subprocess.run(words, capture_output=True, text=True, env={**os.environ, "LANG": "C.UTF-8"}, timeout=120)
    assert (done.returncode, done.stdout) == (0, "")


def test_every_flag_that_is_no_field_is_known() -> None:
    """The flags that Ray refuses are those of vLLM that are no fields of its arguments."""
    for version, fields in FIELDS.items():
        recorded = json.loads((DATA / f"{version}.json").read_text(encoding="utf-8"))["flags"]
        names = [[each.removeprefix("--").replace("-", "_") for each in flag["names"]] for flag in recorded]
        unknown = {max(flag, key=len) for flag in names if not {*flag} & {*fields}}
        # a deployment has no settings of logs
        assert unknown - {"no_disable_log_requests"} <= SERVE_ONLY, version
