"""Where Python finds a module, without importing anything: its name may have come from a stranger.

`importlib.util.find_spec` imports the packages around a module, whose code then runs.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import suppress
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path


def find(name: str, places: Sequence[str] | None = None) -> list[ModuleSpec]:
    """Return where Python finds a module's packages and the module, outermost first; empty if one is missing.

    Nothing is imported, not even a package, because the name may be a stranger's. So a package that changes its
    ``__path__`` when it is imported is not followed.

    Args:
        name: the dotted name.
        places: the folders in which the outermost package may lie; None: `sys.path`.
    """
    specs: list[ModuleSpec] = []
    parts = name.split(".")
    for number, part in enumerate(parts, 1):
        within = list(specs[-1].submodule_search_locations or ()) if specs else None
        for finder in sys.meta_path:
            spec = None
            if finder is PathFinder:  # of a whole name it would look the parent up in sys.modules
                spec = finder.find_spec(part, within if specs else places)
            else:
                with suppress(Exception):  # a package may have added any finder
                    spec = finder.find_spec(".".join(parts[:number]), within)
            if spec is not None:
                specs.append(spec)
                break
        else:
            return []
    return specs


def places() -> list[str]:
    """Return the entries of `sys.path` without the first and the empty ones, which are the folder of the present run.

    A stranger's folder may lie there.
    """
    return [entry for entry in sys.path[1:] if entry]


def own(name: str, outside: Path) -> Path | None:
    """Return the path of a module that is installed, and of which nothing lies in `outside`; None: it is not so.

    What Python would import must be what is installed, with all packages around it, since these run first.
    """
    specs = find(name, places())
    paths = _paths(specs)
    if not specs or paths != _paths(find(name)):
        return None
    if any(Path(path).resolve().is_relative_to(outside.resolve()) for path in paths):
        return None
    return Path(specs[-1].origin or "")


def is_installed(root: str) -> bool:
    """Return whether a package is found without the first entry of `sys.path`, which is the present folder."""
    return bool(find(root, sys.path[1:]))


def _paths(specs: Sequence[ModuleSpec]) -> list[str]:
    return [path for spec in specs for path in (spec.origin, *(spec.submodule_search_locations or ())) if path]
