"""hflray.world.fading: moments of the laws, and the time of an upload over a fading link."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import ArrayLike

from hflray import registry
from hflray.cost import Schedule, Senders, Workload
from hflray.errors import ConfigError
from hflray.fleet import Fleet, FleetConfig, sample_fleet
from hflray.physics.base import Access, Link
from hflray.support.arrays import FloatArray
from hflray.world import fading
from hflray.world.fading import Fading, NoFading, Rayleigh, faded_upload

DEVICES = np.arange(200_000)


def build(name: str, **options: Any) -> Any:
    return registry.build("fading", name, seed=4, **options)


def test_rayleigh_power_is_exponential() -> None:
    factor = build("rayleigh").factor(3, DEVICES, 0)
    assert factor.min() > 0
    assert factor.mean() == pytest.approx(1, rel=0.01)
    assert factor.var() == pytest.approx(1, rel=0.03)
    assert (factor < 0.1).mean() == pytest.approx(1 - np.exp(-0.1), rel=0.03)


@pytest.mark.parametrize("k_db", [-20.0, 0.0, 6.0, 20.0])
def test_rician_power_has_its_moments(k_db: float) -> None:
    k = 10 ** (k_db / 10)
    factor = build("rician", k_db=k_db).factor(3, DEVICES, 1, 2)
    assert factor.mean() == pytest.approx(1, rel=0.01)
    assert factor.var() == pytest.approx((2 * k + 1) / (k + 1) ** 2, rel=0.04)


def test_links_and_iterations_are_independent() -> None:
    law = build("rayleigh")
    first = law.factor(3, DEVICES, 0, 1)
    for other in (law.factor(3, DEVICES, 1, 1), law.factor(3, DEVICES, 0, 2), law.factor(4, DEVICES, 0, 1)):
        assert abs(np.corrcoef(first, other)[0, 1]) < 0.01


Z, B = 6e6, 1e6


def fleet(snr_hz: list[float]) -> Fleet:
    """Return a fleet of one edge whose links have Y = gain · power / noise, Hz."""
    drawn = sample_fleet(FleetConfig(num_devices=len(snr_hz), num_edges=1), np.random.default_rng(0))
    gain = np.array(snr_hz) * drawn.noise_w_per_hz / drawn.power_w
    return Fleet(**{**{f: getattr(drawn, f) for f in drawn.__dataclass_fields__}, "gain": gain[:, None]})


class Given(Fading):
    """Factors by device, or by block."""

    def __init__(self, by_device: list[float] | None = None, by_block: list[float] | None = None) -> None:
        super().__init__(seed=0)
        self.by_device, self.by_block = by_device, by_block

    def factor(self, *indices: ArrayLike) -> FloatArray:
        shape = np.broadcast_shapes(*(np.shape(index) for index in indices))
        if self.by_block is not None and len(indices) == 5:
            return np.broadcast_to(np.array(self.by_block)[np.asarray(indices[4]) % len(self.by_block)], shape)
        return np.broadcast_to(np.array(self.by_device)[np.asarray(indices[1])], shape)


def uploads(law: Fading, coherence_s: float | None, snr_hz: list[float], iterations: int = 1) -> FloatArray:
    devices = np.arange(len(snr_hz))
    schedule = Schedule(devices, np.zeros(len(devices), dtype=np.intp))
    senders = Senders.of(fleet(snr_hz), Workload(model_bits=Z), schedule, np.full(len(devices), B))
    return faded_upload(law, coherence_s, 1, range(iterations), schedule, senders)[0]


def test_the_factor_multiplies_the_gain_and_not_the_time() -> None:
    """Example 6 of the design: Y = (3, 7) MHz gives 3 and 2 s, and factors (1/3, 15/7) give 6 and 1.5 s."""
    np.testing.assert_allclose(uploads(NoFading(seed=0), None, [3e6, 7e6]), [[3, 2]])
    np.testing.assert_allclose(uploads(Given([1 / 3, 15 / 7]), None, [3e6, 7e6]), [[6, 1.5]])


def test_blocks_are_sent_until_z_bits_are_through() -> None:
    """Blocks of 1 s carry 1, 2, 4, 1, … Mbit, so that 6 Mbit take 2.75 s, and blocks of 0.1 s carry them in 2.625 s."""
    law = Given(by_block=[1 / 3, 1, 5])
    np.testing.assert_allclose(uploads(law, 1.0, [3e6]), [[2.75]])
    # 25 blocks: eight times (1 + 2 + 4) / 10 Mbit in 24 blocks are 5.6 Mbit, then 0.1, 0.2 and a quarter of 0.4 Mbit
    np.testing.assert_allclose(uploads(law, 0.1, [3e6]), [[2.625]])
    np.testing.assert_allclose(uploads(NoFading(seed=0), 0.01, [3e6, 7e6], 3), [[3, 2]] * 3, rtol=1e-12)


def test_joules_are_those_of_each_blocks_watts(monkeypatch) -> None:
    """Blocks of 1 s with gains of 1/2, 1 and 2 take 4, 2 and 1 W; all were billed at the 2 W of the plan."""

    class Inverted(Access):
        def upload(self, share: FloatArray, link: Link, bits: float) -> tuple[FloatArray, FloatArray]:
            delay_s = np.full(len(share), 2.5) * bits / Z
            return delay_s, 2.0 / (link.gain / gain) * delay_s

    one = replace(fleet([3e6]), access=Inverted())
    schedule = Schedule(np.array([0]), np.array([0]))
    senders = Senders.of(one, Workload(model_bits=Z), schedule, np.array([B]), share=np.ones(1))
    gain = senders.link.gain[0]
    for strip in (1, 2, 90):
        monkeypatch.setattr(fading, "STRIP", strip)
        upload_s, upload_j = faded_upload(Given(by_block=[0.5, 1, 2]), 1.0, 1, range(2), schedule, senders)
        np.testing.assert_allclose(upload_s, [[2.5], [2.5]])
        np.testing.assert_allclose(upload_j, [[4 + 2 + 0.5]] * 2)


def test_the_result_does_not_depend_on_how_many_blocks_are_drawn_at_once(monkeypatch) -> None:
    law = Rayleigh(seed=3)
    whole = uploads(law, 0.05, [3e6, 7e6, 1e6], 4)
    monkeypatch.setattr(fading, "AT_ONCE", 30)
    np.testing.assert_allclose(uploads(law, 0.05, [3e6, 7e6, 1e6], 4), whole, rtol=1e-12)
    assert whole.std() > 0


@pytest.mark.parametrize("strip", [1, 90, 10**9])
def test_the_result_does_not_depend_on_strips_to_the_last_bit(strip: int, monkeypatch) -> None:
    law = Rayleigh(seed=3)
    whole = uploads(law, 0.05, [3e6, 7e6, 1e6, 9e4], 4)
    monkeypatch.setattr(fading, "STRIP", strip)
    np.testing.assert_array_equal(uploads(law, 0.05, [3e6, 7e6, 1e6, 9e4], 4), whole)
    assert whole.max() > 20 * whole.min()  # most uploads end long before the longest one


def test_many_blocks_average_the_rate() -> None:
    """E[log2(1 + 3 X)] of an exponential X is e^(1/3) E1(1/3) / ln 2."""
    from scipy.special import exp1

    mean_bps = B * np.exp(1 / 3) * exp1(1 / 3) / np.log(2)
    assert uploads(Rayleigh(seed=3), 1e-4, [3e6]).item() == pytest.approx(Z / mean_bps, rel=0.02)


def test_a_coherence_time_that_would_take_for_ever_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"world\.fading\.coherence_s: got 1e-06; .* accepted: at least 3e-06"):
        uploads(NoFading(seed=0), 1e-6, [3e6])
