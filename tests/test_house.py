"""The rules of the house (design, section 2), held by reading every import of the package.

Imports inside functions, under TYPE_CHECKING, and ``importlib.import_module("…")`` with a literal count too.
"""

from __future__ import annotations

import ast
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from hflray.tasks import TASKS

ROOT = Path(__file__).parents[1]

# Top first; a unit may import what is below its own row.
ROWS = (
    ("tune", "report", "compare", "sweep", "progress", "results", "preflight"),
    ("tasks",),
    ("tracking",),
    ("experiment", "grouping", "record", "scenario", "study", "checkpoint", "rl"),
    ("scheduling", "training", "assignment"),
    ("allocation",),
    ("cost",),
    ("fleet", "models", "data"),
    ("config",),
    ("registry", "seeding", "metrics", "provenance", "errors", "arrays"),
)
ROW = {unit: row for row, units in enumerate(ROWS) for unit in units}
# Arrows within a row. They must not make a circle.
WITHIN_A_ROW = {
    *(("tune", unit) for unit in ("report", "compare", "sweep", "progress", "results", "preflight")),
    *((unit, "sweep") for unit in ("results", "preflight")),
    ("compare", "results"),
    *(("report", unit) for unit in ("results", "sweep")),
    ("preflight", "progress"),
    *(("experiment", unit) for unit in ("grouping", "record", "scenario")),
    ("grouping", "scenario"),
    *(("rl", unit) for unit in ("checkpoint", "study")),
    *((unit, "errors") for unit in ("registry", "seeding", "metrics")),
}

# Library: the only files (or packages) that may import it.
RESERVED = {
    "ray": ("training/actors.py", "training/pool.py", "training/hierarchy.py", "training/backend.py", "rl/", "tune/"),
    "mlflow": ("tracking/mlflow.py",),
    "cvxpy": ("allocation/cvxpy.py",),
}

# Where a word that is also a task's name is compared or used as a key, and what it means there.
OTHER_WORDS = {
    ("config/files.py", "experiment"): "the section of a sweep file",
    ("sweep/trials.py", "experiment"): "the section of a sweep file",
    ("preflight.py", "experiment"): "the section of a sweep file",
    ("results.py", "experiment"): "the experiment in MLflow",
    ("tracking/tracker.py", "experiment"): "the experiment in MLflow",
    ("experiment.py", "clustering"): "a part of an experiment's state",
    **{("metrics.py", name): "a kind of table" for name in ("assignment", "clustering")},
    **{("report/figures.py", name): "a figure" for name in ("assignment", "clustering")},
    **{("report/tables.py", name): "a kind of table" for name in ("assignment", "clustering")},
}


MAX_PARAMETERS = 13
# The options of a command line are the parameters of the function that Typer reads them from.
COMMAND_LINES = {"tune/cli.py: command"}

ALGORITHMS = ("allocation", "scheduling", "assignment", "rl", "training")
MAX_LINES = 300
LOOKUPS = ("get", "pop", "setdefault")
NOT_MIRRORS = {
    "test_house.py",
    "test_readme.py",
    "test_golden.py",
    "test_public.py",
    "test_seams.py",
    "dashboards/test_dashboards.py",
}  # of the whole, not of one module


def imports(source: str, package: tuple[str, ...]) -> Iterator[tuple[int, str]]:
    """Line and dotted name of everything imported by a module that lies in `package`, such as ("hflray", "rl")."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            base = list(package[: len(package) - node.level + 1]) if node.level else []
            base += [node.module] if node.module else []
            for alias in node.names:
                # "from hflray import fleet" imports hflray.fleet; deeper names do not change the unit.
                yield node.lineno, ".".join([*base, alias.name])
        elif isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
            function = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if function in ("import_module", "__import__") and isinstance(node.args[0].value, str):
                yield node.lineno, node.args[0].value


def violations(files: dict[str, str]) -> list[str]:
    """What breaks the rules among `files`: path below hflray/ to source."""
    found = []
    for path, source in sorted(files.items()):
        if path == "__init__.py":  # lazy exports of the contract's names
            continue
        parts = path.removesuffix(".py").split("/")
        unit = parts[0]
        if unit not in ROW:
            found.append(f"{path}: '{unit}' is not part of the house")
            continue
        for line, name in imports(source, ("hflray", *parts[:-1])):
            library, _, rest = name.partition(".")
            where = f"{path}:{line}"
            if library in RESERVED and not any(
                path == ok or (ok[-1] == "/" and path.startswith(ok)) for ok in RESERVED[library]
            ):
                found.append(f"{where}: {library} is only for {', '.join(RESERVED[library])}")
            if library != "hflray":
                continue
            other = rest.partition(".")[0]
            if other.startswith("__"):  # hflray.__version__
                continue
            if other not in ROW:
                found.append(f"{where}: {name}: import from the module that defines it")
            elif other != unit and ROW[other] <= ROW[unit] and (unit, other) not in WITHIN_A_ROW:
                found.append(f"{where}: {unit} may not import {other}")
    return found


def decided_by_name(files: dict[str, str]) -> list[tuple[str, str]]:
    """Path and name of each task that is told apart by its name outside of ``hflray/tasks``.

    That is a comparison with a literal, a key of a dictionary, and what is looked up in one.
    """
    found = set()
    for path, source in files.items():
        for node in ast.walk(ast.parse(source)):
            told: list[ast.expr | None] = []
            if isinstance(node, ast.Compare):
                told = [node.left, *node.comparators]
            elif isinstance(node, ast.Dict):
                told = [*node.keys]
            elif isinstance(node, ast.Subscript):
                told = [node.slice]
            elif isinstance(node, ast.Match):
                told = [part for case in node.cases for part in ast.walk(case.pattern) if isinstance(part, ast.expr)]
            elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in LOOKUPS:
                told = [*node.args[:1]]
            texts = [part for one in told if one is not None for part in [one, *getattr(one, "elts", [])]]
            names = {one.value for one in texts if isinstance(one, ast.Constant)} & set(TASKS)
            found |= {(path, name) for name in names if not path.startswith("tasks/")}
    return sorted(found)


def long_files(files: dict[str, str]) -> list[str]:
    """Algorithm files that are too long to read in one sitting."""
    sizes = {path: source.count("\n") for path, source in files.items() if path.split("/")[0] in ALGORITHMS}
    return [f"{path}: {size} lines, at most {MAX_LINES}" for path, size in sorted(sizes.items()) if size > MAX_LINES]


def long_signatures(files: dict[str, str]) -> list[str]:
    """Functions that take too many parameters to be called without looking them up; ``self`` and ``cls`` do not count.

    ``*args`` and ``**options`` count as one each.
    """
    found = []
    for path, source in sorted(files.items()):
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
                given = node.args
                names = [
                    a.arg for a in (*given.posonlyargs, *given.args, *given.kwonlyargs, given.vararg, given.kwarg) if a
                ]
                count = len([name for name in names if name not in ("self", "cls")])
                name = f"{path}: {getattr(node, 'name', 'lambda')}"
                if count > MAX_PARAMETERS and name not in COMMAND_LINES:
                    found.append(f"{name}: {count} parameters, at most {MAX_PARAMETERS}")
    return found


def orphans(tests: list[str], modules: list[str]) -> list[str]:
    """Test files (paths below tests/) that mirror no module or package (paths below hflray/)."""
    known = {path.removesuffix(".py") for path in modules} | {path.rpartition("/")[0] for path in modules}
    return [
        path
        for path in sorted(tests)
        if not path.startswith(("benchmarks/", "cluster/"))  # cluster/ is tested against cluster/, not hflray/
        and path not in NOT_MIRRORS
        and path.removesuffix(".py").replace("test_", "", 1) not in known
    ]


def sources(folder: str) -> dict[str, str]:
    top = ROOT / folder
    return {path.relative_to(top).as_posix(): path.read_text(encoding="utf-8") for path in top.rglob("*.py")}


def test_imports_point_down():
    assert violations(sources("hflray")) == []


def test_no_task_is_decided_on_by_its_name():
    """Who wants to know something of a task asks the task (`hflray.tasks`)."""
    found = decided_by_name(sources("hflray"))
    assert [each for each in found if each not in OTHER_WORDS] == []


def test_algorithm_files_are_short():
    assert long_files(sources("hflray")) == []


def test_signatures_are_short():
    assert long_signatures(sources("hflray")) == []


def test_a_long_signature_is_found():
    many = ", ".join(f"a{i}" for i in range(MAX_PARAMETERS))
    assert long_signatures({"x.py": f"def f({many}): ...\nclass A:\n    def g(self, {many}): ..."}) == []
    too_many = f"def f({many}, b): ...\nasync def g({many}, *, b): ...\ndef h({many}, **b): ...\nlambda a, /, {many}: 0"
    assert long_signatures({"x.py": too_many}) == [
        f"x.py: {name}: 14 parameters, at most 13" for name in ("f", "g", "h", "lambda")
    ]
    assert {path for path, _ in (name.split(": ") for name in COMMAND_LINES)} <= set(sources("hflray"))


def test_tests_mirror_the_tree():
    tests = [path for path in sources("tests") if path.rpartition("/")[2].startswith("test_")]
    assert orphans(tests, list(sources("hflray"))) == []


def test_every_package_is_installed():
    """An editable install finds a package that pyproject.toml forgets; a wheel lacks it."""
    listed = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["setuptools"]["packages"]
    there = {".".join(path.parent.relative_to(ROOT).parts) for path in ROOT.glob("hflray/**/__init__.py")}
    assert set(listed) == there | {"hflray.tune_configs"}


def test_there_is_something_to_check():
    files = sources("hflray")
    assert {"config/files.py", "cost.py", "scheduling/ikc.py", "assignment/geographic.py"} <= set(files)
    arrows = {name for path, source in files.items() for _, name in imports(source, ("hflray", *path.split("/")[:-1]))}
    assert "hflray.errors.ConfigError" in arrows
    assert len(arrows) > 50


@pytest.mark.parametrize(
    "path, source",
    [
        ("cost.py", "from hflray.allocation import allocate_round"),
        ("cost.py", "from hflray import tune"),
        ("cost.py", "import hflray.tune as t"),
        ("cost.py", "def f():\n    from hflray.experiment import Experiment"),
        ("cost.py", "if TYPE_CHECKING:\n    from hflray.experiment import Experiment"),
        ("cost.py", "import importlib\nimportlib.import_module('hflray.tune')"),
        ("cost.py", "from . import tune"),
        ("cost.py", "from .training.local import train"),
        ("cost.py", "from hflray import Experiment"),
        ("cost.py", "import hflray"),
        ("cost.py", "from hflray import *"),
        ("scheduling/ikc.py", "from hflray.assignment import build_assigner"),  # the same row
        ("scheduling/ikc.py", "from ..assignment import build_assigner"),
        ("scheduling/ikc.py", "from .. import training"),
        ("checkpoint.py", "from hflray.experiment import Experiment"),
        ("errors.py", "from hflray.registry import names"),
        ("config/system.py", "from hflray.fleet import Fleet"),
        ("scheduling/ikc.py", "import ray"),
        ("training/local.py", "def f():\n    from ray.util import x"),
        ("training/local.py", "__import__('ray')"),
        ("experiment.py", "import mlflow"),
        ("experiment.py", "import ray"),
        ("tune.py", "from mlflow.tracking import MlflowClient"),
        ("tracking/tracker.py", "from mlflow import MlflowClient"),
        ("allocation/newton.py", "import cvxpy as cp"),
        ("utils.py", "x = 1"),
    ],
)
def test_a_violation_is_found(path, source):
    assert len(violations({path: source})) == 1


@pytest.mark.parametrize(
    "path, source",
    [
        (
            "cost.py",
            "from hflray.fleet import Fleet\nfrom hflray import errors, __version__\nfrom .config import Section",
        ),
        (
            "scheduling/ikc.py",
            "from hflray.scheduling.base import x\nfrom .base import y\nfrom . import base\nfrom .. import cost",
        ),
        ("training/actors.py", "import ray"),
        ("training/hierarchy.py", "def f():\n    import ray"),
        ("rl/train.py", "from ray.rllib import x\nfrom hflray.assignment.network import N"),
        ("experiment.py", "from hflray.training.local import train\nimport rayon, mlflowish"),
        ("training/backend.py", "import ray"),
        ("tracking/mlflow.py", "import mlflow.tracking\nfrom hflray.record import RoundRecord"),
        ("allocation/cvxpy.py", "import cvxpy as cp\nfrom hflray.cost import Workload"),
        ("tune.py", "from hflray.compare import table\nfrom hflray import registry"),
        ("registry.py", "from hflray.errors import ConfigError"),
        ("__init__.py", "from hflray.tune import main\nimport ray"),
    ],
)
def test_what_is_allowed(path, source):
    assert violations({path: source}) == []


@pytest.mark.parametrize(
    "source, names",
    [
        ("x = file.task == 'experiment'", ["experiment"]),
        ("if 'assignment' != task: pass", ["assignment"]),
        ("x = task in ('clustering', 'train_assigner')", ["clustering", "train_assigner"]),
        ("TABLE = {'experiment': 1}", ["experiment"]),
        ("x = TABLE['clustering']", ["clustering"]),
        ("x = TABLE.get('assignment', 0)", ["assignment"]),
        ("match task:\n    case 'experiment' | 'clustering': pass", ["clustering", "experiment"]),
        ("x = find_task(file.task).trains_model", []),
        ("print('experiment')", []),
        ("stream(seed, 'assignment')", []),
    ],
)
def test_a_decision_by_name_is_found(source, names):
    assert decided_by_name({"tune/driver.py": source}) == [("tune/driver.py", name) for name in names]
    assert decided_by_name({"tasks/clustering.py": source}) == []


def test_rows_within_make_no_circle():
    assert all(ROW[a] == ROW[b] for a, b in WITHIN_A_ROW)
    assert not any((b, a) in WITHIN_A_ROW for a, b in WITHIN_A_ROW)


def test_a_long_file_and_an_orphan_are_found():
    assert long_files({"rl/env.py": "x\n" * 301, "rl/ok.py": "x\n" * 300, "config.py": "x\n" * 999}) == [
        "rl/env.py: 301 lines, at most 300"
    ]
    modules = ["cost.py", "scheduling/ikc.py", "rl/__init__.py"]
    tests = ["test_cost.py", "scheduling/test_ikc.py", "test_rl.py", "test_house.py"]
    tests += ["benchmarks/test_speed.py", "cluster/test_launcher.py"]
    assert orphans(tests, modules) == []
    assert orphans(["test_ikc.py", "scheduling/test_cost.py"], modules) == ["scheduling/test_cost.py", "test_ikc.py"]
