"""Every flag of the recorded parsers: simulated, without effect, or "not simulated"; never a false word about vLLM."""

import json
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from search_spaces import hardware_named
from search_spaces.yaml_file import read_yaml
from tests.contracts.space_contract import QWEN
from tuner.engines.simulator import flags
from tuner.engines.simulator.flags import flag_names, parse_flags
from tuner.engines.simulator.precision import ConfigRefused, NotSimulated
from tuner.engines.simulator.serve_config import ServeConfig, resolve_serve_config

RECORDED = Path(__file__).parents[3] / "data" / "vllm_flags"
VERSIONS = tuple(sorted(file.stem for file in RECORDED.glob("[0-9]*.json")))
SERVED = {
    "--attention-backend": ["FLASH_ATTN", "None"],
    "--block-size": ["16", "32", "64", "128"],
    "--compilation-config": ['{"mode": 3}'],
    "--cudagraph-capture-sizes": ["1", "8"],
    "--generation-config": ["vllm"],
    "--gpu-memory-utilization": ["0.5", "0.95"],
    "--kv-cache-memory-bytes": ["1G", "2000000000", "None"],
    "--logging-config": ['{"log_level": "INFO"}'],
    "--max-cudagraph-capture-size": ["8", "512"],
    "--max-model-len": ["auto", "-1", "AUTO", "32k", "4K", "1.5k", "2048"],
    "--max-num-active-seqs": ["8", "None"],
    "--max-num-batched-tokens": ["32k", "4K", "1M", "8192"],
    "--optimization-level": ["0", "1", "2", "3"],
    "--pipeline-parallel-size": ["1"],
    "--tensor-parallel-size": ["1", "2"],
    "--data-parallel-size": ["1"],
    "--quantization": ["fp8", "None"],
    "--structured-outputs-config": ['{"backend": "auto"}'],
    "--speculative-config": ['{"method": "ngram", "num_speculative_tokens": 4}', '{"method": "eagle3"}', "None"],
}
"""Values that vLLM takes on a machine with two GPUs, for flags that do not take any value of their type."""
TYPED = {
    "int": ["1", "16"],
    "human_readable_int": ["8k"],
    "float": ["0.5", "1"],
    "str": ["some-text"],
    "loads": ['["a"]'],
    "_parse_type": ['{"image": 0}'],
    "parse_dataclass": ['{"a": 1}'],
    "union_dict_and_str": ["{}", "text"],
    "_optional_type": ["None"],
    "<lambda>": ["auto"],
    None: ["text"],
}
"""Values of each type of the recorded parsers."""


def recorded(version: str) -> list[dict[str, Any]]:
    flags: list[dict[str, Any]] = json.loads((RECORDED / f"{version}.json").read_text())["flags"]
    return [flag for flag in flags if "--model" not in flag["names"]]


def resolve(version: str, *argv: str) -> ServeConfig:
    card, packages = hardware_named("h200"), frozenset({"arctic_inference", "flashinfer"})
    return resolve_serve_config(argv, {}, QWEN, card, tuple(map(int, version.split("."))), packages, 2)


def uses(flag: dict[str, Any]) -> list[list[str]]:
    if flag["nargs"] == "0":
        return [[name] for name in flag["names"]]
    long = next(name for name in flag["names"] if name.startswith("--"))
    values = SERVED.get(long) or flag["choices"] or TYPED[flag["type"]]
    plain = [[name, str(value)] for name in flag["names"] for value in values]
    several = [[long, str(values[0]), str(values[-1])]] if flag["nargs"] == "+" else []
    dotted = [[f"{long}.some.key", "0"]] if flag["type"] in ("_parse_type", "union_dict_and_str") else []
    return [*plain, *several, *dotted, *([[long]] if flag["nargs"] == "?" else [])]


@pytest.mark.parametrize("version", VERSIONS)
def test_no_flag_of_a_recorded_parser_is_called_vllm_s_mistake(version: str) -> None:
    reasons: list[str] = []
    for argv in (argv for flag in recorded(version) for argv in uses(flag)):
        if argv[0] in ("--enable-expert-parallel", "-ep"):  # vLLM refuses it for a dense model
            continue
        try:
            resolve(version, *argv)
        except NotSimulated as error:  # another refusal would be vLLM's
            reasons.append(str(error))
    assert [reason for reason in reasons if "did you mean" in reason] == []


def test_every_recorded_flag_has_a_place() -> None:
    names = {name for version in VERSIONS for flag in recorded(version) for name in flag["names"]}
    document = read_yaml(Path(flags.__file__).with_name("flags.yaml")).data
    listed = {f"--{name}" for name in document["not_simulated"]}
    without_effect = {f"--{name}" for names in document["without_effect"].values() for name in names}
    long = {name for name in names if name.startswith("--") and not name.startswith("--no-")}
    assert long - flag_names() - listed - {"--device-memory-utilization"} == set()
    assert listed & flag_names() == set()
    assert (listed | without_effect) - long == set()
    assert {f"--{name.removeprefix('no-')}" for name in document["neutral"]} - listed == set()


@pytest.mark.parametrize(
    "line",
    [
        "--reasoning-parser qwen3",
        "--tool-call-parser hermes --enable-auto-tool-choice",
        "--served-model-name a b",
        '--limit-mm-per-prompt {"image":0}',
        "--limit-mm-per-prompt.image 0 --limit-mm-per-prompt.video 0",
        "--api-key one two --host 0.0.0.0 --port 80 --ssl-keyfile k --ssl-certfile c",
        '--allowed-origins ["*"] --no-enable-log-requests --disable-log-stats --max-log-len 100',
        "--otlp-traces-endpoint http://collector:4317 --chat-template ./chat.jinja --root-path /v",
        "--trust-remote-code --hf-token --revision main --download-dir /models --load-format auto",
        '--default_chat_template_kwargs {"enable_thinking":false} --structured-outputs-config.backend auto',
        "--runner generate --model-impl=auto --distributed-executor-backend mp --nnodes 1 --max_num_partial_prefills 1",
        "--all2all-backend allgather_reducescatter --expert-placement-strategy linear --ubatch-size 0",
        "--cp-kv-cache-interleave-size 1",
        "--middleware a.Auth --middleware b.Log --worker-cls auto --max-loras 4 --fully-sharded-loras",
        "-dpl 1 --data-parallel-address 127.0.0.1 --data-parallel-rpc-port 13345 --master-addr 127.0.0.1",
        "--no-enable-lora --no-enable-eplb --enable-sleep-mode --distributed-timeout-seconds 1800",
    ],
)
def test_flags_without_effect_change_nothing(line: str) -> None:
    assert resolve("0.25.1", *line.split()) == resolve("0.25.1")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("--enable-dbo", "--enable-dbo: not simulated; measure that with the engine vllm"),
        ("--enable-eplb", "--enable-eplb: not simulated, because no run with it is recorded: vLLM first moves experts"),
        ("--eplb-config.step_interval 300", "because no run with it is recorded"),
        ("--no-enable-scale-out", "--no-enable-scale-out: not simulated; measure that"),
        ("--runner pooling", "--runner pooling: not simulated; measure that"),
        ("--runner", "--runner: not simulated; measure that"),
        ("--nnodes 2", "--nnodes 2: not simulated; measure that"),
        ("--attention-config.backend FLASHINFER", "--attention-config.backend FLASHINFER: not simulated; measure that"),
        (
            "-dp 4 -dpl 2",
            "--data-parallel-size-local 2: copies of the model on other machines are not simulated; give 4",
        ),
        ("--max-num-seqs -4", "--max-num-seqs -4: a negative number is not simulated"),
        ("--max-num-sqs 4", "--max-num-sqs 4: not simulated; did you mean --max-num-seqs?"),
        ("--guided-decoding-backend xgrammar", "not simulated; vLLM 0.15 to 0.32 has no such flag"),
        ("--omni", "--omni: not simulated; vLLM 0.15 to 0.32 has no such flag"),
        # of vLLM before 0.15; two flags of today begin so
        ("--device tpu", "--device tpu: not simulated; vLLM 0.15 to 0.32 has no such flag"),
        ("--tensor-parallel 4", "--tensor-parallel 4: not simulated; write --tensor-parallel-size in full"),
        ("--model a/b --enforce-eager", "--model a/b: not simulated; give it as the tuner's own --model"),
        ("a/b --enforce-eager", "a/b: not simulated; measure that"),
        (
            "--enable_chunked_prefill=False",
            "--enable-chunked-prefill False: a switch of vLLM takes no value; write --enable-chunked-prefill or --no-",
        ),
        ('--speculative-config {"method":"ngram","quantization":"fp8"}', "quantization is not simulated"),
    ],
)
def test_what_is_not_simulated_says_so(line: str, message: str) -> None:
    with pytest.raises(NotSimulated) as caught:
        resolve("0.25.1", *line.split())
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--max-model-len", "many"], "argument --max-model-len: invalid int value: 'many'"),
        # vLLM reads such a suffix in some flags only
        (["--max-num-seqs", "1k"], "argument --max-num-seqs: invalid int value: '1k'"),
        (["--max-num-seqs.a", "1"], "argument --max-num-seqs: invalid int value: '{\"a\": 1}'"),
        (["--limit-mm-per-prompt.image"], "argument --limit-mm-per-prompt.image: expected one argument"),
        (["-cc.cudagraph_mod", "NONE"], "cudagraph_mod: Unexpected keyword argument; did you mean cudagraph_mode?"),
        (["--compilation-config", '{"bogus": 1}'], "argument --compilation-config: bogus: Unexpected keyword argument"),
        (["-cc.level", "0"], "argument --compilation-config: level: Unexpected"),  # vLLM 0.15 has it
        (["--structured-outputs-config.bogus", "1"], "--structured-outputs-config: bogus: Unexpected keyword argument"),
        (["--reasoning-config.bogus", "1"], "argument --reasoning-config: bogus: Unexpected keyword argument"),
        (
            ["--compilation-config", '{"cudagraph_capture_sizes": 4}'],
            "cudagraph_capture_sizes: Input should be a valid list",
        ),
        (
            ["--compilation-config", '{"cudagraph_capture_sizes": ["a"]}'],
            "cudagraph_capture_sizes: Input should be a valid i",
        ),
        (["-cc.max_cudagraph_capture_size", "8.5"], "max_cudagraph_capture_size: Input should be a valid integer"),
        (["-cc.mode", "7"], "mode: Input should be one of NONE, STOCK_TORCH_COMPILE, DYNAMO_TRACE_ONCE, VLLM_COMPILE"),
        (
            ["-sc", '{"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_max": "x"}'],
            "prompt_lookup_max: Input should be a valid integer",
        ),
        (["-cc.cudagraph_mode", "9"], "cudagraph_mode: Input should be one of NONE, PIECEWISE, FULL, FULL_DECODE_ONLY"),
        (["--max-model-len", "-7"], "max_model_len: Input should be greater than or equal to -1"),
    ],
)
def test_what_vllm_refuses_is_refused_in_its_words(words: list[str], message: str) -> None:
    with pytest.raises(ConfigRefused) as caught:
        resolve("0.25.1", *words)
    assert message in str(caught.value)
    assert not isinstance(caught.value, NotSimulated)


@pytest.mark.parametrize(
    ("given", "same"),
    [
        ('{"max_cudagraph_capture_size": "16"}', '{"max_cudagraph_capture_size": 16}'),
        ('{"cudagraph_capture_sizes": [1, "8"]}', '{"cudagraph_capture_sizes": [1, 8]}'),
        ('{"mode": "none"}', '{"mode": 0}'),
        ('{"cudagraph_mode": 2}', '{"cudagraph_mode": "FULL"}'),
    ],
)
def test_a_value_of_a_key_is_read_as_vllm_reads_it(given: str, same: str) -> None:
    default, found = resolve("0.32.0"), resolve("0.32.0", "--compilation-config", given)
    assert found == resolve("0.32.0", "--compilation-config", same) != default


def test_the_old_name_of_the_compilation_mode_counts_where_vllm_has_it() -> None:
    assert resolve("0.15.1", "-cc.level", "0") == resolve("0.15.1", "-cc.mode", "0") != resolve("0.15.1")


@pytest.mark.parametrize(
    ("text", "tokens"), [("auto", -1), ("-1", -1), ("32k", 32000), ("32K", 32768), ("1M", 2**20), ("None", None)]
)
def test_lengths_for_people(text: str, tokens: int | None) -> None:
    assert parse_flags(["--max-model-len", text])["max_model_len"] == tokens
    assert parse_flags(["--max-num-batched-tokens", "8k"])["max_num_batched_tokens"] == 8000


SWITCHES = ("disable_log_requests", "calculate_kv_scales")


@pytest.mark.parametrize("version", VERSIONS)
def test_a_flag_that_a_version_lacks_is_refused_and_not_among_its_flags(version: str) -> None:
    known = {name for flag in recorded(version) for name in flag["names"]}
    values = {"performance_mode": ["balanced"], "scheduler_reserve_full_isl": [], **{key: [] for key in SWITCHES}}
    document = read_yaml(Path(flags.__file__).with_name("flags.yaml")).data
    for name in (name.replace("-", "_") for name in (*document["since"], *document["until"])):
        flag = f"--{name.replace('_', '-')}"
        assert (flag in flags.flag_names(tuple(map(int, version.split("."))))) == (flag in known)
        with nullcontext() if flag in known else pytest.raises(ConfigRefused, match=f"unrecognized arguments: {flag}"):
            resolve(version, flag, *values.get(name, ["1"]))
