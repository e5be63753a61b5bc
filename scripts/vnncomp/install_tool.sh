#!/usr/bin/env bash
# install_tool.sh v1: install frown, with its solvers, for the user who calls it.
set -euo pipefail
[ "${1:-}" = v1 ] || { echo "expected the version string v1, not '${1:-}'" >&2; exit 1; }
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
"${FROWN_PYTHON:-python3}" -m pip install "$here/../..[lp]"
