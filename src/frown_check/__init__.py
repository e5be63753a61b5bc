"""An independent checker of frown's certificates.

It shares no code with frown, and needs numpy, onnx (to parse files) and python-flint (Arb). What a
certificate is, and what it proves, is in docs/certificate.md.
"""

from __future__ import annotations

from frown_check.checker import Claim, Verdict, check

__all__ = ["Claim", "Verdict", "check"]
