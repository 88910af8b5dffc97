#!/usr/bin/env bash
# Start an engine and a proxy in front of it. When one of them ends, or on SIGTERM, both end.
#
#   engine_behind_proxy.sh PORT MODEL FLAGS...    the proxy listens on PORT, the engine has the FLAGS
set -euo pipefail

port="$1" model="$2"
shift 2
engine_port="$(python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')"

trap 'kill $(jobs -p) 2>/dev/null || true' EXIT
trap 'exit 143' TERM

"${ENGINE:-llama-server}" --model "$model" --alias "$model" --host 127.0.0.1 --port "$engine_port" "$@" &
"${PROXY:-./proxy}" --port "$port" --server "http://127.0.0.1:$engine_port" &
wait -n
