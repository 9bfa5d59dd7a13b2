"""Make `dp_accounting.json`: the ε of k uploads by Google's dp-accounting. It needs ``pip install dp-accounting``.

Run it as ``python tests/training/privacy/freeze_dp_accounting.py`` in an environment of its own.
"""

from __future__ import annotations

import importlib.metadata
import itertools
import json
from pathlib import Path

# ε from 180, which protects nobody, to 0.1. All cases need 45 s of CPU.
MULTIPLIERS, RELEASES, DELTAS = (1.0, 2.0, 4.0, 8.0, 32.0), (1, 5, 40, 200), (1e-5, 1e-8)


def main() -> None:
    """Write the file."""
    import dp_accounting
    from dp_accounting import pld

    cases = []
    for multiplier, releases, delta in itertools.product(MULTIPLIERS, RELEASES, DELTAS):
        # Without sampling, k releases are one with the noise divided by the root of k; the accountant does not use it.
        accountant = pld.PLDAccountant(dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE)
        accountant.compose(dp_accounting.GaussianDpEvent(multiplier), releases)
        epsilon = float(accountant.get_epsilon(delta))
        cases.append({"noise_multiplier": multiplier, "releases": releases, "delta": delta, "epsilon": epsilon})
    text = json.dumps({"dp-accounting": importlib.metadata.version("dp-accounting"), "cases": cases}, indent=1)
    (Path(__file__).parent / "dp_accounting.json").write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
