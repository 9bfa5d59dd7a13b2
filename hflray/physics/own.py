"""The parts of the physics that a configuration names, and the checks of a user's own ones.

What an own part returns is checked wherever it is called. `try_out` also tries what the allocator relies on: seconds
fall in the share or in the setting, and joules do not rise in the one and do not fall in the other.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from hflray import registry
from hflray.config import CostConfig
from hflray.physics.base import Access, Compute, Device, Download, Link, Work
from hflray.support.arrays import FloatArray, IntArray
from hflray.support.contract import ABOVE_0, Contract, described, is_ours

TRIED = np.array([0.02, 0.05, 0.1, 0.2, 0.35, 0.5, 0.75, 1.0])  # shares, and parts of the largest setting
ROUNDING = 1e-9  # relative


class _Checked:
    """What the checks of the three kinds have in common."""

    def __init__(self, part: Any, kind: str, name: str, method: str, low_s: float) -> None:
        self.part, self._low_s = part, low_s
        bound = "above 0" if low_s > 0 else "of at least 0"
        accepted = f"seconds and joules, two arrays (n,) of finite numbers, seconds {bound} and joules of at least 0"
        self._contract = Contract.of(f"cost.{kind}.name", name, accepted, f"mend its method {method}")

    def _both(self, value: object, count: int) -> tuple[FloatArray, FloatArray]:
        delay_s, energy_j = self._contract.pair(value)
        delay_s = self._contract.array(delay_s, (count,), "f", self._low_s, where=" as seconds")
        return delay_s, self._contract.array(energy_j, (count,), "f", 0.0, where=" as joules")


class CheckedAccess(_Checked, Access):
    """An access of the user's own."""

    def __init__(self, part: Access, name: str) -> None:
        super().__init__(part, "access", name, "upload", ABOVE_0)
        self.shared, self.blocks = part.shared, part.blocks

    def upload(self, share: FloatArray, link: Link, bits: float) -> tuple[FloatArray, FloatArray]:
        """See `Access.upload`."""
        return self._both(self.part.upload(share, link, bits), len(share))

    def bandwidth_hz(self, share: FloatArray, link: Link) -> FloatArray:
        """See `Access.bandwidth_hz`."""
        return self._contract.array(self.part.bandwidth_hz(share, link), (len(share),), "f", 0.0, where=" as bandwidth")

    def try_out(self, link: Link, bits: float) -> None:
        """Try several shares of some devices. Raises ConfigError: seconds do not fall in them, or joules rise."""
        if not self.shared:
            self.upload(np.ones(len(link.gain)), link, bits)
            return
        tried = np.array([self.upload(np.full(len(link.gain), share), link, bits) for share in TRIED])
        _check_falls(self._contract, tried[:, 0], "the share", "an upload")
        if (np.diff(tried[:, 1], axis=0) > ROUNDING * tried[:-1, 1]).any():
            raise self._contract.error("joules that rise in the share")


class CheckedCompute(_Checked, Compute):
    """A computing of the user's own."""

    def __init__(self, part: Compute, name: str) -> None:
        super().__init__(part, "compute", name, "run", ABOVE_0)
        self.has_setting = part.has_setting

    def run(self, setting: FloatArray, device: Device, work: Work) -> tuple[FloatArray, FloatArray]:
        """See `Compute.run`."""
        return self._both(self.part.run(setting, device, work), len(work.passes))

    def most(self, device: Device) -> FloatArray:
        """See `Compute.most`."""
        return self._contract.array(self.part.most(device), (len(device.max_cpu_hz),), "f", ABOVE_0, where=" as most")

    def try_out(self, device: Device, work: Work) -> None:
        """Try several settings of some devices. Raises ConfigError: seconds do not fall in them, or joules fall."""
        most = self.most(device)
        if not self.has_setting:
            self.run(most, device, work)
            return
        tried = np.array([self.run(part * most, device, work) for part in TRIED])
        _check_falls(self._contract, tried[:, 0], "the setting", "computing")
        if (np.diff(tried[:, 1], axis=0) < -ROUNDING * tried[:-1, 1]).any():
            raise self._contract.error("joules that fall in the setting")


class CheckedDownload(_Checked, Download):
    """A download of the user's own."""

    def __init__(self, part: Download, name: str) -> None:
        super().__init__(part, "download", name, "receive", 0.0)
        self.together = part.together

    def receive(self, link: Link, node: IntArray, bits: float) -> tuple[FloatArray, FloatArray]:
        """See `Download.receive`."""
        return self._both(self.part.receive(link, node, bits), len(node))


def _check_falls(contract: Contract, seconds: FloatArray, variable: str, action: str) -> None:
    """Raise ConfigError unless the seconds, (shares, n), fall, and ever more slowly."""
    steps = np.diff(seconds, axis=0)
    if (steps >= 0).any():
        raise contract.error(f"seconds of {action} that do not fall in {variable}")
    slopes = steps / np.diff(TRIED)[:, None]
    if (np.diff(slopes, axis=0) < ROUNDING * slopes[:-1]).any():
        raise contract.error(f"seconds of {action} that are not convex in {variable}")


def is_built_in(part: object) -> bool:
    """Return whether an access, a computing or a download is one of hflray."""
    return is_ours(part) and not isinstance(part, _Checked)


KINDS: dict[registry.Kind, tuple[type[Any], type[Any]]] = {
    "access": (Access, CheckedAccess), "compute": (Compute, CheckedCompute), "download": (Download, CheckedDownload),
}  # fmt: skip


def parts_of(config: CostConfig) -> dict[str, Any]:
    """Return the access, the computing and the download that the section ``cost`` names, by kind.

    Raises:
        ConfigError: an option is wrong, or a class does not extend the base class of its kind.
    """
    return {kind: _part(kind, getattr(config, kind)) for kind in KINDS}


def _part(kind: registry.Kind, section: Any) -> Any:
    base, checked = KINDS[kind]
    made = registry.build(kind, section.name, **section.options)
    if not isinstance(made, base):
        accepted = f"an object whose class extends hflray.physics.{base.__name__}"
        raise Contract.of(f"cost.{kind}.name", section.name, accepted, "extend it").error(described(made))
    return made if is_ours(made) else checked(made, section.name)
