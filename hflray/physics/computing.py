"""How devices compute: with a frequency that is chosen (the paper's), or as it was measured."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from hflray.physics.base import Compute, Device, Work
from hflray.physics.equations import compute_delay_s, compute_energy_j
from hflray.support.arrays import FloatArray


class Dvfs(Compute):
    """A CPU whose frequency is chosen (equations 4 and 5); the default. The setting is f_n, Hz."""

    def run(self, setting: FloatArray, device: Device, work: Work) -> tuple[FloatArray, FloatArray]:
        """Return L u D / f s and α/2 · L u D f² J."""
        iterations, data = (1.0, work.passes) if work.data is None else (work.local_iterations, work.data)
        delay_s = compute_delay_s(iterations, device.cycles_per_sample, data, setting)
        return delay_s, compute_energy_j(device.capacitance, iterations, device.cycles_per_sample, data, setting)

    def derivatives(self, setting: FloatArray, device: Device, work: Work) -> tuple[tuple[FloatArray, ...], ...]:
        """Return the computing with its derivatives by log f."""
        delay_s, energy_j = self.run(setting, device, work)
        return (delay_s, -delay_s, delay_s), (energy_j, 2 * energy_j, 4 * energy_j)

    def least_j(self, seconds: FloatArray, device: Device, work: Work) -> FloatArray:
        """Return the joules at the frequency that takes so many seconds."""
        setting = device.cycles_per_sample * work.passes / seconds
        joules = device.capacitance / 2 * setting**2 * device.cycles_per_sample * work.passes
        return np.where((seconds > 0) & (setting <= device.max_cpu_hz * (1 + 1e-9)), joules, np.inf)


class MeasuredCompute(Compute):
    """Seconds and watts as the fleet's table says; nothing is chosen.

    The table needs ``compute_w``, and ``seconds_per_sample``, ``step_s`` or ``fixed_s``, of which those that it lacks
    are 0. With ``cycles_per_sample`` a sample takes u_n / f_n^max.
    """

    has_setting = False
    needs: ClassVar[tuple[tuple[str, ...], ...]] = (("compute_w",), ("seconds_per_sample", "step_s", "fixed_s"))

    def run(self, setting: FloatArray, device: Device, work: Work) -> tuple[FloatArray, FloatArray]:
        """Return fixed_s + step_s · steps + seconds_per_sample · samples s, and ``compute_w`` times as many joules."""
        delay_s = device.fixed_s + device.step_s * work.steps + device.seconds_per_sample * work.samples
        return delay_s, device.compute_w * delay_s
