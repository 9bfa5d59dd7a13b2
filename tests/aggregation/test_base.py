"""hflray.aggregation.base: aggregators of models give the same bits in any grouping, and leave statistics alone."""

from __future__ import annotations

import numpy as np
import pytest

from hflray import registry
from hflray.aggregation import OfModels, OfUpdate
from hflray.errors import ConfigError
from hflray.training.method import Method, Spec
from tests.aggregation.places import combined

AT_EDGE = {"median": {}, "trimmed_mean": {}, "krum": {"f": 1}, "multi_krum": {"f": 1}, "geometric_median": {}}
AT_CLOUD = ("fedavgm", "fedadagrad", "fedadam", "fedyogi")
MODELS = np.random.default_rng(3).normal(size=(7, 5))


@pytest.mark.parametrize("name", ["mean", *AT_EDGE])
def test_the_grouping_of_the_senders_changes_no_bit(name: str) -> None:
    aggregator = registry.build("aggregator", name, **AT_EDGE.get(name, {}))
    whole = combined(aggregator, MODELS, np.arange(1, 8))
    for split in (1, 3, 6):
        np.testing.assert_array_equal(combined(aggregator, MODELS, np.arange(1, 8), split=split), whole)
    assert whole.dtype == np.float32


@pytest.mark.parametrize("name", ["mean", "median", "trimmed_mean", "geometric_median", *AT_CLOUD])
def test_one_sender_is_enough_except_for_krum_but_nobody_is_not(name: str) -> None:
    assert registry.build("aggregator", name).least == 1


@pytest.mark.parametrize("name", AT_EDGE)
def test_weights_count_for_statistics_alone(name: str) -> None:
    aggregator = registry.build("aggregator", name, **AT_EDGE[name])
    weights = np.array([9, 1, 1, 1, 1, 1, 2])
    plain, weighted = (combined(aggregator, MODELS, each, statistics=2) for each in (None, weights))
    np.testing.assert_array_equal(plain[:3], weighted[:3])
    np.testing.assert_array_equal(plain[:3], combined(aggregator, MODELS[:, :3]))
    np.testing.assert_allclose(weighted[3:], np.average(MODELS[:, 3:], axis=0, weights=weights), rtol=1e-6)


@pytest.mark.parametrize("name", [*AT_EDGE, *AT_CLOUD])
def test_each_stands_at_its_place(name: str) -> None:
    spec = Spec.of("aggregator", type("Section", (), {"name": name, "options": AT_EDGE.get(name, {})}))
    here, other = ("edge", "cloud") if name in AT_EDGE else ("cloud", "edge")
    parts = Method(**{here: spec}).parts()
    assert isinstance(getattr(parts, here), OfModels if name in AT_EDGE else OfUpdate)
    assert not parts.adds_totals
    with pytest.raises(
        ConfigError, match=rf"aggregation\.{other}\.name: {name} combines at the {here} only; .*{here}$"
    ):
        Method(**{other: spec}).parts()


@pytest.mark.parametrize("name", [*AT_EDGE, *AT_CLOUD])
def test_an_unknown_option_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=rf"aggregator '{name}': unknown option 'foo'"):
        registry.build("aggregator", name, foo=1)
