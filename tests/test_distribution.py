"""What is built and installed: the wheel and the sdist are complete, and the wheel does its work on its own."""

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

import tuner

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
NAME = str(PROJECT["project"]["name"])
STEM = f"{NAME.replace('-', '_')}-{tuner.__version__}"
PACKAGES = tuple(PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"])
BESIDE = {".gitignore", "LICENSE", "PKG-INFO", "README.md", "pyproject.toml"}
"""What the sdist has beside the packages."""
PATIENCE_S = 600.0
MOST_BYTES = 650 * 10**6
"""Of an installation without extras, before bytecode."""

_INSTALLED = re.compile(r"""\bpip install( -\S+)* ['"]?tuner\b|'tuner\[""")
_EXTRA = re.compile(r"--extra ([\w-]+)|\.whl\[([\w-]+)\]")


def tracked() -> list[Path]:
    """Return the files of the repository that have texts for people."""
    words = ["git", "ls-files", "*.py", "*.md", "*.ipynb", "*.sh", "*.yaml", "deploy"]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True)
    return [ROOT / line for line in done.stdout.splitlines() if "docs/reports" not in line and line != "CHANGELOG.md"]


def test_no_text_installs_the_strangers_package_of_this_name() -> None:
    """`tuner` on the package index is a musical instrument tuner."""
    texts = {path: path.read_text(encoding="utf-8", errors="replace") for path in tracked() if path != Path(__file__)}
    assert NAME != "tuner"
    assert [str(path) for path, text in texts.items() if _INSTALLED.search(text)] == []


@pytest.mark.parametrize("line", ["pip install tuner", "`pip install 'tuner[x]'`", "!pip install -q tuner"])
def test_such_a_text_would_be_found(line: str) -> None:
    assert _INSTALLED.search(line)
    assert not _INSTALLED.search("pip install -q uv && git clone URL tuner && pip install tuner_x")


def test_the_extras_that_texts_name_exist() -> None:
    named = {
        extra for path in tracked() for found in _EXTRA.findall(path.read_text(errors="replace")) for extra in found
    }
    assert "llama-cpp" in named
    assert named - {""} <= set(PROJECT["project"]["optional-dependencies"])


def test_the_version_is_that_of_the_program() -> None:
    assert PROJECT["project"]["version"] == tuner.__version__


def uv(*words: object, cwd: Path = ROOT) -> None:
    """Run uv, which `uv run pytest` names in a variable."""
    program = os.environ.get("UV") or shutil.which("uv")
    if program is None:
        pytest.skip("uv is not on the PATH")
    subprocess.run([program, *map(str, words)], cwd=cwd, check=True)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the sdist, and the wheel that was built from it."""
    folder = tmp_path_factory.mktemp("dist")
    uv("build", "--quiet", "--out-dir", folder)
    return folder


@pytest.fixture(scope="module")
def wheel(built: Path) -> Path:
    return built / f"{STEM}-py3-none-any.whl"


@pytest.fixture(scope="module")
def programs(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of programs of an empty environment into which the wheel was installed.

    The constraints of pyproject.toml apply: a new version of a library is no fault of the wheel.
    """
    folder = tmp_path_factory.mktemp("installed")
    uv("venv", "--quiet", "--python", sys.executable, folder / "venv")
    uv("pip", "install", "--quiet", "--python", folder / "venv", wheel)
    return folder / "venv" / "bin"


@pytest.fixture(scope="module")
def reporting(programs: Path, wheel: Path) -> Path:
    """The same, with the extra `report`; tests of what the wheel lacks come before."""
    uv("pip", "install", "--quiet", "--python", programs.parent, f"{wheel}[report]")
    return programs


def command(programs: Path, folder: Path) -> dict[str, str]:
    """Return the environment of a user who works in a folder and has nothing but the wheel."""
    return {"PATH": f"{programs}:/usr/bin:/bin", "HOME": str(folder)}


def contents(path: Path) -> dict[str, str]:
    """Return the digest of each file of a wheel, by its name."""
    with zipfile.ZipFile(path) as archive:
        return {name: hashlib.sha256(archive.read(name)).hexdigest() for name in archive.namelist()}


@pytest.mark.slow
def test_wheel_and_sdist_have_the_packages_and_no_more(built: Path, wheel: Path, tmp_path: Path) -> None:
    done = subprocess.run(["git", "ls-files", *PACKAGES], cwd=ROOT, capture_output=True, text=True, check=True)
    expected = {line for line in done.stdout.splitlines() if (ROOT / line).exists()}
    found = {name for name in contents(wheel) if ".dist-info/" not in name}
    assert found == expected
    with tarfile.open(built / f"{STEM}.tar.gz") as archive:
        names = {name.removeprefix(f"{STEM}/") for name in archive.getnames()}
    assert names == expected | BESIDE
    uv("build", "--quiet", "--wheel", "--out-dir", tmp_path)
    assert contents(tmp_path / wheel.name) == contents(wheel)


def test_the_quickstart_lists_every_extra() -> None:
    text = (ROOT / "docs" / "quickstart.md").read_text(encoding="utf-8")
    table = text[text.index("| extra |") : text.index("*The extras.")]
    assert set(re.findall(r"^\| `([\w-]+)`", table, re.MULTILINE)) == set(PROJECT["project"]["optional-dependencies"])


@pytest.mark.slow
def test_the_installed_wheel_is_light_and_says_what_it_lacks(programs: Path, tmp_path: Path) -> None:
    files = {(found.st_dev, found.st_ino): found.st_size for found in map(os.lstat, programs.parent.rglob("*"))}
    assert sum(files.values()) < MOST_BYTES
    for words, module, extra in (
        (["optimize", "--trials", "2", "--plain"], "plotly", "report"),
        (["study", "report"], "jinja2", "report"),
        (["serve", "--port", "0"], "plotly", "report"),
        (["study", "ui"], "flask_wtf", "ui"),
    ):
        line: list[str | Path] = [programs / "tuner", *words]
        environment = command(programs, tmp_path)
        done = subprocess.run(line, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=PATIENCE_S)
        assert done.returncode == (0 if words[0] == "optimize" else 2), done.stderr
        assert f"the package `{module}` is not installed; `pip install 'llm-serving-tuner[{extra}]'`" in (
            " ".join((done.stdout + done.stderr).split())
        )
    assert (tmp_path / "best_serve.sh").is_file()


@pytest.mark.slow
def test_the_installed_wheel_runs_a_study(reporting: Path, tmp_path: Path) -> None:
    words: list[str | Path] = [reporting / "tuner", "optimize", "--trials", "12", "--plain"]
    environment = command(reporting, tmp_path)
    done = subprocess.run(words, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.returncode == 0, done.stderr
    assert "beside the defaults, predicted: medians of " in done.stdout
    found = re.search(r"(\d+) measurements in rounds", done.stdout)
    assert found is not None
    assert int(found[1]) <= 12, "three rounds of three finalists and the defaults; half of the search is less"
    assert (tmp_path / "best_serve.sh").is_file()
    (report,) = tmp_path.glob("tuner_study/artifacts/*/report.html")
    assert "plotly" in report.read_text(encoding="utf-8")
    where: list[str | Path] = [reporting / "python", "-c", "import tuner; print(tuner.__file__)"]
    shown = subprocess.run(where, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True).stdout
    assert shown.startswith(str(reporting.parent))


@pytest.fixture
def address(reporting: Path, tmp_path: Path) -> Iterator[str]:
    """The address of the wheel's own service."""
    words: list[str | Path] = [reporting / "tuner", "serve", "--port", "0"]
    environment = command(reporting, tmp_path) | {"PYTHONUNBUFFERED": "1"}
    process = subprocess.Popen(words, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    found = None
    while found is None and (line := process.stdout.readline()):
        found = re.search(r"serves (http://\S+);", line)
    try:
        assert found is not None
        yield found[1]
    finally:
        process.terminate()
        process.communicate(timeout=PATIENCE_S)


@pytest.mark.slow
def test_the_installed_wheel_serves_its_page(address: str) -> None:
    client = httpx.Client(transport=httpx.HTTPTransport(retries=10), base_url=address, timeout=60)
    assert client.get("/healthz").status_code == 200
    page = client.get("/")
    assert (page.status_code, page.headers["content-type"]) == (200, "text/html; charset=utf-8")
    assert f"tuner {tuner.__version__}" in page.text
    scripts = re.findall(r'src="(/page/[^"]+)"', page.text)
    assert scripts
    assert [client.get(script).status_code for script in scripts] == [200] * len(scripts)
