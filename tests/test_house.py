"""The rules of the house (docs/design.md, "The house"), tested by reading every import of the package.

Imports inside functions, under TYPE_CHECKING, and by ``importlib.import_module("…")`` with a literal count as well.
"""

from __future__ import annotations

import ast
import functools
import re
import tomllib
from pathlib import Path

import yaml

from hflray import metrics
from hflray.sweep.tasks import TASKS

ROOT = Path(__file__).parents[1]

DESIGN = (ROOT / "docs" / "design.md").read_text(encoding="utf-8")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def design_table(marker: str) -> list[list[str]]:
    """Return the cells of the rows of the table that follows ``<!-- marker`` in docs/design.md, without its heading."""
    text = DESIGN.partition(f"<!-- {marker}")[2].partition("\n\n")[0]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines()[3:]]


def quoted(cell: str) -> tuple[str, ...]:
    """Return the names that stand between backquotes in a cell of a table."""
    return tuple(re.findall(r"`([^`]+)`", cell))


# The rows from top to bottom. A unit may import the units of the rows below its own.
ROWS = tuple(quoted(cells[1]) for cells in design_table("rows"))
EXCEPTIONS = {
    rule: {(path, name) for path, name, _ in entries}
    for rule, entries in yaml.safe_load(Path(__file__).with_name("exceptions.yaml").read_text(encoding="utf-8")).items()
}
# The calls that write a file, by their last name; those of the second set only as functions of these modules.
WRITES = {
    "write_text", "write_bytes", "savez", "savez_compressed", "save_file", "save_model", "to_parquet", "to_pickle",
    "savefig", "copyfile", "copytree", "copy_files", "open_output_stream", "fdopen", "mkstemp", "NamedTemporaryFile",
}  # fmt: skip
WRITES_OF = {
    "save": ("np", "numpy", "torch", "export"), "dump": ("json", "pickle", "yaml"), "copy": ("shutil",),
    "copy2": ("shutil",), "move": ("shutil",),
}  # fmt: skip
WHOLE = ("replacing", "replacing_folder")  # the blocks of `hflray.support.files` in which any call may write

LIMITS = [int(value) for _, value in design_table("limits")]
MAX_ALGORITHM_LINES, MAX_LINES = LIMITS[:2]
ALGORITHMS = ("allocation", "scheduling", "assignment", "rl", "training")
LOOKUPS = ("get", "pop", "setdefault")


@functools.cache
def parsed(source: str) -> ast.Module:
    """Return the tree of a source, which several tests walk."""
    return ast.parse(source)


def task_name_uses(files: dict[str, str]) -> list[tuple[str, str]]:
    """Return the path and the name for each use of a task's name in a decision outside ``hflray/sweep/tasks``.

    A decision is a comparison with a literal, a key of a dictionary, or a look-up in a dictionary.
    """
    uses = set()
    for path, source in files.items():
        for node in ast.walk(parsed(source)):
            keys: list[ast.expr | None] = []
            if isinstance(node, ast.Compare):
                keys = [node.left, *node.comparators]
            elif isinstance(node, ast.Dict):
                keys = [*node.keys]
            elif isinstance(node, ast.Subscript):
                keys = [node.slice]
            elif isinstance(node, ast.Match):
                keys = [part for case in node.cases for part in ast.walk(case.pattern) if isinstance(part, ast.expr)]
            elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in LOOKUPS:
                keys = [*node.args[:1]]
            texts = [part for key in keys if key is not None for part in [key, *getattr(key, "elts", [])]]
            names = {text.value for text in texts if isinstance(text, ast.Constant)} & set(TASKS)
            uses |= {(path, name) for name in names if not path.startswith("sweep/tasks/")}
    return sorted(uses)


def long_files(files: dict[str, str]) -> list[str]:
    """Return a message for each file that is longer than the design allows."""
    messages = []
    for path, source in sorted(files.items()):
        lines = source.count("\n")
        limit = MAX_ALGORITHM_LINES if path.split("/")[0] in ALGORITHMS else MAX_LINES
        if lines > limit:
            messages.append(f"{path}: {lines} lines, at most {limit}")
    return messages


# Words that are neither nouns nor verbs of the field. A reader of a name among them has to guess what it holds.
NO_NAMES = {
    "found", "known", "there", "told", "said", "theirs", "mine", "asked", "kept", "them", "what", "others", "these",
    "those", "here", "given", "wanted", "seen", "some", "each", "one", "own",
}  # fmt: skip


# Settings whose names the design fixes.
SETTINGS = {("config/world.py", "known")}


def vague_names(files: dict[str, str]) -> list[str]:
    """Return a message for each variable, parameter, function or class that is called by a word of `NO_NAMES`."""
    messages = []
    for path, source in sorted(files.items()):
        for node in ast.walk(parsed(source)):
            name = ""
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                name = node.id
            elif isinstance(node, ast.arg):
                name = node.arg
            elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                name = node.name
            if name.strip("_").lower() in NO_NAMES and (path, name) not in SETTINGS:
                messages.append(f"{path}:{node.lineno}: name what '{name}' holds or does")
    return messages


def writes_a_file(call: ast.Call) -> bool:
    """Return whether a call writes a file, as far as its text shows."""
    function = call.func
    name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
    owner = function.value if isinstance(function, ast.Attribute) else None
    module = owner.attr if isinstance(owner, ast.Attribute) else getattr(owner, "id", "")
    if name == "open":
        first = 1 if owner is None else 0  # of a function the mode is the second argument, of a method the first
        words = [*call.args[first:], *(keyword.value for keyword in call.keywords if keyword.arg == "mode")]
        modes = [word.value for word in words if isinstance(word, ast.Constant) and isinstance(word.value, str)]
        flags = {node.attr for word in words for node in ast.walk(word) if isinstance(node, ast.Attribute)}
        return any(set(mode) <= set("rwaxbt+") and set(mode) & set("wax+") for mode in modes) or "O_CREAT" in flags
    if name in ("to_csv", "dump") and len(call.args) < 1 + (name == "dump"):
        return False  # without a path or a file it returns a text
    if name == "to_csv":
        return True
    return name in WRITES or module in WRITES_OF.get(name, ())


def bare_writes(files: dict[str, str]) -> list[tuple[str, str, int]]:
    """Return the path, the function and the line of each call that writes a file outside the blocks of `WHOLE`."""
    found = []

    def search(node: ast.AST, path: str, function: str, whole: bool) -> None:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            function = node.name
        if isinstance(node, ast.Call) and not whole and writes_a_file(node):
            found.append((path, function, node.lineno))
        inside = whole
        if isinstance(node, ast.With):
            calls = [item.context_expr for item in node.items if isinstance(item.context_expr, ast.Call)]
            inside |= any(getattr(call.func, "attr", getattr(call.func, "id", "")) in WHOLE for call in calls)
        for child in ast.iter_child_nodes(node):
            search(child, path, function, inside)

    for path, source in sorted(files.items()):
        search(parsed(source), path, "", False)
    return found


@functools.cache
def sources(folder: str) -> dict[str, str]:
    top = ROOT / folder
    return {path.relative_to(top).as_posix(): path.read_text(encoding="utf-8") for path in top.rglob("*.py")}


def test_no_decision_depends_on_a_tasks_name():
    """Code that depends on a task asks the task for it (`hflray.sweep.tasks`)."""
    uses = task_name_uses(sources("hflray"))
    assert [use for use in uses if use not in EXCEPTIONS["words"]] == []


def test_the_design_and_the_contract_of_import_linter_have_the_same_rows():
    """`lint-imports` fails for a room that no row has, and for an import that does not point down."""
    rooms = {path.split("/")[0].removesuffix(".py") for path in sources("hflray")}
    rooms -= {"__init__", "__main__", "compare", "record"}
    assert sorted(unit for units in ROWS for unit in units) == sorted(rooms)
    contracts = PROJECT["tool"]["importlinter"]["contracts"]
    (layers,) = (contract["layers"] for contract in contracts if contract["type"] == "layers")
    assert [" | ".join(units) for units in ROWS] == layers


def test_the_designs_limits_are_those_of_ruff():
    lint = PROJECT["tool"]["ruff"]["lint"]
    assert LIMITS[2:] == [lint["pylint"]["max-args"], lint["mccabe"]["max-complexity"]]


def test_files_are_short():
    assert long_files(sources("hflray")) == []


def test_every_file_is_written_whole_or_not_at_all():
    writes = bare_writes(sources("hflray"))
    assert [write for write in writes if write[:2] not in EXCEPTIONS["writers"]] == []
    assert {write[:2] for write in writes} == EXCEPTIONS["writers"]  # no exception outlives its reason


def test_names_say_what_they_hold():
    assert vague_names(sources("hflray")) == []


def test_no_class_name_stands_for_two_things():
    places: dict[str, list[str]] = {}
    for path, source in sources("hflray").items():
        for node in parsed(source).body:
            if isinstance(node, ast.ClassDef):
                places.setdefault(node.name, []).append(path)
    assert {name: paths for name, paths in places.items() if len(paths) > 1} == {}


def test_every_package_is_installed():
    """A wheel lacks a package that pyproject.toml omits, although an editable install has it."""
    listed = PROJECT["tool"]["setuptools"]["packages"]
    packages = {".".join(path.parent.relative_to(ROOT).parts) for path in ROOT.glob("hflray/**/__init__.py")}
    assert set(listed) == packages | {"hflray.tune_configs"}


# Beginnings of the names of metrics.
SCOPES = ("round/", "battery/", "privacy/", "update/", "compression/", "total/", "edge/", "wall/", "clustering/",
          "assigner/ratio/")  # fmt: skip


def test_only_the_glossary_has_literals_of_the_names_of_metrics():
    """The names of random streams, which are arguments of `stream`, do not count: a new name would change results."""
    literals = []
    for path, source in sources("hflray").items():
        nodes = list(ast.walk(parsed(source)))
        calls = [node for node in nodes if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "stream"]
        streams = {id(argument) for call in calls for argument in call.args}
        texts = [node for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)]
        literals += [
            f"{path}:{text.lineno}: '{text.value}'"
            for text in texts
            if (text.value in metrics.METRICS or text.value in SCOPES) and id(text) not in streams
        ]
    assert [literal for literal in literals if not literal.startswith("metrics.py:")] == []


def test_every_configuration_of_hflrays_own_is_read_through_one_door():
    doors = set()
    for path, source in sources("hflray").items():
        for function in ast.walk(parsed(source)):
            if isinstance(function, ast.FunctionDef):
                calls = [node.func for node in ast.walk(function) if isinstance(node, ast.Call)]
                names = {getattr(call, "attr", getattr(call, "id", "")) for call in calls}
                if names & {"validate", "model_validate", "model_validate_json", "model_construct"}:
                    doors.add((path, function.name))
    assert doors == EXCEPTIONS["doors"]


def test_every_table_and_every_module_of_a_user_is_used():
    texts = "".join(path.read_text(encoding="utf-8") for path in Path(__file__).parent.rglob("*.py"))
    for file, function in (("refusals.yaml", "refusals"), ("cases.yaml", "cases"), ("own.yaml", "own_module")):
        names = yaml.safe_load(Path(__file__).with_name(file).read_text(encoding="utf-8"))
        assert set(re.findall(rf'\b{function}\("([^"]+)"\)', texts)) == set(names)
