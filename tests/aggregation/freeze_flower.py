"""Make `flower.json`: what Flower's aggregation functions return for random models. It needs ``pip install flwr``.

Run it as ``python tests/aggregation/freeze_flower.py`` in an environment of its own.
"""

from __future__ import annotations

import importlib.metadata
import json
from pathlib import Path

import numpy as np

SIZE = 4
CASES = ((5, 1), (7, 2), (8, 1), (11, 3))  # models, and those of them that may be anything


def models(count: int, f: int) -> np.ndarray:
    """Return the models of a case, (count, SIZE); the last f lie far away."""
    rng = np.random.default_rng(1000 * count + f)
    rows = rng.normal(size=(count, SIZE)).astype(np.float32)
    rows[count - f :] += 10 * rng.normal(size=(f, SIZE)).astype(np.float32)
    return rows[rng.permutation(count)].astype(np.float64)


def main() -> None:
    """Write the file."""
    from flwr.server.strategy.aggregate import aggregate_krum, aggregate_median, aggregate_trimmed_avg

    cases = []
    for count, f in CASES:
        rows = models(count, f)
        results = [([row], 1) for row in rows]
        cases.append(
            {
                "f": f,
                "models": rows.tolist(),
                "median": aggregate_median(results)[0].tolist(),
                "trimmed_mean": aggregate_trimmed_avg(results, 0.2)[0].tolist(),
                "krum": aggregate_krum(results, f, 0)[0].tolist(),
                "multi_krum": aggregate_krum(results, f, count - f)[0].tolist(),
            }
        )
    text = json.dumps({"flwr": importlib.metadata.version("flwr"), "cases": cases}, indent=1)
    (Path(__file__).parent / "flower.json").write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
