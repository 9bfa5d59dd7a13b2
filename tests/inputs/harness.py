"""Call the command with a case in this process, and classify how it ends.

A case is *valid* if the command lists its trials. It is *refused* if the exit code is 2 and every line on stderr is an
error that names a setting and a fix. Everything else is a *defect*: a traceback, another exit code, an incomplete line,
or more than `WITHIN_S` seconds of CPU time of this thread; the wall's time depends on what else the machine does.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import NamedTuple
from unittest import mock

import numpy as np

from tests.inputs.grammar import Case

WITHIN_S = 20.0
STOP_AFTER_S = 120.0  # of the wall, on a busy machine
MORE_BYTES = 6 * 2**30  # address space that a case may add, so that a defect cannot fill the machine's memory
# A complete line: the setting, a colon, what is wrong, and a word that says what to do.
SETTING = re.compile(r"^error: (?P<setting>override '.*'|\S.{0,400}?)(?: \(|: | \[|, )")
FIX = re.compile(
    r"\b(accepted|known|available|give|correct|remove|lower|raise|write|use|set|keep|install|save|check|leave|put|move|"
    r"indent|shorten|shrink|quote|change|swap|make|draw|add|rename|reshape|convert|relabel|rescale|enlarge|delete|begin)\b"
)
MAX_LINE = 2000


class _TooSlow(BaseException):
    """The time of a case is over."""


class Ended(NamedTuple):
    """How a command or a reader ended.

    Attributes:
        outcome: ``valid``, ``refused`` or ``defect``.
        code: the exit code; None after a traceback.
        errors: the lines on stderr.
        seconds: the CPU seconds of the thread that called it; other threads spin.
        reason: why it is a defect.
    """

    outcome: str
    code: int | None
    errors: tuple[str, ...]
    seconds: float
    reason: str = ""


def table(results: Sequence[tuple[str, Ended]], heading: str) -> list[str]:
    """Return the outcomes by kind of input as a table of markdown."""
    lines = [f"| {heading} | tried | valid | refused | defects | slowest, CPU s |", "|---|--:|--:|--:|--:|--:|"]
    for name in [*sorted({kind for kind, _ in results}), "all"]:
        members = [ended for kind, ended in results if name in (kind, "all")]
        counts = Counter(ended.outcome for ended in members)
        cells = [len(members), *(counts[outcome] for outcome in ("valid", "refused", "defect"))]
        lines.append(f"| {name} | {' | '.join(map(str, cells))} | {max(ended.seconds for ended in members):.1f} |")
    return lines


def classify(code: int | None, out: str, err: str, seconds: float) -> Ended:
    """Return how a call ended from its exit code and its output."""
    lines = tuple(err.splitlines())
    reason = ""
    if code is None or "Traceback (most recent call last)" in out + err:
        reason = f"a traceback: {lines[-1] if lines else ''}"
    elif seconds > WITHIN_S:
        reason = f"{seconds:.0f} s"
    elif code == 0:
        if any(not line.startswith(("note: ", "warning: ")) for line in lines):
            reason = f"a line on stderr: {lines[0]}"
    elif code != 2:
        reason = f"exit code {code}"
    elif not lines:
        reason = "exit code 2 without a line"
    else:
        for line in lines:
            if not SETTING.match(line) or not FIX.search(line):
                reason = f"a line without a setting or a fix: {line}"
            elif len(line) > MAX_LINE or not line.isprintable():
                reason = f"a line of {len(line)} characters, or with characters that cannot be printed: {line[:80]!r}"
    return Ended("defect" if reason else "valid" if code == 0 else "refused", code, lines, seconds, reason)


@contextlib.contextmanager
def limits() -> Iterator[None]:
    """Raise `_TooSlow` in this process after `STOP_AFTER_S`, and MemoryError beyond `MORE_BYTES`."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise _TooSlow

    size = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    before = signal.signal(signal.SIGALRM, stop)
    resource.setrlimit(resource.RLIMIT_AS, (size + MORE_BYTES, hard))
    signal.setitimer(signal.ITIMER_REAL, STOP_AFTER_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


class Place:
    """A folder in which cases are run one after the other, with small data sets and no network.

    Args:
        folder: an empty folder.
    """

    def __init__(self, folder: Path) -> None:
        self._work, data = folder / "work", folder / "data"
        data.mkdir()
        for name, shape in (("fashion_mnist", (28, 28)), ("cifar10", (32, 32, 3))):
            rng = np.random.default_rng(0)
            labels = {"y_train": np.arange(2000) % 10, "y_test": np.arange(100) % 10}
            images = {
                f"x_{part}": rng.integers(0, 256, (n, *shape), np.uint8) for part, n in (("train", 2000), ("test", 100))
            }
            np.savez(data / f"{name}.npz", **images, **labels)  # type: ignore[arg-type]
        self.environment = {
            "HFLRAY_DATA": str(data),
            "COLUMNS": "100",
            "HOME": str(folder),  # for caches, and for folders below ~
            "XDG_CACHE_HOME": os.environ.get("XDG_CACHE_HOME", str(Path.home() / ".cache")),
            **dict.fromkeys(("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"), "http://127.0.0.1:9"),
        }

    def prepare(self, case: Case) -> Path:
        """Return a new folder with the files of a case."""
        shutil.rmtree(self._work, ignore_errors=True)
        self._work.mkdir()
        for name, content in case.files.items():
            (self._work / name).write_bytes(content)
        return self._work

    def call(self, case: Case) -> Ended:
        """Call the command's function in this process."""
        from hflray.tune import cli

        folder, before = self.prepare(case), Path.cwd()
        with (
            mock.patch.dict(os.environ, self.environment),
            mock.patch.object(urllib.request, "_opener", None),  # else the first download keeps these proxies for good
            mock.patch.object(sys, "argv", ["hflray.tune", *case.arguments]),
        ):
            os.environ.pop("RAY_ADDRESS", None)
            os.chdir(folder)
            try:
                return classify(*captured(cli.main))
            finally:
                os.chdir(before)


def captured(call: Callable[[], int | None]) -> tuple[int | None, str, str, float]:
    """Call a function within `limits`; return its exit code, what it printed, and the CPU seconds of this thread.

    The exit code is None after an error, whose traceback is printed.
    """
    out = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
    err = io.TextIOWrapper(io.BytesIO(), encoding="utf-8", errors="backslashreplace")
    code: int | None = None
    begin = time.thread_time()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            with limits():
                code = call() or 0
        except SystemExit as end:
            code = int(end.code or 0)
        except BaseException:
            traceback.print_exc()
    texts = []
    for file in (out, err):
        file.flush()
        texts.append(file.buffer.getvalue().decode())  # type: ignore[attr-defined]
    return code, texts[0], texts[1], time.thread_time() - begin


@contextlib.contextmanager
def new_place() -> Iterator[Place]:
    """Yield a place in a temporary folder."""
    with tempfile.TemporaryDirectory(prefix="hflray-inputs-") as folder:
        yield Place(Path(folder))
