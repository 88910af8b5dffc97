#!/usr/bin/env bash
# Start one of two engines with the same model, in the format of each.
#
#   one_of_two_engines.sh PORT NAME [--engine vllm|llama.cpp] FLAGS...
#
# MODEL_FOLDER is vLLM's model, MODEL_FILE llama.cpp's. NAME is the model's name in requests.
set -euo pipefail

port="$1" name="$2" engine=vllm
shift 2
if [[ "${1:-}" == --engine ]]; then
  engine="$2"
  shift 2
fi
address=(--host 127.0.0.1 --port "$port")
case "$engine" in
  vllm) exec "${VLLM:-vllm}" serve "$MODEL_FOLDER" --served-model-name "$name" "${address[@]}" "$@" ;;
  llama.cpp) exec "${LLAMA_SERVER:-llama-server}" --model "$MODEL_FILE" --alias "$name" "${address[@]}" "$@" ;;
  *) printf 'error: argument --engine: invalid choice: %s\n' "$engine" >&2 && exit 2 ;;
esac
