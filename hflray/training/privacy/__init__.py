"""Differential privacy of devices: each uploads a clipped update, and each edge's sum is noised (``privacy``).

* ``mechanism.py`` clips updates and draws the noise;
* ``accountant.py`` counts the uploads of each device and says what ε they have cost.
"""

from __future__ import annotations

from hflray.training.privacy.accountant import Accountant, delta_of, epsilon_of
from hflray.training.privacy.mechanism import Mechanism, noised

__all__ = ["Accountant", "Mechanism", "delta_of", "epsilon_of", "noised"]
