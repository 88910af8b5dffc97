#!/bin/sh
# Reads the password of PostgreSQL from a secret's file into the environment of this process, where libpq finds it.
set -eu
if [ -n "${PGPASSWORD_FILE:-}" ]; then
  PGPASSWORD="$(cat "$PGPASSWORD_FILE")"
  export PGPASSWORD
fi
exec "$@"
