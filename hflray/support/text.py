"""Texts from users (names, paths, descriptions) made safe for the place where they are shown.

A name may hold a line break, HTML, a formula's sign, a table's separator or a slash. Each function returns the text so
that a reader sees these characters, and no terminal, browser, chart, table or file system interprets them. The standard
output and the standard error of a command pass a `SafeStream`, which does so for all that is printed.
"""

from __future__ import annotations

import re
import sys
import unicodedata
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from typing import Any, TextIO

# Control characters, lone surrogates, and the separators of lines and paragraphs: Unicode's Cc, Cs, Zl and Zp.
_BREAKING = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff\u2028\u2029]")
# What an address holds before its host, also if a password has a slash in it; a port and an @ in the path are no user.
_USER = re.compile(r"(?<=://)(?:[^/?#@\s:]*:(?!\d+[/?#])\S*@|[^/?#\s]*@)")
_SECRET = r"[\w.-]*(?:pass|pwd|token|secret|credential|api_?key|access_?key|signature|odbc_connect)[\w.-]*"
_QUERY = re.compile(rf"(?<=[?&;#])({_SECRET})=[^&;#\s'\"]*", re.IGNORECASE)
_HTML = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;"})


def breaks_lines(text: str) -> bool:
    """Return whether a text holds line breaks, control characters or lone surrogates, which no name may hold."""
    return _BREAKING.search(text) is not None


def shown_address(text: str) -> str:
    """Return a text whose addresses, such as ``http://user:password@host``, lack the user, passwords and tokens."""
    return _QUERY.sub(r"\1=…", _USER.sub("", text)) if "://" in text else text


def holds_secret(address: str) -> bool:
    """Return whether an address holds a password or a token, which nothing may store or show.

    The name of a user alone is none, but for a server or a bucket, where it may be a token.
    """
    user = _USER.search(address)
    named = user is not None and (":" in user[0] or address.startswith(("http", "s3:")))
    return named or _QUERY.search(address) is not None


def one_line(text: object) -> str:
    """Return a text as one line for a terminal: characters that cannot be seen become Python's escapes.

    Addresses in it are as `shown_address` shows them.
    """
    shown = shown_address(str(text))
    return "".join(letter if letter.isprintable() else letter.encode("unicode_escape").decode() for letter in shown)


def visible(text: str) -> str:
    """Return a text of several lines for a terminal: as `one_line`, but line feeds, tabs and all spaces stay."""
    if text.replace("\n", "").replace("\t", "").isprintable():
        return text
    return "".join(letter if letter in "\n\t" or unicodedata.category(letter) == "Zs" else one_line(letter)
                   for letter in text)  # fmt: skip


def shorten(value: object) -> str:
    """Return a value as it stands in a message: one line of at most 80 characters, with quotes around a text."""
    text = "null" if value is None else shown_address(repr(value))
    return one_line(text if len(text) <= 80 else f"{text[:77]}...")


def as_html(text: str) -> str:
    """Return a text for Plotly and markdown, which interpret tags such as ``<b>`` and entities such as ``&lt;``."""
    return text.translate(_HTML)


def as_chart_text(text: str) -> str:
    """Return a text for Matplotlib, which reads ``$…$`` as a formula and hides legends that begin with ``_``."""
    return f"{' ' * text.startswith('_')}{text}".replace("$", r"\$")


def as_markdown_cell(text: str) -> str:
    """Return a text for a cell of a markdown table: one line, without HTML, and with escaped separators."""
    return as_html(re.sub(r"\s*[\r\n]\s*", " ", text)).replace("|", "\\|")


def as_file_stem(name: str) -> str:
    """Return a name as the stem of a file: letters, digits and ``. _ -``, at most 200 bytes, never a hidden file."""
    stem = re.sub(r"[^\w.-]", "_", name).encode()[:200].decode(errors="ignore")
    return f"_{stem}" if not stem or stem.startswith(".") else stem


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
