"""`import hflray` offers every public name to `dir`, to type checkers and to a star import, and loads no package.

Each public name, and the base class of each kind, has an example in its docstring, which runs here.
"""

from __future__ import annotations

import ast
import doctest
import importlib
import inspect
import subprocess
import sys
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import hflray
from hflray import registry

ROOT = Path(__file__).parents[1]
# The public base class of each kind; the other kinds take functions.
PUBLIC = {
    "scheduler": "Scheduler", "assigner": "Assigner", "dataset": "Dataset", "sink": "Sink", "partition": "Partition",
    "local_rule": "LocalRule", "aggregator": "Aggregator", "compressor": "Compressor", "availability": "Availability",
    "fading": "Fading", "mobility": "Mobility", "access": "Access", "compute": "Compute", "download": "Download",
    "observer": "Observer",
}  # fmt: skip
FUNCTIONS = {"model", "loss", "metric", "fleet", "figure"}  # a network extends torch's class


def names_for_type_checkers() -> set[tuple[str, str]]:
    """Return the (module, name) pairs that the TYPE_CHECKING block of hflray/__init__.py imports."""
    tree = ast.parse((ROOT / "hflray" / "__init__.py").read_text(encoding="utf-8"))
    block = next(node for node in tree.body if isinstance(node, ast.If))
    imports = [node for node in block.body if isinstance(node, ast.ImportFrom)]
    assert all(alias.asname == alias.name for node in imports for alias in node.names)
    return {(str(node.module), alias.name) for node in imports for alias in node.names}


def documented_names() -> dict[str, Any]:
    """Return each public name by what a user writes after ``import``."""
    return {name: getattr(hflray, name) for name in hflray.__all__ if name != "__version__"}


def mistakes(names: Mapping[str, Any]) -> list[str]:
    """Return what is wrong with the examples in the docstrings of `names`: a missing one, or another output."""
    found = []
    for name, thing in names.items():
        text = inspect.cleandoc(thing.__doc__ or "")
        section = text.partition("\nExamples:\n")[2]
        if ">>>" not in section:
            found.append(f"{name}: its docstring has no section 'Examples:' with a line of '>>>'")
            continue
        output: list[str] = []
        example = doctest.DocTestParser().get_doctest(text, {}, name, None, None)
        doctest.DocTestRunner(verbose=False).run(example, out=output.append)
        found += output
    return found


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
    """Neither the import nor `dir` loads a package from outside the standard library, or adds a finder of imports."""
    code = "finders = list(sys.meta_path); import hflray; dir(hflray); assert sys.meta_path == finders; "
    code += "print(*sorted({name.partition('.')[0] for name in sys.modules}))"
    command = [sys.executable, "-I", "-S", "-c", f"import sys; sys.path.insert(0, {str(ROOT)!r}); {code}"]
    process = subprocess.run(command, capture_output=True, text=True, check=True)
    third_party = set(process.stdout.split()) - set(sys.stdlib_module_names)
    assert third_party <= {"hflray", "__main__"}


def test_mypy_reads_the_users_script() -> None:
    """`make type` checks tests/users_script.py, which asserts the types of the public names."""
    mypy = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["mypy"]
    assert mypy["files"] == ["hflray", "tests/users_script.py"]
    assert mypy["strict"]  # else mypy would not report a "type: ignore" that a misspelt name no longer needs


def test_every_kind_has_a_base_class_or_takes_functions() -> None:
    assert {*PUBLIC, *FUNCTIONS} == set(registry.GROUPS)
    assert set(PUBLIC.values()) <= set(hflray.__all__)


@pytest.mark.parametrize("name", documented_names())
def test_the_example_of_a_name_is_true(name: str, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert not mistakes({name: documented_names()[name]})


@pytest.mark.parametrize(
    "former, now", [("hflray.compare", "hflray.sweep.compare"), ("hflray.record", "hflray.experiment.record")]
)
def test_a_module_that_0_2_has_documented_keeps_its_name(former: str, now: str) -> None:
    """A class is one under both names."""
    old, new = importlib.import_module(former), importlib.import_module(now)
    names = {name for name in vars(new) if not name.startswith("_")}
    assert {name for name in names if getattr(old, name) is not getattr(new, name)} == set()
    assert {"hflray.compare": "closing_table", "hflray.record": "RoundRecord"}[former] in names
