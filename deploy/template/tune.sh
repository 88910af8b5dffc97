#!/usr/bin/env bash
# Tunes vLLM for traffic.yaml and writes serve.sh. Words are passed on: --model, and --gpu CARD to predict instead of measure.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
tuner optimize --study production --workload traffic.yaml --output serve.sh "$@"
