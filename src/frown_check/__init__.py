"""An independent checker of frown's certificates.

It shares no code with frown, and needs numpy, onnx (to parse files) and python-flint (Arb). What a
certificate is, and what it proves, is in docs/certificate.md; how to audit this code, file by file,
in docs/checker.md. Modules import only what stands before them:

    errors, files, balls, guesses, curves, functions, lines, graph, region    the proof
    container                                                                 the certificate's file
    model                                                                     the ONNX file
    deviations, tree, replay, checker                                         the verdict
    query, cover                                                              that on a query
    data, shown                                                               what is printed

`model` alone knows ONNX, and `checker` alone calls it. It returns a `Network`: nodes of five kinds
with their numbers. The proof is about that network, for any choices a certificate makes. It
trusts the reader in one thing: that the network is the function which the file defines. Sizes,
order and sites are compared with the certificate, numbers that are not finite prove nothing.
"""

from __future__ import annotations

from frown_check.checker import Claim, Verdict, check
from frown_check.cover import QueryVerdict, check_query

__all__ = ["Claim", "QueryVerdict", "Verdict", "check", "check_query"]
