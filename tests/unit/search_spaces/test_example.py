"""The worked example of a search space: docs/examples/search_space.yaml and .md."""

import os
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from search_spaces import Context, Space, hardware_named, known_models, load_space
from tests.cli.command import run_here
from tests.contracts.space_contract import RandomTrial, SpaceContract
from tuner.engines.simulator.parameters import parameters_of
from tuner.engines.simulator.prediction import Platform, build_server, run_workload
from tuner.workloads.spec import ClosedLoop

EXAMPLES = Path(__file__).parents[3] / "docs" / "examples"
PAGE = (EXAMPLES / "search_space.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)


class TestExample(SpaceContract):
    @pytest.fixture(scope="class")
    @classmethod
    def space(cls) -> Space:
        return load_space(EXAMPLES / "search_space.yaml")


def test_the_page_shows_parts_of_the_file() -> None:
    text = (EXAMPLES / "search_space.yaml").read_text(encoding="utf-8")
    assert [block for block in blocks("yaml") if block not in text] == []


def test_the_check_prints_what_the_page_shows(tmp_path: Path) -> None:
    shutil.copy(EXAMPLES / "search_space.yaml", tmp_path)
    result = run_here(tmp_path, *blocks("bash")[0].split()[1:])
    assert (result.code, result.out) == (0, blocks("text")[0])


def test_the_python_code_runs(tmp_path: Path) -> None:
    shutil.copy(EXAMPLES / "search_space.yaml", tmp_path)
    environment = {**os.environ, "PYTHONPATH": str(EXAMPLES.parents[1])}
    done = subprocess.run(
        [sys.executable, "-c", blocks("python")[0]],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    assert done.stdout.splitlines() == [
        "('--max-num-batched-tokens', '1024', '--long-prefill-token-threshold', '2048')",
        "['a threshold of 2048 tokens has no effect in steps of 1024 tokens']",
    ]


def test_the_simulator_runs_suggested_and_named_configurations() -> None:
    card, version = hardware_named("l4"), (0, 25, 1)
    space = load_space(EXAMPLES / "search_space.yaml").resolve(Context(card, engine_version="0.25.1"))
    configs = [space.suggest(RandomTrial(seed)) for seed in range(8)]
    configs = [config for config in configs if not space.violations(config)] + [
        dict(space.named["small-chunks"].config)
    ]
    platform = Platform(card, parameters_of(card.key), version, frozenset({"flashinfer"}))
    shape = replace(known_models()["Qwen/Qwen2.5-7B-Instruct"], max_position_embeddings=8192)
    for config in configs:
        server = build_server(platform, space.render(config).argv, {}, shape)
        run = run_workload(server, ClosedLoop(max_concurrency=8, num_prompts=16, input_len=2000, output_len=16), seed=1)
        assert run.completed
