"""`hflray.config.size`: a count that would never come to its end is refused, with what it would take."""

from __future__ import annotations

import math
from typing import Any

import pytest

from hflray.config import load_config
from hflray.config.base import unsigned
from hflray.errors import ConfigError
from tests.conftest import small_config

HUGE = (10**6, 10**9, 10**18)


@pytest.mark.parametrize("value", HUGE)
@pytest.mark.parametrize(
    "setting, others",
    [
        ("training.edge_iterations", ()),
        ("training.edge_iterations", ("fleet.num_edges=1", "training.local_iterations=1")),
        ("clock.cloud.asynchronous.updates", ()),
        ("clock.cloud.asynchronous.updates", ("training.edge_iterations=1",)),
        ("clock.cloud.asynchronous.updates", ("clock.edge=asynchronous",)),
        ("clock.edge.asynchronous.updates", ()),
        ("clock.edge.asynchronous.updates", ("clock.cloud=asynchronous",)),
    ],
)
def test_a_round_that_never_ends_is_refused_with_what_it_would_take(setting, others, value: int) -> None:
    with pytest.raises(ConfigError) as error:
        load_config(None, [f"{setting}={value}", *others])
    message = str(error.value)
    assert message.startswith(f"{setting}: got {value:,}; a round would have ")
    assert "models of edges, which take at least " in message
    assert message.endswith("; lower it")
    most = int(message.rpartition("1 to ")[2].partition(";")[0].replace(",", ""))
    load_config(None, [f"{setting}={most}", *others])
    with pytest.raises(ConfigError, match=setting):
        load_config(None, [f"{setting}={most + 1}", *others])


@pytest.mark.parametrize("value", [10**9, 10**18])
@pytest.mark.parametrize("setting, unit", [("training.local_iterations", "local iterations"), ("max_rounds", "rounds")])
def test_a_run_that_never_ends_is_refused_too(setting: str, unit: str, value: int) -> None:
    with pytest.raises(
        ConfigError, match=rf"^{setting}: got {value:,}; a r\w+ would have .* {unit}, which take at least"
    ):
        load_config(None, [f"{setting}={value}"])


@pytest.mark.parametrize(
    "overrides",
    [
        ("fleet.num_devices=1000000",),
        ("fleet.num_devices=1000000", "scheduling.num_scheduled=1000000"),
        ("fleet.num_devices=1000000", "fleet.num_edges=1000"),
        ("max_rounds=1000000",),
        ("training.local_iterations=1000", "training.local_iteration=step"),
        ("training.edge_iterations=1000",),
        ("clock.cloud.asynchronous.updates=1000",),
    ],
)
def test_large_experiments_are_accepted(overrides: tuple[str, ...]) -> None:
    load_config(None, list(overrides))


@pytest.mark.parametrize(
    "setting",
    ["fleet.shadowing_db", "world.compute_jitter.sigma", "world.dropout.rate_per_s", "training.weight_decay",
     "world.battery.reserve_j"],
)  # fmt: skip
def test_a_zero_has_no_sign(setting: str) -> None:
    assert small_config(f"{setting}=-0.0") == small_config(f"{setting}=0.0")
    value: Any = small_config(f"{setting}=-0.0")
    for name in setting.split("."):
        value = getattr(value, name)
    assert math.copysign(1.0, value if isinstance(value, float) else value[0]) == 1.0


def test_zeros_inside_of_lists_and_mappings_have_no_sign() -> None:
    plain = unsigned({"a": [-0.0, (-0.0, 1)], "b": "-0.0", "c": -1.5, "d": True})
    assert repr(plain) == "{'a': [0.0, (0.0, 1)], 'b': '-0.0', 'c': -1.5, 'd': True}"
