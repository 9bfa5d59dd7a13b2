"""The registry resolves names and entry points, and refuses options that a factory does not accept."""

from __future__ import annotations

import re
import sys
import types
from importlib.metadata import EntryPoint

import pytest

from hflray import registry
from hflray.errors import ConfigError
from hflray.scheduling import Scheduler
from tests.conftest import own_module, refusal, refusals


@pytest.fixture
def outside(monkeypatch):
    """Install a package `hflray_outside` with entry points."""
    module = types.ModuleType("hflray_outside")
    module.Thing = Thing
    module.anything = lambda **options: options
    module.named = lambda which, colour="red": (which, colour)
    monkeypatch.setitem(sys.modules, "hflray_outside", module)
    points = [
        EntryPoint("thing", "hflray_outside:Thing", "hflray.assigners"),
        EntryPoint("anything", "hflray_outside:anything", "hflray.assigners"),
        EntryPoint("geographic", "hflray_outside:Thing", "hflray.assigners"),
        EntryPoint("gone", "hflray_outside:Gone", "hflray.assigners"),
        EntryPoint("lost", "hflray_no_such_package:Thing", "hflray.assigners"),
    ]
    monkeypatch.setattr(registry, "entry_points", lambda group: [p for p in points if p.group == group])
    registry._table.cache_clear()
    yield
    monkeypatch.undo()
    registry._table.cache_clear()


class Thing:
    def __init__(self, size, *, colour="red"):
        self.size, self.colour = size + 1, colour


def test_each_kind_has_a_group_and_its_names_can_be_loaded():
    assert set(registry.GROUPS) == set(registry.BUILTIN)
    assert {group.rpartition(".")[0] for group in registry.GROUPS.values()} == {"hflray"}
    for kind, names in registry.BUILTIN.items():
        assert {name.removesuffix("NAME") for name in registry.names(kind)} >= set(names)
        assert all(callable(registry._registered(kind, name)) for name in names)


def test_an_unknown_name_is_refused_with_the_known_ones():
    known = "scheduling.name: unknown scheduler 'ick'; did you mean 'ikc'?; known: "
    with refusal(ConfigError, known, ", fedavg, ikc, ", "hflray.schedulers"):
        registry.check("scheduler", "ick", "scheduling.name")


def test_a_built_in_name_needs_no_entry_points(monkeypatch):
    """They are those of every installed package: a quarter of the import of `hflray.config` went into reading them."""
    monkeypatch.setattr(registry, "_table", lambda kind: pytest.fail("entry points were read"))
    assert registry.is_registered("scheduler", "ikc")
    assert registry.resolve("scheduler", "ikc").__name__ == "IKC"


def test_entry_points_add_names_and_never_replace_them(outside):
    assert "thing" in registry.names("assigner")
    assert registry.resolve("assigner", "thing") is Thing
    assert registry.resolve("assigner", "geographic").__module__ == "hflray.assignment.simple"
    assert registry.build("assigner", "thing", size=2).size == 3
    assert registry.build("assigner", "anything", a=1) == {"a": 1}


@pytest.mark.parametrize("name", ["gone", "lost"])
def test_an_entry_point_that_cannot_be_loaded_is_an_error(outside, name):
    with pytest.raises(
        ConfigError, match=rf"assigner '{name}' is registered as hflray_\w+:\w+, which cannot be loaded"
    ):
        registry.resolve("assigner", name)


def test_unknown_and_missing_options_are_refused(outside):
    with pytest.raises(
        ConfigError, match=r"unknown option 'color' \(got 'blue'\); did you mean 'colour'\?; accepted: size, colour$"
    ):
        registry.build("assigner", "thing", size=1, color="blue")
    with pytest.raises(ConfigError, match="assigner 'thing': option 'size' is missing"):
        registry.build("assigner", "thing")
    # A TypeError inside the constructor is a bug and not a wrong option, so it must not become a ConfigError.
    with pytest.raises(TypeError):
        registry.build("assigner", "thing", size="two")


def test_arguments_of_the_caller_are_no_options(outside):
    assert registry.build("assigner", "thing", {"size": 2}, colour="blue").size == 3
    assert registry.build("assigner", "anything", {"size": 2}, a=1) == {"size": 2, "a": 1}
    with pytest.raises(ConfigError, match=r"unknown option 'size' \(got 5\); accepted: colour$"):
        registry.build("assigner", "thing", {"size": 2}, size=5)
    with pytest.raises(ConfigError, match=r"unknown option 'size' \(got 5\); accepted: none; remove it$"):
        registry.build("assigner", "anything", {"size": 2}, size=5)
    with pytest.raises(ConfigError, match=r"unknown option 'shade' \(got 1\).*; accepted: colour$"):
        registry.build("assigner", "thing", {"size": 2}, shade=1)
    with pytest.raises(
        ConfigError, match=r"^assigner 'thing' does not take 'seed'; every assigner is called with size"
    ):
        registry.build("assigner", "thing", {"size": 2, "seed": 0})


def test_a_name_is_added_in_this_process_and_can_be_replaced_there(monkeypatch):
    monkeypatch.setattr(registry, "_ADDED", {})
    registry.register("assigner", "mine", Thing)
    assert "mine" in registry.names("assigner")
    assert "mine" not in registry.names("scheduler")
    assert registry.build("assigner", "mine", size=1).size == 2
    registry.register("assigner", "mine", dict)
    assert registry.resolve("assigner", "mine") is dict


@pytest.mark.parametrize("name", ["geographic", "thing"])
def test_a_name_that_is_taken_cannot_be_added(name, outside, monkeypatch):
    monkeypatch.setattr(registry, "_ADDED", {})
    with pytest.raises(ConfigError, match=f"assigner '{name}': this name is taken; .* choose another"):
        registry.register("assigner", name, Thing)
    assert registry._ADDED == {}


MINE = own_module("parts")


@pytest.fixture
def mine(tmp_path, monkeypatch):
    """Put `mine.py` into the present folder."""
    (tmp_path / "mine.py").write_text(MINE)
    monkeypatch.chdir(tmp_path)


def test_a_reference_is_accepted_wherever_a_name_is_and_gets_its_hash(mine):
    pinned = registry.check("assigner", "mine.py:Near")
    assert re.fullmatch(r"mine\.py:Near@sha256:[0-9a-f]{64}", pinned)
    assert registry.check("assigner", pinned) == pinned
    assert registry.build("assigner", pinned, edge=4).edge == 4
    assert registry.build("assigner", "mine.py:near").edge == 1  # a function that makes one is as good
    assert registry.resolve("dataset", "mine.py:load")("here") == "here"
    assert issubclass(registry.resolve("scheduler", "mine.py:Mine"), Scheduler)


@pytest.mark.parametrize("kind, name, message", refusals("registry/references"))
def test_a_reference_to_another_thing_is_refused(mine, kind, name, message):
    with pytest.raises(ConfigError) as error:
        registry.build(kind, name)
    assert str(error.value).startswith(message)


def test_a_prefix_hands_the_rest_of_a_name_to_its_factory(outside, monkeypatch):
    monkeypatch.setitem(registry.BUILTIN["assigner"], "other:", "hflray_outside:named")
    registry._table.cache_clear()
    assert registry.build("assigner", "other:seven", colour="blue") == ("seven", "blue")
    with pytest.raises(ConfigError, match=r"assigner 'other:seven': unknown option 'color'.*did you mean 'colour'"):
        registry.build("assigner", "other:seven", color="blue")
    assert "other:NAME" in registry.names("assigner")
    with pytest.raises(ConfigError, match="unknown assigner 'other:'"):
        registry.check("assigner", "other:")
