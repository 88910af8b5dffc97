"""What engines expect on a command line: their programs, reserved flags, and the temperature."""

from __future__ import annotations

from pathlib import Path

import pytest

from records.trials import Provenance
from tuner.engines.base import EngineInfo
from tuner.engines.command_line import (
    check_known_flags,
    check_server_arguments,
    check_values,
    program_of,
    sampling_arguments,
)
from tuner.engines.server.flags import load_flags
from tuner.errors import SettingError


def test_vllm_takes_the_model_as_an_argument_and_names_it_only_if_the_name_differs() -> None:
    vllm = program_of("vllm")
    assert vllm.words("/m", "/m", ["--a", "1"]) == ("serve", "/m", "--a", "1")
    assert vllm.words("/m", "n", []) == ("serve", "/m", "--served-model-name", "n")


def test_llama_cpp_takes_flags_and_always_a_name() -> None:
    """Without an alias the server is asked for by the name of the file, not by its path."""
    assert program_of("llama.cpp").words("/m.gguf", "/m.gguf", ["-a", "1"]) == (
        *("--model", "/m.gguf", "--alias", "/m.gguf"),
        *("-a", "1"),
    )


def test_a_simulated_engine_has_vllm_s_program() -> None:
    assert program_of("simulated vllm") is program_of("vllm")


@pytest.mark.parametrize(
    ("temperature", "engine", "arguments"),
    [
        (None, "llama.cpp", ()),
        (0.0, "llama.cpp", ("--temp", "0")),
        (0.75, "llama.cpp", ("--temp", "0.75")),
        (0.0, "vllm", ("--override-generation-config", '{"temperature": 0.0}')),
    ],
)
def test_the_temperature_is_set_on_the_server(
    temperature: float | None, engine: str, arguments: tuple[str, ...]
) -> None:
    assert sampling_arguments(temperature, engine) == arguments


@pytest.mark.parametrize("flag", ["--host", "--port=1", "--alias", "-m", "--metrics"])
def test_the_tuner_s_own_flags_of_llama_cpp_are_refused(flag: str) -> None:
    with pytest.raises(SettingError, match="the tuner sets this flag; leave it out"):
        check_server_arguments([flag], "llama.cpp")


@pytest.mark.parametrize(
    ("engine", "flag", "message"),
    [
        ("vllm", "--served_model_name=x", "--served_model_name': the tuner sets this flag; leave it out"),
        ("vllm", "--config", "a study would not know the flags in the file; give them here"),
        ("sglang", "--config=serve.yaml", "a study would not know the flags in the file; give them here"),
        ("vllm", "--nnodes", "the tuner sets this flag; give nodes_per_trial"),
        ("sglang", "--nnodes", "a server of SGLang has one node, and the tuner chooses its GPUs; leave it out"),
        ("sglang", "--base-gpu-id=1", "a server of SGLang has one node, and the tuner chooses its GPUs; leave it out"),
    ],
)
def test_what_a_study_cannot_know_or_chooses_itself_is_refused(engine: str, flag: str, message: str) -> None:
    with pytest.raises(SettingError) as raised:
        check_server_arguments([flag, "1"], engine)
    assert message in str(raised.value)


def test_flags_of_the_other_engine_are_no_mistake_here() -> None:
    check_server_arguments(["--metrics"], "vllm")
    check_server_arguments(["--uds", "x"], "llama.cpp")


def test_a_flag_that_the_installed_engine_lacks_is_refused_with_its_own_help() -> None:
    engine = EngineInfo("llama.cpp", "6711", None, frozenset({"--parallel"}), Provenance.MEASURED)
    check_known_flags(["--parallel", "4", "-np", "4"], engine)
    with pytest.raises(SettingError, match=r"llama\.cpp 6711 has no such flag; did you mean --parallel\?"):
        check_known_flags(["--paralel", "4"], engine)
    with pytest.raises(SettingError, match=r"llama\.cpp 6711 has no such flag; see `llama-server --help`"):
        check_known_flags(["--zzz"], engine)


def test_short_flags_are_checked_where_the_engine_s_are_known() -> None:
    names = frozenset({"--quantization", "-q", "--optimization-level", "--compilation-config", "-cc", "--max-num-seqs"})
    engine = EngineInfo("vllm", "0.32.0", "vllm", names, Provenance.MEASURED)
    known = ["-q", "fp8", "-O3", "-O", "1", "-O.mode", "3", "-cc.custom_ops+", "-rms_norm", "--max_num_seqs=-1"]
    check_known_flags(known, engine)
    for wrong in ("-qfp8", "-s", "-n2"):
        with pytest.raises(SettingError, match=f"server_arguments='{wrong}': vllm 0.32.0 has no such flag"):
            check_known_flags([wrong, "1"], engine)


def test_values_that_the_engine_s_parser_refuses_end_a_study_before_its_first_launch() -> None:
    """`--instances` is a flag of the tuner's own launcher."""
    flags = load_flags(Path(__file__).parents[2] / "data" / "vllm_flags" / "0.32.0.json", "vLLM")
    assert flags is not None
    engine = EngineInfo("vllm", "0.32.0", "vllm", flags.names, Provenance.MEASURED, parser=flags)
    good = [
        "--max-num-seqs",
        "8",
        "-O3",
        "-cc.mode",
        "3",
        "--instances",
        "2",
        "--instances=2",
        "--max-model-len",
        "32k",
    ]
    check_values(good, engine)
    for wrong, rule in (
        (["--max_num_seqs", "é"], "'é' is not a whole number; correct it after `--`"),
        (["--max-num-seqs"], "--max-num-seqs: a value is missing; correct it after `--`"),
        (["--kv-cache-dtype", "fp7"], "--kv-cache-dtype: 'fp7' is not one of"),
    ):
        with pytest.raises(SettingError, match=rule):
            check_values(wrong, engine)
    check_values(["--max-num-seqs", "é"], EngineInfo("openai", "1", None, None, Provenance.MEASURED))
