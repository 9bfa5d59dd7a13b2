"""The standard output and the standard error, with control characters shown instead of sent."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from typing import Any, TextIO

from hflray.support.text import visible


class SafeStream:
    """An output that shows control characters instead of sending them, because a terminal would obey them.

    Names, errors and descriptions may come from a stranger's files. Whatever is printed passes here or through
    `SafeConsole`, so that no line that is printed need think of it. Other attributes are those of the `stream`.
    """

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)

    def write(self, text: str) -> int:
        """Write a text."""
        self.stream.write(visible(text))
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        """Write several texts."""
        for line in lines:
            self.write(line)


@contextmanager
def safe_output() -> Iterator[None]:
    """Let all that this process prints in the block pass a `SafeStream`."""
    out: Any = SafeStream(sys.stdout)
    err: Any = SafeStream(sys.stderr)
    with redirect_stdout(out), redirect_stderr(err):
        yield
