"""The papers that ``hflray reproduce`` repeats: ours to begin with, and results of others.

To add a paper, add a package ``hflray/reproduction/NAME/`` with its sweep files and a module ``paper`` with its claims
and a `Paper` called ``PAPER``. Add its name to `PAPERS`, and a page to the documentation. A paper has two forms with
the same claims. The full one has the paper's settings and may take days. The quick one takes minutes, mostly on digits,
and answers for its own small task only.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

from hflray.errors import ConfigError, nearest
from hflray.report.runs import Sweep
from hflray.reproduction.exhibits import Exhibit, verdicts

FOLDER = Path(__file__).parent
PAPERS = ("zhang", "mtgc", "hierfavg", "asynchfl", "niidbench", "tsdp", "association")
ANSWERS = ("yes", "so far yes", "not settled", "so far no", "no", "not tested")


@dataclass(frozen=True)
class Paper:
    """A paper whose results are repeated.

    Attributes:
        name: its name in commands, and that of its folder below ``hflray/reproduction/``.
        title, source: its title, and where it can be read.
        about: what of it is repeated, in a line.
        takes: how long the full and the quick form took here, in words.
        full, quick: the exhibits of each form by name.
        folder: the folder of the sweep files that are not beside the claims.
    """

    name: str
    title: str
    source: str
    about: str
    takes: tuple[str, str]
    full: Mapping[str, Exhibit]
    quick: Mapping[str, Exhibit]
    folder: Path | None = None

    def exhibits(self, quick: bool) -> Mapping[str, Exhibit]:
        """Return the exhibits of a form by name."""
        return self.quick if quick else self.full

    def sweep_file(self, shown: Exhibit) -> Path:
        """Return the sweep file that makes the runs of an exhibit."""
        path = FOLDER / self.name / f"{shown.config}.yaml"
        return path if self.folder is None or path.exists() else self.folder / f"{shown.config}.yaml"


def paper(name: str) -> Paper:
    """Return the paper called `name`. Raises ConfigError: there is none."""
    if name not in PAPERS:
        raise ConfigError(f"NAME: unknown paper '{name}'{nearest(name, PAPERS)}; accepted: {', '.join(PAPERS)}")
    chosen: Paper = import_module(f"hflray.reproduction.{name}.paper").PAPER
    return chosen


def tally(paper: Paper, quick: bool, sweeps: Mapping[str, Sweep]) -> str:
    """Return how many of the claims have which answer, as text, such as ``3 yes, 1 not tested``."""
    counts: Counter[str] = Counter()
    for shown in paper.exhibits(quick).values():
        if shown.config in sweeps:
            counts.update(_kind(answer) for answer in verdicts(shown, sweeps[shown.config])["agree"])
        else:
            counts["not tested"] += len(shown.claims)
    return ", ".join(f"{counts[kind]} {kind}" for kind in ANSWERS if counts[kind]) or "no claims"


def _kind(answer: str) -> str:
    """Return the answer without its reason or its choices."""
    words = answer.split(":")[0].split(" with ")[0]
    return words if words in ANSWERS else answer
