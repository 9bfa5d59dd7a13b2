"""The modules whose mutants are tested, and their tests. Ordinary tests read it, so that it imports no cosmic-ray."""

from __future__ import annotations

MODULES = (
    "fleet/fleet",
    "cost", "metrics", "seeding", "timeline", "support/checkpoint", "scheduling/base", "scheduling/clustering",
    "scheduling/fedavg", "scheduling/ikc", "scheduling/vkc", "data/partition", "assignment/features", "assignment/hfel",
    "rl/sampling", "rl/env", "reproduction/judge",
    "training/plan", "training/amounts", "training/cloud", "training/exchange", "training/differences",
    "training/privacy/accountant", "training/privacy/mechanism",
    *(f"training/rules/{name}" for name in ("base", "feddyn", "fednova", "fedprox", "mtgc", "own", "scaffold")),
    *(f"aggregation/{name}" for name in (
        "adaptive", "base", "fedadagrad", "fedadam", "fedavgm", "fedyogi", "fixed_point", "geometric_median", "krum",
        "mean", "median", "multi_krum", "trimmed_mean",
    )),
    *(f"compression/{name}" for name in ("base", "none", "qsgd", "sign", "top_k")),
    *(f"world/{name}" for name in (
        "availability", "battery", "draws", "fading", "faults", "mobility", "motion", "part", "trace", "world",
    )),
)  # fmt: skip
# These have no mirror: real rounds, and the parts that use them, test them.
MIRRORLESS = (
    "training/amounts", "training/cloud", "training/exchange", "training/rules/base", "aggregation/adaptive",
    "aggregation/mean", "compression/base", "compression/none", "scheduling/base", "scheduling/fedavg",
    "scheduling/vkc", "world/motion",
)  # fmt: skip
# The tests of a module beside its mirror.
_ALGORITHM = ("training/test_algorithm1",)
_ADAPTIVE = tuple(f"aggregation/test_{name}" for name in ("fedadagrad", "fedadam", "fedyogi"))
_RULES = tuple(f"training/rules/test_{name}" for name in ("feddyn", "fednova", "fedprox", "mtgc", "scaffold"))
MORE_TESTS = {
    **{
        f"scheduling/{name}": ("scheduling/test_schedulers", "scheduling/test_clusters")
        for name in (
            "base",
            "fedavg",
            "vkc",
        )
    },
    "scheduling/ikc": ("scheduling/test_clusters",),
    "training/amounts": (*_RULES, *_ALGORITHM),
    "training/cloud": (*_ADAPTIVE, *_RULES, *_ALGORITHM),
    "training/exchange": ("training/privacy/test_mechanism", *_ALGORITHM),
    "training/rules/base": (*_RULES, *_ALGORITHM),
    "aggregation/adaptive": _ADAPTIVE,
    "aggregation/mean": ("aggregation/test_base", "aggregation/test_fixed_point", *_ALGORITHM),
    "compression/base": ("compression/test_qsgd", "compression/test_sign", "compression/test_top_k", *_ALGORITHM),
    "compression/none": _ALGORITHM,
    "world/availability": ("world/test_part", "world/test_trace"),
    "world/fading": ("world/test_part",),
    "world/faults": ("world/test_trace",),
    "world/mobility": ("world/test_part", "world/test_trace"),
    "world/motion": ("world/test_mobility",),
}


def source_of(module: str) -> str:
    """Return the path of a module's source, relative to the repository."""
    return f"hflray/{module}.py"


def tests_of(module: str) -> list[str]:
    """Return the paths of a module's tests, relative to the repository: its mirror first, if it has one."""
    folder, _, name = module.rpartition("/")
    mirror = [f"{folder}/test_{name}" if folder else f"test_{name}"]
    return [f"tests/{test}.py" for test in (*([] if module in MIRRORLESS else mirror), *MORE_TESTS.get(module, ()))]
