#!/usr/bin/env bash
# install_tool.sh v1: install frown, with its solvers, into an environment beside this script, which
# run_instance.sh takes. FROWN_PYTHON names another interpreter to install it for.
set -euo pipefail
[ "${1:-}" = v1 ] || { echo "expected the version string v1, not '${1:-}'" >&2; exit 1; }
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
if [ -z "${FROWN_PYTHON:-}" ]; then
  python3 -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
    { echo "frown needs Python 3.11 or newer: FROWN_PYTHON names an interpreter" >&2; exit 1; }
  python3 -m venv "$here/.venv"
  FROWN_PYTHON=$here/.venv/bin/python
fi
"$FROWN_PYTHON" -m pip install --constraint "$here/../../constraints.txt" "$here/../..[lp]"
"$FROWN_PYTHON" -m frown --version
