"""`hflray.support.ray_private`: what it uses exists in the installed Ray, and no other file uses what is private."""

from __future__ import annotations

import ast
import inspect
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
from ray.util.debug import log_once

from hflray.support import ray_private
from hflray.support.ray_private import drop_read, keep_no_rounds

PACKAGE = Path(ray_private.__file__).parents[1]
SOURCES = {
    path.relative_to(PACKAGE).as_posix(): ast.parse(path.read_text(encoding="utf-8"))
    for path in PACKAGE.rglob("*.py")
    if path != Path(ray_private.__file__)
}
USERS = ("training/", "rl/", "tune/")  # what may import Ray, see docs/design.md
NAMED_TUPLE = {"_replace", "_fields", "_asdict", "_make"}


def private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def own_names() -> set[str]:
    """Return the private names that a file of the package defines or sets."""
    names = set()
    for tree in SOURCES.values():
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                names.add(node.name)
            elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                names.add(node.target.id)
            elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
                names.add(node.attr)
    return {name for name in names if private(name)}


def uses(tree: ast.Module, ours: set[str]) -> list[str]:
    """Return the private modules of Ray, and the private attributes of objects not ours, that a file names."""
    names = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and not node.level:
            names += [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Attribute) and private(node.attr) and node.attr not in ours | NAMED_TUPLE:
            owner = getattr(node.value, "id", "")
            if owner not in ("self", "cls", "os", "torch"):
                names.append(f"ray.{node.attr}")
    return [name for name in names if name.startswith("ray.") and any(private(part) for part in name.split("."))]


def test_no_other_file_uses_what_is_private_in_ray() -> None:
    ours = own_names()
    found = {path: uses(tree, ours) for path, tree in SOURCES.items() if path.startswith(USERS)}
    assert len(found) > 50
    assert {path: names for path, names in found.items() if names} == {}


def test_callbacks_are_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    from ray.air._internal import usage

    assert list(inspect.signature(usage.tag_callbacks).parameters) == ["callbacks"]
    monkeypatch.setattr(usage, "tag_callbacks", usage.tag_callbacks)
    ray_private.count_no_callbacks()
    assert usage.tag_callbacks([object()]) is False


def test_the_module_of_an_algorithm_is_that_of_its_learner() -> None:
    from ray.rllib.core import DEFAULT_MODULE_ID

    learner = SimpleNamespace(module={DEFAULT_MODULE_ID: "module"})
    assert ray_private.learner_module(SimpleNamespace(learner_group=SimpleNamespace(_learner=learner))) == "module"


class Counter:
    def one(self) -> int:
        return 1


def test_the_results_of_a_trials_calls_are_dropped_when_they_have_been_read(ray_session) -> None:
    from ray.air.execution import FixedResourceManager, ResourceRequest
    from ray.air.execution._internal.actor_manager import RayActorManager

    keep_no_rounds()
    step = RayActorManager.next
    keep_no_rounds()
    assert RayActorManager.next is step  # it is extended once
    manager = RayActorManager(resource_manager=FixedResourceManager({"CPU": 1}))
    seen: list[int] = []
    actor = manager.add_actor(Counter, kwargs={}, resource_request=ResourceRequest([{"CPU": 1}]))
    while not manager.is_actor_started(actor):
        manager.next(timeout=10)
    for number in range(1, 4):
        manager.schedule_actor_task(actor, "one", on_result=lambda tracked, value: seen.append(value))
        assert len(manager._tracked_actors_to_task_futures[actor]) == 1  # the call whose result is awaited
        while len(seen) < number:
            manager.next(timeout=10)
        assert not manager._tracked_actors_to_task_futures[actor]
    manager.remove_actor(actor, kill=True)
    manager.next(timeout=10)


def test_a_ray_of_one_machine_has_no_process_for_a_cluster_or_a_dashboard(ray_session) -> None:
    programs: set[str] = set()
    for process in psutil.Process().children(True):
        with suppress(psutil.NoSuchProcess):  # it has just ended
            programs |= {Path(word).name for word in process.cmdline()[:4]}
    assert {"gcs_server", "raylet"} <= programs
    assert not programs & {"monitor.py", "log_monitor.py", "dashboard.py"}


def test_log_lines_are_not_remembered() -> None:
    keep_no_rounds()
    assert not log_once("a line that was never logged")


def test_a_manager_of_another_ray_is_left_as_it_is() -> None:
    drop_read(object())


def test_tune_writes_no_keys_of_aws_on_the_command_lines_of_trials(monkeypatch) -> None:
    """Every user of a machine can read them; `tests/tracking/test_addresses.py` looks at the lines of a sweep."""
    from ray.tune.execution import class_cache

    monkeypatch.setattr(class_cache, "ENV_VARS_TO_PROPAGATE", before := set(class_cache.ENV_VARS_TO_PROPAGATE))
    for _ in range(2):
        ray_private.pass_no_keys()
        assert {name for name in before if "AWS" not in name} == class_cache.ENV_VARS_TO_PROPAGATE
    assert "RAY_CHDIR_TO_TRIAL_DIR" in class_cache.ENV_VARS_TO_PROPAGATE
