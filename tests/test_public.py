"""`import hflray` offers every public name to `dir`, to type checkers and to a star import, and loads no package."""

from __future__ import annotations

import ast
import importlib
import inspect
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import hflray

ROOT = Path(__file__).parents[1]


def names_for_type_checkers() -> set[tuple[str, str]]:
    """Return the (module, name) pairs that the TYPE_CHECKING block of hflray/__init__.py imports."""
    tree = ast.parse((ROOT / "hflray" / "__init__.py").read_text(encoding="utf-8"))
    block = next(node for node in tree.body if isinstance(node, ast.If))
    imports = [node for node in block.body if isinstance(node, ast.ImportFrom)]
    assert all(alias.asname == alias.name for node in imports for alias in node.names)
    return {(str(node.module), alias.name) for node in imports for alias in node.names}


@pytest.mark.parametrize("name", hflray.__all__)
def test_a_public_name_can_be_imported(name: str) -> None:
    assert name in dir(hflray)
    value = getattr(hflray, name)
    assert value is vars(hflray)[name]  # the first use has stored it in the module
    if name != "__version__":
        assert inspect.getdoc(value)
        assert value is getattr(importlib.import_module(hflray._MODULE[name]), name)


def test_type_checkers_see_the_same_names() -> None:
    assert names_for_type_checkers() == {(module, name) for name, module in hflray._MODULE.items()}
    assert {"Scheduler", "Assigner", "Dataset", "Experiment", "ExperimentConfig", "load_config", "Fleet"} <= {
        name for _, name in names_for_type_checkers()
    }


def test_an_unknown_name_is_an_error() -> None:
    with pytest.raises(AttributeError, match="module 'hflray' has no attribute 'Experimnt'"):
        hflray.Experimnt  # noqa: B018
    with pytest.raises(ImportError):
        exec("from hflray import Experimnt")


def test_a_star_import_brings_every_public_name() -> None:
    names: dict[str, object] = {}
    exec("from hflray import *", names)
    assert set(hflray.__all__) <= set(names)


def test_the_import_is_light() -> None:
    """Neither the import nor `dir` loads a package from outside the standard library."""
    code = "import sys, hflray; dir(hflray); print(*sorted({name.partition('.')[0] for name in sys.modules}))"
    command = [sys.executable, "-I", "-S", "-c", f"import sys; sys.path.insert(0, {str(ROOT)!r}); {code}"]
    process = subprocess.run(command, capture_output=True, text=True, check=True)
    third_party = set(process.stdout.split()) - set(sys.stdlib_module_names)
    assert third_party <= {"hflray", "__main__"}


def test_mypy_reads_the_users_script() -> None:
    """`make type` checks tests/users_script.py, which asserts the types of the public names."""
    mypy = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["mypy"]
    assert mypy["files"] == ["hflray", "tests/users_script.py"]
    assert mypy["strict"]  # else mypy would not report a "type: ignore" that a misspelt name no longer needs
