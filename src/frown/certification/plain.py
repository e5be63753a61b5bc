"""Strings that come from files, made safe to show: on a terminal, in a page, in a spreadsheet.

A model, a certificate, a data file or a path may be named by a stranger. Written as it is, such a
name can move the cursor, clear a line, end one, turn the reading direction round or become markup,
and so show another result than there is.
"""

from __future__ import annotations

from html import escape
from unicodedata import category

# Controls, formats (bidi marks, zero-width), lone surrogates, private use, unassigned; line and
# paragraph separators.
_UNSEEN = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})


def plain(text: object) -> str:
    """One line in which every character is seen; those that are not are written as \\x1b."""
    shown = str(text)
    if shown.isascii() and shown.isprintable():
        return shown
    return "".join(_code(c) if category(c) in _UNSEEN else c for c in shown)


def plain_lines(text: object) -> str:
    """Several lines, those after the first indented, so that no name can begin a line of ours."""
    first, *rest = str(text).split("\n")
    return "\n".join([plain(first), *(f"  {plain(line).lstrip()}" for line in rest)])


def markup(text: object) -> str:
    """The text of an HTML page, between tags or inside quotes."""
    return escape(plain(text))


def cell(value: object) -> object:
    """A value of a CSV file; text that a spreadsheet would take for a formula gets a quote."""
    if isinstance(value, str):
        shown = plain(value)
        return f"'{shown}" if shown[:1] in ("=", "+", "-", "@") else shown
    return value


def _code(character: str) -> str:
    return character.encode("unicode_escape", "surrogatepass").decode("ascii")
