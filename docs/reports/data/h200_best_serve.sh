#!/usr/bin/env bash
# Starts the vLLM server that tuner's study chose; --help says how, --verify checks its figures.
#
# study     h200, trial 0
# verdict   keep the defaults: no configuration beat them beyond the noise (the best finalist scored 1.040 of them)
# model     ./qwen2.5-0.5b
# measured  output_throughput: 16,231 tok/s
# measured  p99_tpot_ms: 3.212 ms
# measured  p99_ttft_ms: 201.9 ms
# SLO       p99_tpot_ms<50
# SLO       p99_ttft_ms<2000
# SLO       success_rate>=1
# vLLM      0.25.1 (vllm)
# GPU       NVIDIA H200
# date      2026-11-21
#
# shellcheck disable=SC1003,SC1112,SC2016 # quoted words are literal text: nothing in them may be read or expanded
set -euo pipefail

readonly recorded_version=0.25.1 recorded_vllm=vllm
if [[ -z "${VLLM:-}" ]]; then
  VLLM=vllm
  if ! command -v vllm >/dev/null && [[ -x "$recorded_vllm" ]]; then VLLM="$recorded_vllm"; fi
fi

usage() {
  cat <<'USAGE'
usage: best_serve.sh [SERVER ARGUMENTS...]     start the server, in the foreground
       best_serve.sh --verify [ARGUMENTS...]   start it, run the study's benchmark, compare, stop it
       best_serve.sh --help

Further arguments go to `vllm serve` after the study's own, so they win. Environment:
  VLLM               the vllm executable (default: vllm from PATH, else the one that the study ran)
  HOST               address to listen on (default 127.0.0.1; HOST=0.0.0.0 serves other machines)
  PORT               port (default 8000; --verify: a free one, always on 127.0.0.1)
  VERIFY_STARTUP_S   --verify: seconds the server may take until it is healthy (default 900)
  VERIFY_STOP_S      --verify: seconds it may take to stop before it is killed (default 30)
  PYTHON             --verify: a Python 3 to read results with (default: the one beside vllm, else python3)

--verify prints one line a metric and a line an SLO, and exits with
  0  no metric is worse than its recorded interval and every SLO holds
  1  one is worse, or an SLO is broken
  2  it could not run
USAGE
}

server_words=(
  serve
  ./qwen2.5-0.5b
  --load-format dummy
)
export VLLM_USE_FLASHINFER_SAMPLER=0
export VLLM_WORKER_MULTIPROCESSING_METHOD=fork

say() { printf 'best_serve.sh: %s\n' "$*" >&2; }

python_beside_vllm() {
  local folder
  folder="$(dirname "$(readlink -f "$(command -v "$VLLM")")")"
  [[ -x "$folder/python3" ]] && printf '%s\n' "$folder/python3"
}

installed_version() {
  local python
  if python="$(python_beside_vllm)" &&
    "$python" -c 'import importlib.metadata as m; print(m.version("vllm"))' 2>/dev/null; then
    return
  fi
  timeout 120 "$VLLM" --version 2>/dev/null | tail -n 1
}

check_executable() {
  local version
  if ! command -v "$VLLM" >/dev/null; then
    say "no executable $VLLM; set VLLM=/path/to/vllm (the study ran $recorded_version)"
    exit "$1"
  fi
  version="$(installed_version || true)"
  version="${version##* }"
  if [[ "${version%%+*}" != "${recorded_version%%+*}" ]]; then
    say "warning: vLLM ${version:-of an unknown version} is installed, the study ran $recorded_version"
  fi
}

# The processes of group $1 and its leader, zombies left out: who ends is not always reaped at once.
living() {
  local stat line pid state group session
  for stat in /proc/[0-9]*/stat; do
    line=""
    { IFS= read -r -d '' line <"$stat"; } 2>/dev/null || true
    read -r state _ group session _ <<<"${line##*) }" || continue
    pid="${stat//[!0-9]/}"
    if [[ "$state" != Z && ("$group" == "$1" || "$session" == "$1" || "$pid" == "$1") ]]; then printf '%s\n' "$pid"; fi
  done
}

running() {
  local line=""
  { IFS= read -r -d '' line <"/proc/$1/stat"; } 2>/dev/null || true
  [[ -n "$line" && "${line##*) }" != Z* ]]
}

gone_within() {
  local tenths
  for ((tenths = 0; tenths < $2 * 10; tenths++)); do
    if [[ -z "$(living "$1")" ]]; then return 0; fi
    sleep 0.1
  done
  return 1
}

# End group $1, first kindly; fail if something of it survives.
end_group() {
  local pid
  kill -TERM -- "$1" "-$1" 2>/dev/null || true
  if gone_within "$1" "${VERIFY_STOP_S:-30}"; then return 0; fi
  for pid in $(living "$1"); do kill -KILL "$pid" 2>/dev/null || true; done
  gone_within "$1" 10
}

client="" server="" work="" port="" results=""

clean_up() {
  local status=$?
  trap - EXIT
  trap '' INT TERM
  if [[ -n "$client" ]] && ! end_group "$client"; then status=2; fi
  if [[ -n "$server" ]]; then
    if end_group "$server"; then
      printf 'server stopped: nothing of its process group %s is left\n' "$server"
    else
      say "processes survived: $(living "$server" | tr '\n' ' ')"
      status=2
    fi
  fi
  if ((status == 0 || status == 1)); then rm -rf -- "$work"; elif [[ -n "$work" ]]; then say "logs are in $work"; fi
  exit "$status"
}

give_up() {
  say "$1"
  if [[ -n "${2:-}" ]]; then tail -n 15 -- "$2" >&2 || true; fi
  exit 2
}

# In a subshell, because a peer that closes early would end it by SIGPIPE.
healthy() (
  exec 3<>"/dev/tcp/127.0.0.1/$port" || exit 1
  printf 'GET /health HTTP/1.0\r\nHost: 127.0.0.1\r\n\r\n' >&3
  IFS= read -r -t 5 status <&3 || exit 1
  [[ "$status" == HTTP/1.?" 200"* ]]
) 2>/dev/null

# `set -m` gives the server and the client groups of their own in one session: Linux shares the CPU out between sessions,
# and a client in another than the server is kept waiting where cores are scarce.
start_server() {
  local deadline=$((SECONDS + ${VERIFY_STARTUP_S:-900}))
  if (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null; then
    give_up "port $port is taken; choose another by PORT=, or leave PORT out"
  fi
  set -m
  "$VLLM" "${server_words[@]}" --host 127.0.0.1 --port "$port" "$@" >"$work/server.log" 2>&1 </dev/null &
  server=$!
  set +m
  until healthy; do
    running "$server" || give_up "the server ended before it was healthy; its last lines:" "$work/server.log"
    ((SECONDS < deadline)) || give_up "the server was not healthy in time; its last lines:" "$work/server.log"
    sleep 0.5
  done
  running "$server" || give_up "somebody else answers on port $port" "$work/server.log"
}

# Run the client as stage $1 with the words after it; its results go to $results.
run_client() {
  local stage="$1" status=0
  shift
  set -m
  "$VLLM" "$@" >"$work/$stage.log" 2>&1 </dev/null &
  client=$!
  set +m
  while running "$client"; do
    running "$server" || give_up "the server ended during the $stage; its last lines:" "$work/server.log"
    sleep 0.2
  done
  wait "$client" || status=$?
  end_group "$client" || true
  client=""
  healthy || give_up "the server ended during the $stage; its last lines:" "$work/server.log"
  ((status == 0)) || give_up "the $stage ended with $status; its last lines:" "$work/$stage.log"
}

warm_up() {
  results="$work/warmup-results"
  local words=(
    bench
    serve
    --backend openai
    --base-url http://127.0.0.1:"$port"/v1
    --endpoint /completions
    --model ./qwen2.5-0.5b
    --tokenizer ./qwen2.5-0.5b
    --max-concurrency 50
    --num-prompts 50
    --ignore-eos
    --random-input-len 512
    --random-output-len 32
    --save-result
    --result-dir "$results"
    --result-filename result.json
    --seed 1401000
    --percentile-metrics 'ttft,tpot,itl,e2el'
    --metric-percentiles '50,90,95,99'
  )
  if ((${#words[@]})); then run_client warmup "${words[@]}"; fi
}

# As often as the study measured, each time other prompts: the same would hit the prefix cache.
benchmark() {
  local repeat seed words
  for ((repeat = 0; repeat < 3; repeat++)); do
    seed=$((901000 + repeat))
    results="$work/results/$seed"
    mkdir -p "$results"
    words=(
    bench
    serve
    --backend openai
    --base-url http://127.0.0.1:"$port"/v1
    --endpoint /completions
    --model ./qwen2.5-0.5b
    --tokenizer ./qwen2.5-0.5b
    --max-concurrency 50
    --num-prompts 200
    --ignore-eos
    --random-input-len 512
    --random-output-len 512
    --save-result
    --result-dir "$results"
    --result-filename result.json
    --seed "$seed"
    --percentile-metrics 'ttft,tpot,itl,e2el'
    --metric-percentiles '50,90,95,99'
    )
    run_client benchmark "${words[@]}"
  done
}

compare() {
  "$1" - '{"metrics": {"output_throughput": {"value": 16230.635594614028, "low": 12237.487852580609, "high": 21526.765540331035, "up": true}, "p99_tpot_ms": {"value": 3.2120091309197965, "low": 2.2218548457073335, "high": 4.6434188430647465, "up": false}, "p99_ttft_ms": {"value": 201.85784214000194, "low": 133.50818122134172, "high": 305.19918750046213, "up": false}}, "slos": [["p99_tpot_ms", "<", 50.0], ["p99_ttft_ms", "<", 2000.0], ["success_rate", ">=", 1.0]]}' "$work/results" 3 <<'PYTHON'
import json, operator, pathlib, statistics, sys

reference = json.loads(sys.argv[1])
results = [json.loads(file.read_text()) for file in sorted(pathlib.Path(sys.argv[2]).glob("*/*.json"))]
if len(results) != int(sys.argv[3]):
    sys.exit(3)


def measured(name):
    if name == "success_rate":
        return sum(result["completed"] for result in results) / sum(result["num_prompts"] for result in results)
    values = [result.get(name) for result in results if result["completed"]]
    return statistics.median(values) if len(values) == len(results) and None not in values else None


bad = False
for name, known in reference["metrics"].items():
    value = measured(name)
    if value is None:
        verdict = "NOT MEASURED"
    elif known["low"] <= value <= known["high"]:
        verdict = "within"
    else:
        verdict = "better" if (value > known["high"]) == known["up"] else "WORSE"
    bad |= verdict.isupper()
    shown = "-" if value is None else f"{value:.6g}"
    print(f"{name}: measured {shown}, recorded {known['value']:.6g} [{known['low']:.6g}, {known['high']:.6g}]: {verdict}")
operators = {"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge}
for name, sign, threshold in reference["slos"]:
    value = measured(name)
    held = value is not None and operators[sign](value, threshold)
    bad |= not held
    shown = "-" if value is None else f"{value:.6g}"
    print(f"SLO {name}{sign}{threshold:g}: measured {shown}: {'holds' if held else 'BROKEN'}")
sys.exit(1 if bad else 0)
PYTHON
}

verify() {
  local python status=0
  python="${PYTHON:-$(python_beside_vllm || command -v python3 || true)}"
  [[ -n "$python" ]] || give_up "--verify needs a Python 3; set PYTHON"
  work="$(mktemp -d)"
  trap clean_up EXIT
  trap 'exit 130' INT
  trap 'exit 143' TERM
  port="${PORT:-$("$python" -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')}"
  start_server "$@"
  warm_up
  benchmark
  compare "$python" || status=$?
  ((status < 2)) || give_up "the benchmark left no readable result; its last lines:" "$work/benchmark.log"
  exit "$status"
}

case "${1:-}" in
  --help | -h) usage ;;
  --verify)
    shift
    check_executable 2
    verify "$@"
    ;;
  *)
    check_executable 127
    exec "$VLLM" "${server_words[@]}" --host "${HOST:-127.0.0.1}" --port "${PORT:-8000}" "$@"
    ;;
esac
