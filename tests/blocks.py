"""Run each block of the README and the tutorial in a new virtual environment, and say how long each takes.

    python -m tests.blocks [PAGE …] [--keep]

Each page runs in a copy of the tracked files, with a home folder of its own, as on a new machine. Its blocks run in
order:

* ``bash`` with ``bash -euo pipefail``, and the environment's programs on the path, once `.venv` exists;
* ``python`` as a script of its own;
* ``yaml`` is written to the file that its first line names, such as ``# first.yaml``.

Other blocks are not for running. A block after the comment ``<!-- test command -->`` is left to CI, which runs it.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from tests.checkout import copy_tracked

ROOT = Path(__file__).parents[1]
PAGES = (Path("README.md"), Path("docs/start/tutorial.md"))
LEFT_TO_CI = "<!-- test command -->"
BLOCK = re.compile(r"(?:^<!-- ([^\n]*) -->\n)?^```(\w+)\n(.*?)^```$", flags=re.M | re.S)
LIMIT_S = 1800.0  # time for one block; the first one installs PyTorch and Ray


@dataclass(frozen=True)
class Block:
    """A fenced block of a page.

    Attributes:
        language: the word after the fence.
        text: its lines.
        comment: the comment on the line before it, with its marks; empty if there is none.
    """

    language: str
    text: str
    comment: str = ""

    @property
    def first_line(self) -> str:
        """The first line, which stands for the block in tables."""
        return self.text.splitlines()[0] if self.text else ""

    @property
    def file(self) -> str:
        """The file that a block of YAML is written to; empty if it names none."""
        match = re.fullmatch(r"# ([\w./-]+\.yaml)", self.first_line)
        return match[1] if match and self.language == "yaml" else ""

    @property
    def runs(self) -> bool:
        """Whether the block is run."""
        return self.comment != LEFT_TO_CI and (self.language in ("bash", "python") or bool(self.file))


def blocks(page: str) -> list[Block]:
    """Return the fenced blocks of a page's text, in order."""
    return [
        Block(language, text, f"<!-- {comment} -->" if comment else "")
        for comment, language, text in BLOCK.findall(page)
    ]


@dataclass(frozen=True)
class Outcome:
    """What a block did: its seconds, its exit status (0 if it succeeded), and the end of its output."""

    block: Block
    seconds: float
    status: int
    output: str


def run(block: Block, folder: Path, home: Path, limit_s: float = LIMIT_S) -> Outcome:
    """Run a block in `folder`, whose `.venv` comes first on the path."""
    begin = time.monotonic()
    if block.file:
        (folder / block.file).write_text(block.text, encoding="utf-8")
        return Outcome(block, time.monotonic() - begin, 0, "")
    kept = {name: os.environ[name] for name in ("PATH", "LANG", "TERM", "TMPDIR") if name in os.environ}
    kept |= {name: value for name, value in os.environ.items() if name.lower().endswith("_proxy")}
    kept |= {name: value for name, value in os.environ.items() if name.startswith(("PIP_", "UV_", "SSL_", "REQUESTS_"))}
    env = kept | {"HOME": str(home), "PATH": f"{folder / '.venv' / 'bin'}:{kept['PATH']}", "COLUMNS": "100"}
    words = ["bash", "-euo", "pipefail", "-c"] if block.language == "bash" else ["python", "-c"]
    done = subprocess.run(
        ["timeout", str(limit_s), *words, block.text], cwd=folder, env=env, stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
    )  # fmt: skip
    return Outcome(block, time.monotonic() - begin, done.returncode, done.stdout)


def run_page(page: Path, folder: Path) -> list[Outcome]:
    """Run the blocks of a page in a copy of the checkout below `folder`, up to the first that fails."""
    checkout, home = folder / "hflray", folder / "home"
    home.mkdir(parents=True)
    copy_tracked(ROOT, checkout)
    outcomes = []
    for block in blocks((ROOT / page).read_text(encoding="utf-8")):
        if not block.runs:
            continue
        outcomes.append(run(block, checkout, home))
        last = outcomes[-1]
        print(f"{last.seconds:7.1f} s  {'ok' if last.status == 0 else f'FAILED ({last.status})':12}{block.language:8}"
              f"{block.first_line[:80]}", flush=True)  # fmt: skip
        if last.status:
            print(last.output[-4000:])
            break
    return outcomes


def main() -> int:
    """Run the pages, and return the exit code: 0 if every block succeeded."""
    parser = argparse.ArgumentParser(prog="python -m tests.blocks", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("pages", nargs="*", type=Path, default=list(PAGES), metavar="PAGE")
    parser.add_argument("--keep", action="store_true", help="keep the folder, with the environment and the results")
    options = parser.parse_args()
    failed = False
    for page in options.pages:
        folder = Path(tempfile.mkdtemp(prefix="hflray-blocks-"))
        print(f"{page} in {folder}", flush=True)
        try:
            outcomes = run_page(page, folder)
        finally:
            if not options.keep:
                shutil.rmtree(folder, ignore_errors=True)
        print(f"{sum(one.seconds for one in outcomes):7.1f} s  in all")
        failed |= not outcomes or any(one.status for one in outcomes)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
