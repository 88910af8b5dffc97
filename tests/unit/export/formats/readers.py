"""Read exported files as the programs do that they are for."""

import json
import re
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from tuner.testing.exporter import Started

SHELL = "/bin/bash"
_STUB = """#!/bin/sh
printf '%s\\0' "$@" >"$RECORD/argv"
cat /proc/$$/environ >"$RECORD/env"
"""


def run_line(line: str, folder: Path, variables: Mapping[str, str]) -> Started:
    """Run a line of bash with a `vllm` that records its arguments and its environment."""
    tools = folder / "tools"
    tools.mkdir(exist_ok=True)
    (tools / "vllm").write_text(_STUB)
    (tools / "vllm").chmod(0o755)
    environment = {"PATH": f"{tools}:/usr/bin:/bin", "RECORD": str(tools), "LANG": "C.UTF-8", **variables}
    done = subprocess.run([SHELL, "-c", line], cwd=folder, env=environment, capture_output=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, b"")
    words = (tools / "argv").read_bytes().decode().split("\0")[:-1]
    pairs = (tools / "env").read_bytes().decode().split("\0")[:-1]
    assert words[0] == "serve"
    return Started(tuple(words[1:]), dict(pair.split("=", 1) for pair in pairs))


def documents(path: Path) -> list[Any]:
    """Return the documents of a YAML file; there are no anchors and aliases."""
    text = path.read_text(encoding="utf-8")
    events = list(yaml.parse(text))
    assert not [event for event in events if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None)]
    return list(yaml.safe_load_all(text))


def expanded(text: str, variables: Mapping[str, str]) -> str:
    """Return what Kubernetes makes of a text (k8s.io/kubernetes/third_party/forked/golang/expansion)."""

    def replaced(match: re.Match[str]) -> str:
        if match[0] == "$$":
            return "$"
        return variables.get(match[1], match[0])

    return re.sub(r"\$\$|\$\(([^)]*)\)", replaced, text)


def container_started(container: Mapping[str, Any], secrets: Mapping[str, str]) -> Started:
    environment: dict[str, str] = {}
    for each in container["env"]:
        if "value" in each:
            environment[each["name"]] = expanded(each["value"], environment)
            continue
        found = each["valueFrom"]["secretKeyRef"]
        if found["key"] in secrets or not found.get("optional"):
            environment[each["name"]] = secrets.get(found["key"], "")
    words = tuple(expanded(word, environment) for word in container.get("args", ()))
    return Started(words, environment)


def served(words: Sequence[str]) -> tuple[str, ...]:
    """Return the words without the address on which a container's server listens, with which they end."""
    assert tuple(words[-4:]) == ("--host", "0.0.0.0", "--port", "8000")
    return tuple(words[:-4])


def loaded_config(path: Path) -> list[str]:
    """Return the words that vLLM 0.32 makes of a configuration (`FlexibleArgumentParser.load_config_file`)."""
    words: list[str] = []
    (content,) = documents(path)
    for key, value in content.items():
        if isinstance(value, bool):
            assert value, "vLLM may drop it in silence"
            words.append(f"--{key}")
        elif isinstance(value, list):
            assert value, "vLLM drops it in silence"
            words += [f"--{key}", *map(str, value)]
        elif isinstance(value, dict):
            words += [f"--{key}", json.dumps(value)]
        else:
            assert value is not None, "vLLM writes None"
            words += [f"--{key}", str(value)]
    return words
