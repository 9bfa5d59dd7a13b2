"""The directive ``{generated} PAGE``, which inserts a page of `pages` made from the code."""

from __future__ import annotations

import re

import pages
from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective


class Generated(SphinxDirective):
    """Insert the text that the function of `pages` with this name returns."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        name = self.arguments[0]
        if name not in pages.PAGES:
            raise self.error(f"no generated page is called {name}; there are {', '.join(pages.PAGES)}")
        # The code has no file to watch, so that the page is read again in every build.
        self.env.note_reread()
        return self.parse_text_to_nodes(raised(pages.PAGES[name]()), allow_section_headings=True)


def raised(text: str) -> str:
    """Return the text with its headings raised to the first level, as MyST wants them in a text that is inserted."""
    levels = [len(marks) for marks in re.findall(r"^(#+) ", text, flags=re.M)]
    return re.sub(rf"^#{{{min(levels) - 1}}}(#+ )", r"\1", text, flags=re.M) if levels else text


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the directive."""
    app.add_directive("generated", Generated)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
