"""The parts of the physics that a configuration names, and the checks of a user's own ones.

What an own part returns is checked wherever it is called. `try_out` also tries what the allocator relies on: seconds
fall in the share or in the setting, joules do not rise in the one and do not fall in the other, uploads are convex, and
the same call has the same answer.
"""

from __future__ import annotations

from collections.abc import Callable
from numbers import Integral
from typing import Any

import numpy as np

from hflray import registry
from hflray.config import CostConfig
from hflray.errors import ConfigError
from hflray.physics.base import COLUMNS, Access, Compute, Device, Download, Link, Work, own_form
from hflray.support.arrays import FloatArray, IntArray
from hflray.support.contract import ABOVE_0, Contract, described, is_ours
from hflray.support.references import named
from hflray.support.text import shorten

TRIED = np.array([0.02, 0.05, 0.1, 0.2, 0.35, 0.5, 0.75, 1.0])  # shares, and parts of the largest setting
NEXT_TO_NOTHING, GROWS = (1e-6, 1e-9), 1.1  # shares, and how much longer the second takes at least
ROUNDING = 1e-9  # relative


class _Checked:
    """What the checks of the three kinds have in common."""

    def __init__(self, part: Any, kind: str, name: str, method: str, low_s: float) -> None:
        self.part, self._low_s = part, low_s
        bound = "above 0" if low_s > 0 else "of at least 0"
        accepted = f"seconds and joules, two arrays (n,) of finite numbers, seconds {bound} and joules of at least 0"
        self._contract = Contract.of(f"cost.{kind}.name", name, accepted, f"mend its method {method}")
        columns = f"tuples of columns of the fleet's table, as in (('compute_w',),), of {', '.join(COLUMNS)}"
        self._attribute("needs", columns, _are_columns)

    @property
    def name(self) -> str:
        """How messages call it."""
        return self._contract.part

    def _attribute(self, name: str, accepted: str, fits: Callable[[Any], bool]) -> None:
        """Take an attribute of the part. Raises ConfigError: it does not fit."""
        value = getattr(self.part, name)
        if not fits(value):
            raise ConfigError(
                f"{self._contract.setting}: {self._contract.part} has {name} = {shorten(value)}; accepted: {accepted}; "
                f"correct its attribute {name}"
            )
        setattr(self, name, value)

    def _steady(self, call: Callable[[], tuple[FloatArray, FloatArray]]) -> tuple[FloatArray, FloatArray]:
        """Return the answer of a call. Raises ConfigError: a second one has another."""
        first, second = call(), call()
        if not np.array_equal(first, second):
            accepted = "the same for the same arguments; it neither draws nor remembers"
            raise self._refuse("two different answers to one call", accepted)
        return first

    def _refuse(self, returned: str, accepted: str) -> ConfigError:
        return self._contract._replace(accepted=accepted).error(returned)

    def _check_falls(self, seconds: FloatArray, variable: str, action: str) -> None:
        """Raise ConfigError unless the seconds, (shares, n), fall, and ever more slowly."""
        accepted = f"seconds that fall in {variable}, ever more slowly"
        if (np.diff(seconds, axis=0) >= 0).any():
            raise self._refuse(f"seconds of {action} that do not fall in {variable}", accepted)
        if not _is_convex(seconds, TRIED[:, None]):
            raise self._refuse(f"seconds of {action} that are not convex in {variable}", accepted)

    def _both(self, value: object, count: int) -> tuple[FloatArray, FloatArray]:
        delay_s, energy_j = self._contract.pair(value)
        delay_s = self._contract.array(delay_s, (count,), "f", self._low_s, where=" as seconds")
        return delay_s, self._contract.array(energy_j, (count,), "f", 0.0, where=" as joules")


class CheckedAccess(_Checked, Access):
    """An access of the user's own."""

    def __init__(self, part: Access, name: str) -> None:
        super().__init__(part, "access", name, "upload", ABOVE_0)
        self._attribute("shared", "True or False", _is_bool)
        self._attribute("blocks", "a whole number of at least 1, or None", _are_blocks)

    def upload(self, share: FloatArray, link: Link, bits: float) -> tuple[FloatArray, FloatArray]:
        """See `Access.upload`."""
        return self._both(self.part.upload(share, link, bits), len(share))

    def pace(self, share: FloatArray, link: Link, bits: float) -> tuple[FloatArray, FloatArray]:
        """See `Access.pace`."""
        pace_of = own_form(self.part, "pace", "upload")
        if pace_of is None:
            return super().pace(share, link, bits)
        made = self._contract._replace(
            accepted="bits per second above 0 and watts of at least 0, two arrays (n,) of finite numbers",
            fix="mend its method pace",
        )
        pace, power_w = made.pair(pace_of(share, link, bits))
        pace = made.array(pace, (len(share),), "f", ABOVE_0, where=" as bits per second")
        return pace, made.array(power_w, (len(share),), "f", 0.0, where=" as watts")

    def bandwidth_hz(self, share: FloatArray, link: Link) -> FloatArray:
        """See `Access.bandwidth_hz`."""
        return self._contract.array(self.part.bandwidth_hz(share, link), (len(share),), "f", 0.0, where=" as bandwidth")

    def try_out(self, link: Link, bits: float) -> None:
        """Try several shares of some devices. Raises ConfigError: seconds do not fall in them, or joules rise."""
        whole = np.ones(len(link.gain))
        self._steady(lambda: self.upload(whole, link, bits))
        self.pace(whole, link, bits)
        if not self.shared:
            return
        tried = np.array([self.upload(np.full(len(link.gain), share), link, bits) for share in TRIED])
        self._check_falls(tried[:, 0], "the share", "an upload")
        large, larger = (self.upload(share * whole, link, bits)[0] for share in NEXT_TO_NOTHING)
        if (larger < GROWS * large).any():
            accepted = "seconds that grow without bound as the share falls to 0"
            raise self._refuse("seconds of an upload that stay finite without a share", accepted)
        accepted = "joules that do not rise in the share, and fall ever more slowly"
        if (np.diff(tried[:, 1], axis=0) > ROUNDING * tried[:-1, 1]).any():
            raise self._refuse("joules that rise in the share", accepted)
        if not _is_convex(tried[:, 1], TRIED[:, None]):
            raise self._refuse("joules of an upload that are not convex in the share", accepted)


class CheckedCompute(_Checked, Compute):
    """A computing of the user's own."""

    def __init__(self, part: Compute, name: str) -> None:
        super().__init__(part, "compute", name, "run", ABOVE_0)
        self._attribute("has_setting", "True or False", _is_bool)

    def run(self, setting: FloatArray, device: Device, work: Work) -> tuple[FloatArray, FloatArray]:
        """See `Compute.run`."""
        return self._both(self.part.run(setting, device, work), len(work.passes))

    def most(self, device: Device) -> FloatArray:
        """See `Compute.most`."""
        return self._contract.array(self.part.most(device), (len(device.max_cpu_hz),), "f", ABOVE_0, where=" as most")

    def try_out(self, device: Device, work: Work) -> None:
        """Try several settings of some devices. Raises ConfigError: seconds do not fall in them, or joules fall."""
        most = self.most(device)
        self._steady(lambda: self.run(most, device, work))
        if not self.has_setting:
            return
        tried = np.array([self.run(part * most, device, work) for part in TRIED])
        self._check_falls(tried[:, 0], "the setting", "computing")
        if (np.diff(tried[:, 1], axis=0) < -ROUNDING * tried[:-1, 1]).any():
            raise self._refuse("joules that fall in the setting", "joules that do not fall in the setting")
        if not _is_convex(tried[:, 1], tried[:, 0]):
            accepted = "joules that rise ever faster as the seconds fall"
            raise self._refuse("joules of computing that are not convex in the seconds", accepted)


class CheckedDownload(_Checked, Download):
    """A download of the user's own."""

    def __init__(self, part: Download, name: str) -> None:
        super().__init__(part, "download", name, "receive", 0.0)
        self._attribute("together", "True or False", _is_bool)

    def receive(self, link: Link, node: IntArray, bits: float) -> tuple[FloatArray, FloatArray]:
        """See `Download.receive`."""
        return self._both(self.part.receive(link, node, bits), len(node))

    def try_out(self, link: Link, node: IntArray, bits: float) -> None:
        """Try a download of some devices."""
        self._steady(lambda: self.receive(link, node, bits))


def _is_convex(values: FloatArray, at: FloatArray) -> bool:
    """Return whether values, (shares, n), are convex in others, (shares, n), that rise or fall."""
    steps = np.diff(at, axis=0)
    slopes = np.diff(values, axis=0) / steps
    slack = ROUNDING * (np.abs(slopes[:-1]) + 1e-3 * np.abs(values).max(axis=0) / np.abs(steps[1:]))
    return not (np.diff(slopes, axis=0) * np.sign(steps[1:]) < -slack).any()


def _is_bool(value: object) -> bool:
    return isinstance(value, bool | np.bool_)


def _are_blocks(value: object) -> bool:
    return value is None or (isinstance(value, Integral) and not _is_bool(value) and int(value) >= 1)


def _are_columns(needs: object) -> bool:
    return isinstance(needs, tuple) and all(
        isinstance(names, tuple) and names and all(name in COLUMNS for name in names) for names in needs
    )


def is_built_in(part: object) -> bool:
    """Return whether an access, a computing or a download is one of hflray."""
    return is_ours(part) and not isinstance(part, _Checked)


def name_of(kind: registry.Kind, part: object) -> str:
    """Return how messages call an access, a computing or a download: as ``cost`` names it, or its class."""
    if isinstance(part, _Checked):
        return part.name
    place = f"{type(part).__module__}:{type(part).__qualname__}"
    return next((name for name, built_in in registry.BUILTIN[kind].items() if built_in == place), named(part))


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
