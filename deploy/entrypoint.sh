#!/bin/sh
# Reads the password of PostgreSQL from a secret's file into the environment of this process, where libpq finds it.
# With RAY_JOIN, the container is a node of that Ray cluster, without devices: only nodes can start trials there.
set -eu
if [ -n "${PGPASSWORD_FILE:-}" ]; then
  PGPASSWORD="$(cat "$PGPASSWORD_FILE")"
  export PGPASSWORD
fi
if [ -n "${RAY_JOIN:-}" ]; then
  ray start "--address=$RAY_JOIN" --num-cpus=0 --num-gpus=0
fi
exec "$@"
