"""How devices compute: with a frequency that is chosen (the paper's), or as it was measured."""

from __future__ import annotations

from typing import ClassVar

from hflray.physics.base import Compute, Device, Work
from hflray.physics.equations import compute_delay_s, compute_energy_j
from hflray.support.arrays import FloatArray


class Dvfs(Compute):
    """A CPU whose frequency is chosen (equations 4 and 5); the default. The setting is f_n, Hz."""

    def run(self, setting: FloatArray, device: Device, work: Work) -> tuple[FloatArray, FloatArray]:
        """Return L u D / f s and α/2 · L u D f² J."""
        delay_s = compute_delay_s(1.0, device.cycles_per_sample, work.passes, setting)
        return delay_s, compute_energy_j(device.capacitance, 1.0, device.cycles_per_sample, work.passes, setting)


class MeasuredCompute(Compute):
    """Seconds and watts as the fleet's table says; nothing is chosen.

    The table needs ``compute_w``, and ``seconds_per_sample``, ``step_s`` or ``fixed_s``, of which those that it lacks
    are 0.
    """

    has_setting: ClassVar[bool] = False

    def run(self, setting: FloatArray, device: Device, work: Work) -> tuple[FloatArray, FloatArray]:
        """Return fixed_s + step_s · steps + seconds_per_sample · samples s, and ``compute_w`` times as many joules."""
        delay_s = device.fixed_s + device.step_s * work.steps + device.seconds_per_sample * work.samples
        return delay_s, device.compute_w * delay_s
