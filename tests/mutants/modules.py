"""The modules whose mutants are tested, and their tests. Ordinary tests read it, so that it imports no cosmic-ray."""

from __future__ import annotations

MODULES = (
    "fleet/fleet",
    "cost", "metrics", "seeding", "timeline", "support/checkpoint", "scheduling/base", "scheduling/clustering",
    "scheduling/fedavg", "scheduling/ikc", "scheduling/vkc", "data/partition", "assignment/features", "assignment/hfel",
    "rl/replay", "rl/env", "reproduction/judge",
    "training/plan", "training/cloud", "training/edge", "training/exchange", "training/differences", "training/privacy",
    *(f"training/rules/{name}" for name in ("base", "feddyn", "fednova", "fedprox", "mtgc", "own", "scaffold")),
    *(f"aggregation/{name}" for name in ("base", "fixed_point", "mean", "robust", "server_optimisers")),
    *(f"compression/{name}" for name in ("base", "qsgd", "sign", "top_k")),
    *(f"world/{name}" for name in (
        "availability", "battery", "draws", "dropout", "edge_failure", "fading", "fate", "faulty", "jitter", "mobility",
        "motion", "outlook", "part", "shadowing", "spells", "trace", "uplink", "world",
    )),
)  # fmt: skip
# These have no mirror: real rounds, and the parts that use them, test them.
MIRRORLESS = (
    "training/cloud", "training/edge", "training/exchange", *(module for module in MODULES if "/rules/" in module),
    *(f"aggregation/{name}" for name in ("base", "mean", "robust", "server_optimisers")),
    *(f"compression/{name}" for name in ("base", "qsgd", "sign", "top_k")),
)  # fmt: skip
# The tests of a module beside its mirror.
_ALGORITHM = ("training/test_algorithm1",)
_AGGREGATORS, _COMPRESSORS = ("aggregation/test_aggregators",), ("compression/test_compressors",)
_RULES = ("training/test_local_rules",)
MORE_TESTS = {
    "scheduling/base": ("scheduling/test_fedavg", "scheduling/test_vkc"),
    "training/plan": (*_RULES, *_ALGORITHM),
    "training/cloud": (*_AGGREGATORS, *_RULES, *_ALGORITHM),
    "training/edge": ("training/test_privacy", *_ALGORITHM),
    "training/exchange": ("training/test_privacy", *_ALGORITHM),
    **{module: (*_RULES, *_ALGORITHM) for module in MODULES if "/rules/" in module},
    **{f"aggregation/{name}": (*_AGGREGATORS, *_ALGORITHM) for name in ("base", "mean", "robust", "server_optimisers")},
    **{f"compression/{name}": (*_COMPRESSORS, *_ALGORITHM) for name in ("base", "qsgd", "sign", "top_k")},
    **{f"world/{name}": ("world/test_trace",) for name in ("availability", "edge_failure", "mobility")},
}


def source_of(module: str) -> str:
    """Return the path of a module's source, relative to the repository."""
    return f"hflray/{module}.py"


def tests_of(module: str) -> list[str]:
    """Return the paths of a module's tests, relative to the repository: its mirror first, if it has one."""
    folder, _, name = module.rpartition("/")
    mirror = [f"{folder}/test_{name}" if folder else f"test_{name}"]
    return [f"tests/{test}.py" for test in (*([] if module in MIRRORLESS else mirror), *MORE_TESTS.get(module, ()))]
