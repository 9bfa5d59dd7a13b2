"""Former names of modules that 0.1 or 0.2 has documented; an import of one gives the module of today.

`hflray` appends `Moved` to the finders of imports, which Python asks only where no file has the name. No pickle of a
results folder names a module of this table: those of Ray Tune name modules of `hflray.tune` that have not moved, and
checkpoints hold no pickles.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.util
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import CodeType, ModuleType

MOVED = {
    "hflray.compare": "hflray.sweep.compare",
    "hflray.record": "hflray.experiment.record",
}


class Moved(importlib.abc.MetaPathFinder, importlib.abc.InspectLoader):
    """The finder and loader of the names of `MOVED`. Both names give one module object, and so the same classes."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return what loads a former name, or None for any other name."""
        return importlib.util.spec_from_loader(fullname, self) if fullname in MOVED else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """Import the module of today."""
        module = importlib.import_module(MOVED[spec.name])
        self._own = module.__spec__  # Python replaces it by that of the former name
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Leave the module as its first import has made it."""
        module.__spec__ = self._own

    def get_source(self, fullname: str) -> None:
        """Return None: the source belongs to the name of today."""

    def get_code(self, fullname: str) -> CodeType | None:
        """Return the code of the module of today, which ``python -m`` runs."""
        spec = importlib.util.find_spec(MOVED[fullname])
        assert spec is not None
        assert isinstance(spec.loader, importlib.abc.InspectLoader)
        return spec.loader.get_code(spec.name)
