"""A command of hflray, called in this process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from hflray.command.cli import main


def caller(*first: str, squeezed: bool = False, lines: bool = False) -> Callable[..., tuple[int, str, Any]]:
    """Return a function that calls ``hflray`` with more words, and returns the exit code, the output and the errors.

    Args:
        first: the words that come first.
        squeezed: whether the output has single spaces.
        lines: whether the errors are a list of lines.
    """

    def call(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, str, Any]:
        with pytest.raises(SystemExit) as end:
            main([*first, *map(str, words)])
        out, err = capsys.readouterr()
        return int(end.value.code or 0), " ".join(out.split()) if squeezed else out, err.splitlines() if lines else err

    return call
