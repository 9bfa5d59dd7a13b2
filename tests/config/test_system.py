"""The physical system has the defaults of Table I, and its units are converted once."""

from __future__ import annotations

import numpy as np
import pytest

from hflray.config import CostConfig, FleetConfig, dbm_to_w, load_config
from hflray.errors import ConfigError
from hflray.fleet import sample_fleet


def test_defaults_are_table_i():
    config = load_config()
    fleet, training = config.fleet, config.training
    assert (fleet.num_devices, fleet.num_edges, fleet.area_km) == (100, 5, 1.0)
    assert (fleet.path_loss_db, fleet.path_loss_slope_db, fleet.shadowing_db) == (128.1, 37.6, 8.0)
    assert fleet.cycles_per_sample == (1e4, 1e5)
    assert fleet.edge_bandwidth_mhz == (0.5, 3.0)
    assert fleet.cloud_bandwidth_mhz == 10.0
    assert fleet.power_dbm == (0.0, 23.0)
    assert fleet.edge_power_dbm == 23.0
    assert fleet.max_cpu_ghz == (2.0, 2.0)
    assert fleet.noise_dbm_per_hz == -174.0
    assert fleet.samples == (400, 700)
    assert (training.learning_rate, training.local_iterations, training.edge_iterations) == (0.01, 5, 5)
    assert config.scheduling.num_clusters == 10
    # Where Table I is silent, the decisions of docs/design.md hold.
    assert fleet.capacitance == 2e-28
    assert config.cost.delay_weight == 1.0
    assert (config.allocation.method, config.allocation.coupling) == ("newton", "per_edge")
    assert (training.batch_size, training.local_iteration) == (64, "epoch")
    assert config.data.majority_fraction == 0.8
    assert config.data.name == "digits"


def test_units_are_converted_once():
    fleet = FleetConfig(edge_bandwidth_mhz=(0.5, 3), max_cpu_ghz=1.5, power_dbm=(0, 30))
    assert dbm_to_w(30.0) == pytest.approx(1.0)
    assert dbm_to_w(23.0) == pytest.approx(0.1995262, rel=1e-6)
    assert fleet.power_w_range == pytest.approx((1e-3, 1.0))
    assert fleet.edge_power_w == pytest.approx(0.1995262, rel=1e-6)
    assert fleet.noise_w_per_hz == pytest.approx(3.981072e-21, rel=1e-6)
    assert fleet.edge_bandwidth_hz_range == (0.5e6, 3e6)
    assert fleet.cloud_bandwidth_hz == 1e7
    assert fleet.max_cpu_hz_range == (1.5e9, 1.5e9)
    assert fleet.area_m == 1000.0
    assert CostConfig(model_kb=448).model_bits == 448 * 1024 * 8
    assert CostConfig().model_bits is None


@pytest.mark.parametrize(
    "override",
    [*(f"fleet.{name}={value}" for name in FleetConfig.model_fields for value in ("1e308", "-1e308", "[1, 1e308]"))],
)
def test_extreme_numbers_are_refused(override):
    with pytest.raises(ConfigError) as error:
        load_config(overrides=[override])
    message = str(error.value)
    assert len(message.splitlines()) == 1
    assert override.partition("=")[0] in message
    assert "accepted" in message


@pytest.mark.parametrize(
    "fleet",
    [
        {"area_km": 1e6, "path_loss_db": 500, "path_loss_slope_db": 100, "shadowing_db": 50},
        {
            "area_km": 1e-4,
            "min_distance_m": 1e-3,
            "path_loss_db": -200,
            "path_loss_slope_db": 100,
            "shadowing_db": 50,
        },
        {"power_dbm": (-200, 200), "edge_power_dbm": 200, "noise_dbm_per_hz": -400},
        {"edge_power_dbm": -200, "noise_dbm_per_hz": 200, "power_law": "watt", "power_dbm": (-200, 200)},
    ],
)
def test_the_ends_of_what_is_accepted_give_finite_fleets(fleet):
    config = FleetConfig(**fleet)
    drawn = sample_fleet(config, np.random.default_rng(0))
    for values in (drawn.gain, drawn.cloud_gain, drawn.power_w, drawn.edge_power_w, drawn.distance_m):
        assert np.isfinite(values).all()
        assert (np.asarray(values) > 0).all()
    assert 0 < config.noise_w_per_hz < np.inf
