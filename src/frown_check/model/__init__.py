"""The reader of ONNX files: from a file to the `Network` that it defines.

The proof core takes what `load` returns as the definition of the function it proves something
about. A mistake here makes a proof about another function than the file's.
"""

from __future__ import annotations

from frown_check.model.file import load

__all__ = ["load"]
