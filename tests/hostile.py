"""Names that a terminal, a browser, a table, a formula, a query or a file system would interpret instead of showing."""

from __future__ import annotations

SCRIPT = "<script>alert(1)</script>"
IMAGE = "<img src=x onerror=alert(1)>"
NAMES = (
    SCRIPT, IMAGE, "</script>", "[bold]x[/]", "[/]", "[link=http://x]y", ":warning:", 'a"b', "it's", "a|b", "$\\frac$",
    "a & b", "&lt;b&gt;", "x\\", "%{x}", "{x}", "../up", "été 試験", "_x", "50 %",
)  # fmt: skip
BREAKING = ("a\nb", "a\r\nb", "a\x1b[31mb", "a\u2028b", "a\x85b", "a\ud800b", "a\0b")
