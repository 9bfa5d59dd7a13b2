"""No file of hflray loads a pickle, because a results folder or a cache may come from a stranger."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import hflray

PACKAGE = Path(hflray.__file__).parent
MODULES = {"pickle", "cPickle", "_pickle", "cloudpickle", "dill", "joblib", "shelve", "marshal", "jsonpickle", "runpy"}
# Functions that unpickle or run text, by their last name, wherever they come from.
FUNCTIONS = {
    "unsafe_load", "full_load", "unsafe_load_all", "read_pickle", "loads_with_cloudpickle", "_loads_with_cloudpickle",
    "load_model", "restore_from_path", "from_checkpoint", "from_json_state", "load_checkpoint", "eval", "exec",
}  # fmt: skip
SAFE_LOADERS = ("_StrictLoader", "yaml.SafeLoader", "LOADER")  # a test says that the first and the last are
# The only uses, each with the reason why it is safe.
ALLOWED = {
    ("rl/session.py", "restore_from_path"): "hflray's own method, which reads safetensors and JSON",
    ("tune/trial.py", "cloudpickle"): "it says that a user's class is sent as its text, and loads nothing",
}


def loads(source: str) -> Iterator[tuple[str, int]]:
    """Yield the name and the line of each use of a function that may run code that a file holds."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import | ast.ImportFrom):
            names = [alias.name for alias in node.names]
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            for name in names:
                if set(name.split(".")) & MODULES:
                    yield name, node.lineno
        if not isinstance(node, ast.Call):
            continue
        owner = ast.unparse(node.func).rpartition(".")[0]
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        options = {option.arg: ast.unparse(option.value) for option in node.keywords}
        module_eval = name == "eval" and isinstance(node.func, ast.Attribute)  # torch's module.eval()
        if name in FUNCTIONS and not module_eval:
            yield name, node.lineno
        elif name == "restore" and owner.endswith("Tuner"):
            yield "Tuner.restore", node.lineno
        elif owner in ("torch", "pickle") and name in ("load", "loads") and options.get("weights_only") != "True":
            yield f"{owner}.{name}", node.lineno
        elif owner in ("np", "numpy") and name == "load" and options.get("allow_pickle") != "False":
            yield f"{owner}.load", node.lineno
        elif owner == "yaml" and name == "load" and options.get("Loader") not in SAFE_LOADERS:
            yield "yaml.load", node.lineno


def test_no_file_loads_a_pickle() -> None:
    uses = {
        (path.relative_to(PACKAGE).as_posix(), name): line
        for path in PACKAGE.rglob("*.py")
        for name, line in loads(path.read_text(encoding="utf-8"))
    }
    assert set(uses) == set(ALLOWED), uses


def test_the_strict_loader_of_yaml_is_a_safe_one() -> None:
    import yaml

    from hflray.config.files import _StrictLoader
    from hflray.support.reader import LOADER

    assert issubclass(_StrictLoader, yaml.SafeLoader)
    assert LOADER in (yaml.SafeLoader, yaml.CSafeLoader)
    with pytest.raises(yaml.YAMLError):
        yaml.load("!!python/object/apply:os.getcwd []", Loader=_StrictLoader)
