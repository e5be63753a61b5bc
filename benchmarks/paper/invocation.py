"""The command line of the experiments, as one types it."""

from __future__ import annotations

import re
import shlex


def invocation(*words: str) -> str:
    """The shell command with these arguments: `make paper ARGS="table4 --samples 5"`.

    Make reads `$$` as `$`, and the shell takes a backslash off what is special in double quotes.
    """
    inside = re.sub(r'([\\"`])', r"\\\1", shlex.join(words)).replace("$", r"\$\$")
    return f'make paper ARGS="{inside}"'
