"""What share of an installation each package has, and what would go with each of the packages that hflray names.

    python -m tests.release.sizes [--least 10]

Sizes are those of the files that each package installed, MB. With a named package go the packages that nothing else
needs; those that several need, such as NumPy, are shared. Packages of the tests and other extras are left out.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement


def installed_mb(name: str) -> float:
    """Return the size of a package's installed files, MB."""
    paths = [Path(str(file.locate())) for file in metadata.distribution(name).files or ()]
    return sum(path.stat().st_size for path in paths if path.is_file()) / 1e6


def needs(name: str, extras: frozenset[str] = frozenset()) -> list[tuple[str, frozenset[str]]]:
    """Return the installed packages that a package needs here, each with the extras that it asks for."""
    found = []
    for text in metadata.distribution(name).requires or ():
        need = Requirement(text)
        wanted = need.marker is None or any(need.marker.evaluate({"extra": extra}) for extra in extras or {""})
        if wanted:
            try:
                metadata.distribution(need.name)
            except metadata.PackageNotFoundError:
                continue
            found.append((normalised(need.name), frozenset(need.extras)))
    return found


def normalised(name: str) -> str:
    """Return a package's name as PyPI compares it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def closure(start: Iterable[tuple[str, frozenset[str]]]) -> set[str]:
    """Return the packages that are reached from some packages, these included."""
    reached, waiting = set(), list(start)
    while waiting:
        name, extras = waiting.pop()
        if (name, extras) not in reached:
            reached.add((name, extras))
            waiting += needs(name, extras)
    return {name for name, _ in reached}


def main() -> None:
    """Print the table as Markdown."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--least", type=float, default=10.0, help="MB below which a package is not named; default 10")
    least = parser.parse_args().least
    named = needs("hflray")
    size = {name: installed_mb(name) for name in closure(named)}
    total, shared = sum(size.values()), set(size)
    print("| with it goes | MB | share | the largest of it |\n|---|--:|--:|---|")
    rows = []
    for one in named:
        own = set(size) - closure(other for other in named if other[0] != one[0])
        shared -= own
        rows.append((one[0], own))
    for name, own in [*sorted(rows, key=lambda row: -sum(map(size.__getitem__, row[1]))), ("(shared)", shared)]:
        whole = sum(map(size.__getitem__, own))
        if whole >= least:
            largest = [each for each in sorted(own, key=lambda each: -size[each])[:5] if size[each] >= least]
            text = ", ".join(f"{each} {size[each]:.0f}" for each in largest)
            print(f"| {name} | {whole:.0f} | {whole / total:.0%} | {text} |")
    print(f"| all {len(size)} packages | {total:.0f} | | |")


if __name__ == "__main__":
    main()
