"""Equations as MathML, which browsers draw without a script; ``\\tag{4}`` numbers an equation at its right."""

from __future__ import annotations

import re
from typing import Any

from docutils import nodes
from docutils.utils.math import latex2mathml
from sphinx.application import Sphinx

TAG = re.compile(r"\\tag\{([^}]*)\}")


def to_mathml(latex: str, block: bool) -> str:
    """Return the MathML of an expression. Raises docutils' MathError if it cannot be converted."""
    return str(latex2mathml.tex2mathml(latex, as_block=block))


def visit_math(self: Any, node: nodes.math) -> None:
    """Write an expression within a sentence."""
    self.body.append(to_mathml(node.astext(), block=False))
    raise nodes.SkipNode


def visit_displaymath(self: Any, node: nodes.math_block) -> None:
    """Write an equation on its own line, with its number."""
    latex = node.astext()
    tag = TAG.search(latex)
    number = f'<span class="number">({tag[1]})</span>' if tag else ""
    place = f' id="equation-{tag[1]}"' if tag else ""
    formula = to_mathml(TAG.sub("", latex).strip(), block=True)
    self.body.append(f'<div class="numbered-equation"{place}>{formula}{number}</div>\n')
    raise nodes.SkipNode


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the renderer, which ``html_math_renderer = "mathml"`` selects."""
    app.add_html_math_renderer("mathml", (visit_math, None), (visit_displaymath, None))
    return {"parallel_read_safe": True, "parallel_write_safe": True}
