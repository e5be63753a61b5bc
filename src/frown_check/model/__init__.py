"""The reader of ONNX files: from a file to the `Network` that it defines.

The proof is about what `load` returns, so a mistake here would prove something about another
function than the file's. Nothing else can go wrong here: no bound is computed in this package, and
weights that have to be computed (batch normalisation, quotients) come as balls that contain them.
"""

from __future__ import annotations

from frown_check.model.file import load

__all__ = ["load"]
