"""The interpreter of vLLM, and its version."""

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tests.unit.engines.vllm.conftest import MadeVllm
from tuner.engines.server.program_engine import interpreter_of
from tuner.engines.server.python_engine import PythonInstallation
from tuner.engines.vllm.toolbox import ENTRY_POINT, PACKAGE, installation
from tuner.errors import UserError

ENTRY = """import sys
from vllm.entrypoints.cli.main import main
if __name__ == "__main__":
    if sys.argv[0].endswith("-script.pyw"):
        sys.argv[0] = sys.argv[0][:-11]
    elif sys.argv[0].endswith(".exe"):
        sys.argv[0] = sys.argv[0][:-4]
    sys.exit(main())
"""
"""What uv writes; pip and distlib write other lines of the same kinds."""


def program(path: Path, text: str = "#!/bin/sh\necho 9.9.9\n") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return path


@pytest.mark.parametrize(
    "head",
    [
        "#!{python}\n# -*- coding: utf-8 -*-\n",
        "#!{python} -I\n",
        "#!/usr/bin/env -S {python} -u\n",
        "#!/bin/sh\n'''exec' \"{python}\" \"$0\" \"$@\"\n' '''\n",
        "#!/bin/sh\n'''exec' {python} \"$0\" \"$@\"\n' '''\n",
    ],
)
def test_every_form_of_console_script_gives_its_interpreter(tmp_path: Path, head: str) -> None:
    script = program(tmp_path / "vllm", head.format(python=sys.executable) + ENTRY)
    assert interpreter_of(script, ENTRY_POINT) == Path(sys.executable)


def test_an_interpreter_in_a_folder_with_spaces_is_found(tmp_path: Path) -> None:
    python = program(tmp_path / "my venv" / "python")
    script = program(tmp_path / "vllm", f"#!/bin/sh\n'''exec' \"{python}\" \"$0\" \"$@\"\n' '''\n{ENTRY}")
    assert interpreter_of(script, ENTRY_POINT) == python


def test_a_wrapper_has_no_interpreter_of_vllms(tmp_path: Path) -> None:
    assert interpreter_of(program(tmp_path / "vllm"), ENTRY_POINT) is None
    assert interpreter_of(program(tmp_path / "python-wrapper", f"#!{sys.executable}\nprint(1)\n"), ENTRY_POINT) is None
    shell = '#!/bin/sh\nexec python3 -m vllm.entrypoints.cli.main "$@"\n'
    assert interpreter_of(program(tmp_path / "shell-wrapper", shell), ENTRY_POINT) is None
    assert interpreter_of(tmp_path / "nothing", ENTRY_POINT) is None
    for more in ("import os\nos.environ['OMP_NUM_THREADS'] = '1'\n", "import patches\n", "from patches import main\n"):
        patched = program(tmp_path / "patched", f"#!{sys.executable}\n{more}{ENTRY}")
        assert interpreter_of(patched, ENTRY_POINT) is None


def test_a_console_script_is_probed_not_run(made_vllm: MadeVllm, tmp_path: Path) -> None:
    (made_vllm.folder / "arctic_inference").mkdir()
    (made_vllm.folder / "arctic_inference" / "__init__.py").write_text("raise RuntimeError('imported')")
    found = installation(made_vllm.executable, tmp_path / "home")
    assert found.version == "1.2.3"
    assert found.packages is not None
    assert "arctic_inference" in found.packages
    assert "bitsandbytes" not in found.packages
    assert not (tmp_path / "home").exists()


def test_a_package_is_found_in_vllms_own_wheel(made_vllm: MadeVllm, tmp_path: Path) -> None:
    assert "deep_gemm" not in (installation(made_vllm.executable, tmp_path).packages or ())
    copies = made_vllm.folder / "vllm" / "third_party"
    for name in ("deep_gemm", "lmcache"):  # vLLM's wheel has no copy of LMCache
        (copies / name).mkdir(parents=True)
        (copies / name / "__init__.py").write_text("raise RuntimeError('imported')")
    packages = installation(made_vllm.executable, tmp_path).packages
    assert packages is not None
    assert "deep_gemm" in packages
    assert "lmcache" not in packages


def test_another_program_is_run_once_for_its_version(tmp_path: Path) -> None:
    count = tmp_path / "count"
    wrapper = program(tmp_path / "vllm", f"#!/bin/sh\necho x >> {count}\necho INFO noise\necho 0.25.1\n")
    home = tmp_path / "home"
    assert [installation(wrapper, home).version for _ in range(3)] == ["0.25.1"] * 3
    assert count.read_text() == "x\n"
    program(wrapper, f"#!/bin/sh\necho x >> {count}\necho 0.32.0+cpu\n")
    assert installation(wrapper, home).version == "0.32.0+cpu"


def test_a_program_without_a_version_is_refused(tmp_path: Path) -> None:
    broken = program(tmp_path / "vllm", "#!/bin/sh\necho No package metadata >&2\nexit 1\n")
    with pytest.raises(UserError, match=r"prints no version \(No package metadata\)"):
        installation(broken, tmp_path / "home")


def test_the_cache_key_changes_with_the_program(tmp_path: Path) -> None:
    path = program(tmp_path / "vllm")
    found = PythonInstallation(PACKAGE, path, None, "1.0", None)
    first = found.key
    assert replace(found, version="1.1").key != first
    program(path, "#!/bin/sh\necho 10.0.0\n")
    assert found.key != first
