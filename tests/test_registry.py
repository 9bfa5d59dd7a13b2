"""The registry resolves names and entry points, and refuses options that a factory does not accept."""

from __future__ import annotations

import sys
import types
from importlib.metadata import EntryPoint

import pytest

from hflray import registry
from hflray.errors import ConfigError


@pytest.fixture
def outside(monkeypatch):
    """Install a package `hflray_outside` with entry points."""
    module = types.ModuleType("hflray_outside")
    module.Thing = Thing
    module.anything = lambda **options: options
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


def test_built_in_names_are_registered():
    seeing = {
        "power_of_choice",
        "round_robin",
        "best_channel",
        "fastest",
        "coverage",
        "ucb",
        "energy_aware",
        "importance",
        "oort",
    }
    assert set(registry.names("scheduler")) == {"fedavg", "ikc", "vkc"} | seeing
    assert {"geographic", "random", "best_gain", "hfel"} <= set(registry.names("assigner"))
    assert {"digits", "fashion_mnist", "cifar10", "synthetic"} <= set(registry.names("dataset"))
    assert {"majority", "dirichlet", "iid"} <= set(registry.names("partition"))
    assert registry.names("sink") == ["csv", "mlflow"]
    assert {"always", "bernoulli", "markov", "diurnal"} <= set(registry.names("availability"))
    assert registry.names("fading") == ["none", "rayleigh", "rician"]
    plural = {kind: f"{kind}s".replace("ys", "ies") for kind in registry.BUILTIN}
    assert {kind: f"hflray.{name}" for kind, name in plural.items()} == registry.GROUPS


def test_an_unknown_name_is_refused_with_the_known_ones():
    with pytest.raises(ConfigError) as error:
        registry.check("scheduler", "ick", "scheduling.name")
    message = str(error.value)
    assert message.startswith("scheduling.name: unknown scheduler 'ick'; did you mean 'ikc'?; known: ")
    assert ", fedavg, ikc, " in message
    assert "hflray.schedulers" in message
    assert "\n" not in message


def test_entry_points_add_names_and_never_replace_them(outside):
    assert "thing" in registry.names("assigner")
    assert registry.resolve("assigner", "thing") is Thing
    assert registry.resolve("assigner", "geographic").__module__ == "hflray.assignment.geographic"
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
