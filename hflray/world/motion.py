"""The Gauss-Markov motion of many coordinates over many slots, compiled because each slot needs the one before."""

from __future__ import annotations

from hflray.allocation.kernels.jit import kernel
from hflray.support.arrays import FloatArray


@kernel
def move_reflected(
    position_m: FloatArray,
    velocity_m_per_s: FloatArray,
    normal: FloatArray,
    keep: float,
    push_m_per_s: float,
    slot_s: float,
    side_m: float,
) -> None:
    """Move coordinates slot by slot, in place: v ← keep · v + push_m_per_s · normal, then x ← x + slot_s · v.

    A coordinate that leaves the area is reflected, and its velocity turns round.

    Args:
        position_m: coordinates from 0 to `side_m`, (C,), m.
        velocity_m_per_s: their velocities, (C,), m/s.
        normal: standard normal numbers, (S, C).
        keep: the factor on the velocity from slot to slot.
        push_m_per_s: the factor on the normal numbers, m/s.
        slot_s: duration of a slot, s.
        side_m: side of the area, m.
    """
    slots, coordinates = normal.shape
    for i in range(coordinates):
        position, velocity = position_m[i], velocity_m_per_s[i]
        for slot in range(slots):
            velocity = keep * velocity + push_m_per_s * normal[slot, i]
            position = position + slot_s * velocity
            if position < 0.0 or position > side_m:
                position = position % (2.0 * side_m)  # several borders may be passed in one slot
                if position > side_m:
                    position, velocity = 2.0 * side_m - position, -velocity
        position_m[i], velocity_m_per_s[i] = position, velocity
