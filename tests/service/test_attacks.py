"""What a user's token must not get of a running service with GPUs: code, files, and other users' studies.

The service runs with its default policy on one H100 that is not there. Its vLLM writes down each start.
"""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.model_configs import write_folder
from tests.service.running import ENDED, Service, running_service, wait_for

ROOT = Path(__file__).parents[1]
PRESET = (
    "description: x\nsource: x\nmodel: m\nhardware: cpu\nspace: contents/s.yaml\n"
    "workload: {input_len: 128, output_len: 64, num_prompts: 20, max_concurrency: 4}\n"
    "objectives: [output_throughput]\nslos: []\n"
)
SPACE = (
    "description: x\nparameters:\n  pre:\n    description: x\n    type: categorical\n    choices:\n"
    "      - {value: b, args: ['--trust-remote-code'], env: {LD_PRELOAD: /path/evil.so}}\n"
    "      - {value: a, args: [], env: {}}\n"
)
TASK = "task: t\ndataset_path: json\nprocess_docs: !function evil.run\n"
CONFIG = {
    **{"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "torch_dtype": "bfloat16"},
    **{"hidden_size": 896, "intermediate_size": 4864, "num_hidden_layers": 24, "num_attention_heads": 14},
    **{"num_key_value_heads": 2, "vocab_size": 151936, "max_position_embeddings": 32768},
}
FLAGS = (
    *("--scheduler-cls", "--logits-processors", "--tool-parser-plugin", "--reasoning-parser-plugin", "--tr"),
    *("--io-processor-plugin", "--distributed-executor-backend", "--kv-transfer-config", "--chat-template"),
    *("--lora-modules", "--ssl-keyfile", "--allowed-local-media-path", "--otlp-traces-endpoint", "--model"),
    *("--trust-remote-code", "--trust_remote_code", "--config", "--worker-cls", "--hf-overrides"),
)


class Attacked:
    """The service, its tokens, and the file in which its vLLM writes each start."""

    def __init__(self, service: Service, starts: Path, folder: Path, model: str) -> None:
        self.service, self.starts, self.folder, self.model = service, starts, folder, model
        names = ("ada", "ben")
        self.tokens = {
            name: service.call("POST", "/v1/tokens", json={"name": name, "owner": name})["token"] for name in names
        }

    def submit(self, id: str, who: str = "ben", **settings: Any) -> httpx.Response:
        body = {"id": id, "settings": {"engine": "vllm", "model": self.model, "trials": 2, **settings}}
        headers = {"Authorization": f"Bearer {self.tokens[who]}"}
        return httpx.post(f"{self.service.address}/v1/studies", json=body, headers=headers, timeout=60)

    def ended(self, id: str) -> Any:
        """Return the study if it has ended; None while it has not."""
        found = self.service.study(id)
        return found if found["state"] in ENDED else None


@pytest.fixture(scope="module")
def attacked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Attacked]:
    folder = tmp_path_factory.mktemp("attacked")
    starts, program = folder / "starts.jsonl", folder / "vllm"
    program.write_text(
        f"#!{sys.executable}\nimport json, os, sys\n"
        f"with open({str(starts)!r}, 'a') as file:\n"
        "    file.write(json.dumps({'argv': sys.argv[1:], 'env': dict(os.environ)}) + '\\n')\n"
        f"os.execv(sys.executable, [sys.executable, {str(ROOT / 'fakes' / 'fake_vllm.py')!r}, *sys.argv[1:]])\n"
    )
    program.chmod(0o755)
    model = folder / "models" / "made"
    write_folder(model, CONFIG)
    environment = {"PYTHONPATH": f"{ROOT / 'fakes' / 'gpu_site'}", "HF_HUB_OFFLINE": "1"}
    options = ("--vllm", str(program), "--model-folder", str(model.parent))
    with running_service(folder, *options, environment=environment) as service:
        yield Attacked(service, starts, folder, str(model))


def refused(response: httpx.Response, field: str) -> str:
    """Check that a submission is refused because of a setting, and return the text."""
    assert response.status_code == 422, response.text
    assert response.json()["field"] == field, response.text
    return response.text


def nothing_happened(attacked: Attacked) -> None:
    """Check that no study of the attacker is stored, and no server was started."""
    headers = {"Authorization": f"Bearer {attacked.tokens['ben']}"}
    listed = httpx.get(f"{attacked.service.address}/v1/studies", headers=headers, timeout=60).json()
    assert listed["studies"] == []
    assert not attacked.starts.exists()


def test_the_service_has_a_gpu(attacked: Attacked) -> None:
    assert attacked.service.call("GET", "/v1/catalogue")["kinds"]["h100"] == 1


def test_a_preset_is_no_file(attacked: Attacked) -> None:
    files = {"p.yaml": PRESET, "s.yaml": SPACE}
    refused(attacked.submit("rce", preset="contents/p.yaml", files=files), "preset")
    there, absent = attacked.folder / "there.yaml", attacked.folder / "absent.yaml"
    there.write_text("model: [")
    texts = {refused(attacked.submit("x", preset=str(path)), "preset") for path in (there, absent)}
    assert len({text.replace("there.yaml", "F").replace("absent.yaml", "F") for text in texts}) == 1
    assert not any("not valid YAML" in text or "site-packages" in text for text in texts)
    nothing_happened(attacked)


def test_a_space_of_ones_own_adds_no_flag_and_no_variable(attacked: Attacked) -> None:
    refused(attacked.submit("own", space=SPACE), "space")
    refused(attacked.submit("included", space="description: x\ninclude: [s.yaml]\n", files={"s.yaml": SPACE}), "space")
    deep = {"a.txt": "include: [s.yaml]\n", "s.yaml": SPACE}
    refused(attacked.submit("deep", space="description: x\ninclude: [a.txt]\n", files=deep), "space")
    refused(attacked.submit("path", space="contents/s.yaml", files={"s.yaml": SPACE}), "space")
    nothing_happened(attacked)


@pytest.mark.parametrize("flag", FLAGS)
def test_a_flag_outside_the_list_is_refused_wherever_it_stands(attacked: Attacked, flag: str) -> None:
    refused(attacked.submit("raw", server_arguments=[flag, "x"]), "server_arguments")
    refused(attacked.submit("glued", server_arguments=[f"{flag}=x"]), "server_arguments")
    refused(attacked.submit("behind", server_arguments=["--max-num-seqs", "8", flag]), "server_arguments")
    refused(attacked.submit("baseline", baseline=f"--max-num-seqs 8 {flag} x"), "baseline")
    refused(attacked.submit("space", space=SPACE.replace("--trust-remote-code", flag)), "space")
    nothing_happened(attacked)


def test_a_quality_task_is_no_file(attacked: Attacked) -> None:
    files = {"task.txt": TASK, "evil.py": "open('/tmp/x', 'w')"}
    for task in ("lm-eval:contents/task.txt", "lm-eval:../contents", "lm-eval:task.txt", "/etc/passwd"):
        refused(attacked.submit("task", quality_task=task, slo=["quality>=0.99"], files=files), "quality_task")
    nothing_happened(attacked)


def test_another_users_study_is_not_learned_from(attacked: Attacked) -> None:
    assert attacked.submit("secret-1", "ada", engine="simulated", model=None).status_code == 201
    texts = []
    for name in ("secret-1", "never-0"):
        response = attacked.submit("learns", engine="simulated", model=None, learn_from=[name])
        assert response.status_code == 404
        texts.append(response.text.replace(name, "NAME"))
    assert texts[0] == texts[1]
    assert "secret" not in texts[1]
    nothing_happened(attacked)


def test_a_hub_name_is_no_folder_of_the_server(attacked: Attacked) -> None:
    """`running_service` starts the server in this folder, in which the name would be a path."""
    assert (attacked.folder / "models" / "made").is_dir()
    texts = {
        refused(attacked.submit("probe", engine="simulated", model=name), "model").replace(name, "NAME")
        for name in ("models/made", "models/none")
    }
    assert len(texts) == 1
    assert "not in the catalogue" in texts.pop()
    nothing_happened(attacked)


def test_variables_are_refused(attacked: Attacked) -> None:
    for name in ("LD_PRELOAD", "PYTHONPATH", "VLLM_PLUGINS", "HF_ENDPOINT", "PATH"):
        refused(attacked.submit("env", env={name: "x"}), "env")
    nothing_happened(attacked)


def test_a_harmless_study_runs_with_flags_of_the_list_only(attacked: Attacked) -> None:
    """The vLLM that writes down its starts is the one that runs; without this test, nothing above shows a thing."""
    own = (
        "description: x\nparameters:\n  own:\n    description: x\n    type: categorical\n"
        "    flag: --attention-backend\n    choices: [FLASH_ATTN, FLASHINFER]\n"
    )
    small: dict[str, Any] = {"input_len": 16, "output_len": 4, "num_prompts": 4, "max_concurrency": 2}
    response = attacked.submit("good", **small, confirm_rounds=0, space=own, server_arguments=["--max-num-seqs", "8"])
    assert response.status_code == 201, response.text
    wait_for(lambda: _served(attacked) or attacked.ended("good"), "a start of the server")
    assert _served(attacked), attacked.service.study("good")
    words = [word.partition("=")[0] for start in _served(attacked) for word in start["argv"] if word.startswith("--")]
    assert {*words} <= {"--max-num-seqs", "--attention-backend", "--host", "--port", "--served-model-name"}
    assert "--max-num-seqs" in words
    assert not any("LD_PRELOAD" in start["env"] for start in _served(attacked))


def _served(attacked: Attacked) -> list[dict[str, Any]]:
    if not attacked.starts.exists():
        return []
    starts = [json.loads(line) for line in attacked.starts.read_text().splitlines()]
    return [start for start in starts if start["argv"][:1] == ["serve"]]
