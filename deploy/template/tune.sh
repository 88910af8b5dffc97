#!/usr/bin/env bash
# Tunes vLLM for traffic.yaml and writes serve.sh. All options go to `tuner optimize`: --model, and --gpu CARD to predict.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
tuner optimize --study production --workload traffic.yaml --output serve.sh "$@"
