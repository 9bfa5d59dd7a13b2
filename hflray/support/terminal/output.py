"""The output of a command: its width, its log lines, and what it says while one waits."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from rich.console import Console, ConsoleOptions
from rich.logging import RichHandler
from rich.segment import Segment

from hflray.support.text import SafeStream, visible

WIDE = 100_000  # the width of a log file, where no line is broken
_PLAIN: dict[str, Any] = {"markup": False, "highlight": False, "soft_wrap": True}


class SafeConsole(Console):
    """Rich's console for texts that may be a stranger's: their control characters are shown, their markup is text.

    Rich's own colours and cursor movements are made after `render`, so that they reach the terminal.
    """

    def __init__(self, width: int | None = None) -> None:
        super().__init__(width=width, markup=False, emoji=False, highlight=False)

    @property
    def file(self) -> Any:
        """The standard output itself, because Rich's own escapes must pass."""
        stream = super().file
        return stream.stream if isinstance(stream, SafeStream) else stream

    @file.setter
    def file(self, new: Any) -> None:
        self._file = new

    def render(self, renderable: Any, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Yield what an object shows."""
        for text, style, control in super().render(renderable, options):
            if control is None:
                style = style.update_link(None) if style is not None and style.link else style
                text = visible(text)
            yield Segment(text, style, control)


def new_console() -> SafeConsole:
    """Return the output. A file or a pipe has no width, unless ``$COLUMNS`` names one."""
    console = SafeConsole()
    return console if console.is_terminal or os.environ.get("COLUMNS") else SafeConsole(width=WIDE)


def show_log(console: Console) -> None:
    """Print the log lines of all libraries on `console`: with colours on a terminal, as plain lines elsewhere."""
    handler: logging.Handler
    if console.is_terminal:
        handler, form = RichHandler(console=console, show_path=False, show_time=False), "%(message)s"
    else:
        handler, form = _LogLines(console), "%(levelname)s: %(message)s"
    logging.basicConfig(format=form, handlers=[handler])


class Waiting:
    """A text with the seconds since it was made, which a live display renews, such as ``starting Ray, 4 s``."""

    def __init__(self, text: str) -> None:
        self._text, self._began = text, time.monotonic()

    def __str__(self) -> str:
        passed_s = time.monotonic() - self._began
        return f"{self._text}, {passed_s:.0f} s" if passed_s >= 1 else self._text

    def __format__(self, form: str) -> str:
        return format(str(self), form)

    def __rich__(self) -> str:
        return str(self)


@contextmanager
def waiting(console: Console, text: str, quiet: bool = False) -> Iterator[None]:
    """Say what a block does and for how long: in a status line on a terminal, and by `timed` elsewhere."""
    if quiet:
        yield
    else:
        with console.status(Waiting(text)) if console.is_terminal else timed(console, text):
            yield


@contextmanager
def timed(console: Console, text: str) -> Iterator[None]:
    """Print ``text …`` at once, and how long the block took when it ends."""
    begun_s = time.monotonic()
    say(console, f"{text} …")
    try:
        yield
    finally:
        say(console, f"{text}: {time.monotonic() - begun_s:.1f} s")


def say(console: Console, text: str, style: str | None = None) -> None:
    """Print a line as it is."""
    console.print(text, style=style, **_PLAIN)


def say_notes(console: Console, notes: Sequence[str], most: int) -> None:
    """Print the first `most` notes, a line each, and how many more there are."""
    more = [f"{len(notes) - most} further notes"] if len(notes) > most else []
    for note in [*notes[:most], *more]:
        say(console, f"note: {note}", "yellow")


class _LogLines(logging.Handler):
    """Prints log records as plain lines."""

    def __init__(self, console: Console) -> None:
        super().__init__()
        self._console = console

    def emit(self, record: logging.LogRecord) -> None:
        """Print a record."""
        say(self._console, self.format(record))
