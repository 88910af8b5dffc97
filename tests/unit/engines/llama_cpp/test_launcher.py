"""The launcher has llama-server's flags, and sets what each of them means."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from search_spaces import load_space
from tuner.engines.llama_cpp.kind import LAUNCHER
from tuner.engines.llama_cpp.launcher import INTEGERS, SWITCHES, parser, server_parameters

if TYPE_CHECKING:
    import xllamacpp
else:
    xllamacpp = pytest.importorskip("xllamacpp", exc_type=ImportError)

pytestmark = pytest.mark.program("libgomp1")

PROGRAM = Path(sys.executable).with_name(LAUNCHER)


def parameters(*words: str) -> xllamacpp.CommonParams:
    return server_parameters(vars(parser().parse_args(["--model", "m.gguf", *words])))


def flags_of_the_launcher() -> set[str]:
    return {name for action in parser()._actions for name in action.option_strings}


def test_every_flag_is_one_of_llama_server_s_own() -> None:
    """The package has llama.cpp's own parser, although it calls it not; its flags are texts in the library."""
    library = next(Path(xllamacpp.__file__).parent.glob("*.so")).read_bytes()
    flags = flags_of_the_launcher() - {"-h", "--help"}
    assert len(flags) > 60
    assert [flag for flag in sorted(flags) if flag.encode() + b"\0" not in library] == []


def test_the_launcher_has_every_flag_of_the_space() -> None:
    space = load_space("llama.cpp")
    declared = str(space.to_dict())
    flags = {word for word in declared.replace("'", " ").split() if word.startswith("--")}
    assert {"--parallel", "--spec-ngram-mod-n-match", "--no-kv-unified"} <= flags
    assert flags - flags_of_the_launcher() == set()


def test_a_value_reaches_its_parameter() -> None:
    made = parameters("--ctx-size", "4096", "-np", "8", "--threads", "2", "--batch-size", "256", "--ubatch-size", "64")
    assert (made.n_ctx, made.n_parallel, made.cpuparams.n_threads, made.n_batch, made.n_ubatch) == (4096, 8, 2, 256, 64)
    formats = parameters("--cache-type-k", "q8_0", "-ctv", "q4_0", "--flash-attn", "on")
    kinds = xllamacpp.ggml_type
    assert (formats.cache_type_k, formats.cache_type_v) == (kinds.GGML_TYPE_Q8_0, kinds.GGML_TYPE_Q4_0)
    assert formats.flash_attn_type == xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_ENABLED
    drafts = parameters("--spec-type", "ngram-simple", "--spec-ngram-simple-size-n", "4").speculative
    assert drafts.types == [xllamacpp.common_speculative_type.COMMON_SPECULATIVE_TYPE_NGRAM_SIMPLE]
    assert drafts.ngram_simple.size_n == 4


@pytest.mark.parametrize("names", INTEGERS, ids=lambda names: names[0])
def test_every_number_reaches_its_parameter(names: tuple[str, ...]) -> None:
    found: object = parameters(names[0], "37")
    for part in INTEGERS[names].split("."):
        found = getattr(found, part)
    assert found == 37


@pytest.mark.parametrize("names", SWITCHES, ids=lambda names: names[0])
def test_every_switch_reaches_its_parameter(names: tuple[str, ...]) -> None:
    place, value = SWITCHES[names]
    assert getattr(parameters(names[0]), place) is value


def test_the_defaults_are_those_of_llama_server() -> None:
    plain = parameters()
    assert (plain.n_parallel, plain.kv_unified, plain.port, plain.n_ctx) == (4, True, 8080, 0)
    assert parameters("--parallel", "2").kv_unified is False
    assert parameters("--parallel", "2", "--kv-unified").kv_unified is True


def test_version_and_devices_are_printed_without_a_model() -> None:
    version = subprocess.run([PROGRAM, "--version"], capture_output=True, text=True, check=True, timeout=60)
    assert version.stdout == f"version: {xllamacpp.__version__} (xllamacpp)\n"
    devices = subprocess.run([PROGRAM, "--list-devices"], capture_output=True, text=True, check=True, timeout=60)
    assert devices.stdout.startswith("Available devices:\n")


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (("--no-such-flag",), "error: unrecognized arguments: --no-such-flag\n"),
        (("--thread", "1"), "error: unrecognized arguments: --thread 1\n"),
        ((), "error: --model is required\n"),
    ],
)
def test_a_mistake_is_one_line_and_ends_with_1(words: tuple[str, ...], error: str) -> None:
    done = subprocess.run([PROGRAM, *words], capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (1, "", error)
