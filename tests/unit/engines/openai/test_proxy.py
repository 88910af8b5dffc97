"""A proxy before a server: what it clips shows, and what it answers from its cache is found out by its log."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from records.trials import FailureKind, TrialKind
from tests.gguf_model import write_model
from tuner.engines.base import EngineSettings
from tuner.engines.openai.engine import OpenAiEngine, OpenAiServer
from tuner.errors import TrialFailed
from tuner.specs import LaunchSpec, ModelRef, TrialSpec
from tuner.workloads.spec import ClosedLoop

NEVER = threading.Event()
ROOT = Path(__file__).parents[4]
SCRIPT = ROOT / "docs" / "examples" / "engine_behind_proxy.sh"
FAKES = ROOT / "tests" / "fakes"
LOAD = ClosedLoop(max_concurrency=2, num_prompts=4, input_len=24, output_len=8)
ENGINE = """#!/bin/sh
shift 2
exec {python} {server} --model "$2" --port "$6"
"""


@pytest.fixture(scope="module")
def gguf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("gguf") / "made.gguf")


@contextlib.contextmanager
def proxied(gguf: Path, folder: Path, settings: Mapping[str, str]) -> Iterator[OpenAiServer]:
    """A fake server behind the proxy; the script starts both."""
    fake = folder / "engine"
    fake.write_text(ENGINE.format(python=sys.executable, server=FAKES / "streaming_server.py"))
    fake.chmod(0o755)
    own = {"ENGINE": str(fake), "PROXY": str(FAKES / "caching_proxy.py"), "PROXY_LOG": str(folder / "log"), **settings}
    launch = LaunchSpec(
        ModelRef("made", str(gguf), "made"), (), (), own, (str(SCRIPT), "{port}", "{model}", "{flags}"), str(folder)
    )
    spec = TrialSpec("study", 0, 0, 1, TrialKind.SEARCH, {}, launch, LOAD, 1, folder / "artifacts")
    with contextlib.closing(OpenAiEngine(EngineSettings("openai", str(SCRIPT), folder / "home"))) as engine:
        server = engine.launch(spec, spec.limits)
        try:
            server.wait_ready(NEVER)
            yield server
        finally:
            assert server.stop() is None


def test_repeats_are_not_answered_from_the_cache_and_the_same_prompts_are(gguf: Path, tmp_path: Path) -> None:
    with proxied(gguf, tmp_path, {"CACHE": str(tmp_path / "cache")}) as server:
        repeats = [server.benchmark(LOAD, index, NEVER) for index in (0, 1)]
        assert (tmp_path / "log").read_text().split() == ["miss"] * 8
        again = server.benchmark(LOAD, 0, NEVER)
    assert [(each.offered, each.completed) for each in (*repeats, again)] == [(4, 4)] * 3
    assert (tmp_path / "log").read_text().split()[8:] == ["hit"] * 4


@pytest.mark.parametrize(
    ("settings", "kind", "message"),
    [
        (
            {"MOST_TOKENS": "4"},
            FailureKind.REQUESTS_FAILED,
            "none of 2 requests succeeded; the first: 4 of 8 tokens",
        ),
        (
            {"MOST_PROMPT": "12"},
            FailureKind.ENVIRONMENT_BROKEN,
            "the server counts 12 tokens in a prompt of 24; give its model's tokenizer, and let nothing before the "
            "server change prompts",
        ),
    ],
)
def test_lengths_that_a_proxy_clips_end_a_trial_with_the_reason(
    gguf: Path, tmp_path: Path, settings: dict[str, str], kind: FailureKind, message: str
) -> None:
    with proxied(gguf, tmp_path, settings) as server, pytest.raises(TrialFailed) as caught:
        server.warm_up(LOAD, NEVER)
    assert (caught.value.failure.kind, caught.value.failure.message) == (kind, message)
