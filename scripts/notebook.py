"""Run a notebook's cells in order and keep what they print, return and draw.

    python scripts/notebook.py examples/notebook.ipynb            # write the outputs into it
    python scripts/notebook.py examples/notebook.ipynb --check    # exit code 1 if text differs

It needs no Jupyter: a cell is plain Python, its last expression the result, figures of matplotlib
are pictures.
"""

from __future__ import annotations

import argparse
import ast
import base64
import io
import json
import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any


def ran(source: str, names: dict[str, Any]) -> list[dict[str, Any]]:
    """The outputs of one cell, run with what earlier ones have defined."""
    tree = ast.parse(source)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    printed, result = io.StringIO(), None
    with redirect_stdout(printed):
        exec(compile(tree, "<cell>", "exec"), names)
        if last is not None:
            result = eval(compile(ast.Expression(last.value), "<cell>", "eval"), names)
    outputs: list[dict[str, Any]] = []
    if printed.getvalue():
        text = printed.getvalue().splitlines(keepends=True)
        outputs.append({"name": "stdout", "output_type": "stream", "text": text})
    if result is not None:
        outputs.append({"data": shown(result), "metadata": {}, "output_type": "display_data"})
    return outputs


def shown(result: Any) -> dict[str, Any]:
    """A result as Jupyter would show it."""
    if hasattr(result, "savefig"):
        drawn = io.BytesIO()
        result.savefig(drawn, format="png", dpi=80, metadata={"Software": None})
        return {
            "image/png": base64.b64encode(drawn.getvalue()).decode(),
            "text/plain": ["<Figure>"],
        }
    found: dict[str, Any] = {"text/plain": repr(result).splitlines(keepends=True)}
    html = getattr(result, "_repr_html_", lambda: None)()
    if html:
        found["text/html"] = html.splitlines(keepends=True)
    return found


def texts(cell: dict[str, Any]) -> list[str]:
    """All that a cell has printed or returned, as text."""
    return ["".join(out.get("text") or out["data"]["text/plain"]) for out in cell["outputs"]]


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("notebook", type=Path)
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args(arguments)
    held = json.loads(options.notebook.read_text(encoding="utf-8"))
    names: dict[str, Any] = {"__name__": "__main__"}
    differ = 0
    for number, cell in enumerate(c for c in held["cells"] if c["cell_type"] == "code"):
        before = texts(cell)
        cell["outputs"] = ran("".join(cell["source"]), names)
        cell["execution_count"] = number + 1
        if options.check and before != texts(cell):
            differ += 1
            print(f"cell {number + 1} differs:\n{before}\n{texts(cell)}", file=sys.stderr)
    if not options.check:
        text = json.dumps(held, indent=1, ensure_ascii=False, sort_keys=True)
        options.notebook.write_text(text + "\n", encoding="utf-8")
    return 1 if differ else 0


if __name__ == "__main__":
    sys.exit(main())
