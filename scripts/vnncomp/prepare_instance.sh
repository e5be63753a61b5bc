#!/usr/bin/env bash
# prepare_instance.sh v1 CATEGORY ONNX VNNLIB: nothing is to be prepared but that both files are there.
set -euo pipefail
[ "${1:-}" = v1 ] || { echo "expected the version string v1, not '${1:-}'" >&2; exit 1; }
[ $# -ge 4 ] || { echo "usage: prepare_instance.sh v1 CATEGORY ONNX VNNLIB" >&2; exit 1; }
for file in "$3" "$4"; do
  [ -r "$file" ] || { echo "$file cannot be read" >&2; exit 1; }
done
