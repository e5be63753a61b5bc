#!/usr/bin/env bash
# run_instance.sh v1 CATEGORY ONNX VNNLIB RESULTS TIMEOUT: the verdict, and a witness, go to RESULTS.
set -euo pipefail
[ "${1:-}" = v1 ] || { echo "expected the version string v1, not '${1:-}'" >&2; exit 1; }
[ $# -ge 6 ] || { echo "usage: run_instance.sh v1 CATEGORY ONNX VNNLIB RESULTS TIMEOUT" >&2; exit 1; }
onnx=$3 vnnlib=$4 results=$5 timeout=$6
own=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)/.venv/bin/python
[ -x "$own" ] || own=python3
if "${FROWN_PYTHON:-$own}" -m frown verify "$vnnlib" --network "$onnx" --real --timeout "$timeout" >"$results.part"; then
  # The competition's words: timeout where the standard says timed-out.
  sed '1s/^timed-out$/timeout/' "$results.part" >"$results"
else
  echo error >"$results"
fi
rm -f "$results.part"
