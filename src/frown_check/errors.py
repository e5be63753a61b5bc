"""The one exception of the checker."""

from __future__ import annotations


class Refused(Exception):
    """The certificate is not accepted; the message says why, at the first step that fails."""


def refuse_if(wrong: object, why: str) -> None:
    if wrong:
        raise Refused(why)
