"""The modules whose mutants are tested, and their tests: those of the same folder, and named others.

Ordinary tests read this file, so that it imports no cosmic-ray.
"""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).parents[2]
# Patterns of the modules below hflray/. The tests of a module are those of tests/ROOM, its topmost folder.
CORE = (
    "cost.py", "metrics.py", "seeding.py", "timeline.py", "fleet/fleet.py", "support/checkpoint.py",
    "scheduling/base.py", "scheduling/clustering.py", "scheduling/ikc.py", "scheduling/simple.py",
    "data/partition.py", "assignment/features.py", "assignment/hfel.py", "rl/sampling.py", "rl/env.py",
    "reproduction/judge.py", "training/plan.py", "training/nodes.py", "training/exchange.py",
    "training/differences.py", "training/privacy.py",
    "training/rules/*.py", "aggregation/*.py", "compression/*.py",
    "world/*.py",
)  # fmt: skip
# Tests beside those of the room, by the beginning of the module's path. A module of no room has these alone.
MORE = {
    "cost": ("tests/test_cost.py",),
    "metrics": ("tests/test_metrics.py",),
    "seeding": ("tests/test_seeding.py",),
    "timeline": ("tests/test_timeline.py",),
    "aggregation/": ("tests/training/test_driver.py", "tests/test_options.py"),
    "compression/": ("tests/training/test_driver.py", "tests/test_options.py"),
    "assignment/": ("tests/test_options.py",),
}
MODULES = tuple(
    path.relative_to(ROOT / "hflray").with_suffix("").as_posix()
    for pattern in CORE
    for path in sorted((ROOT / "hflray").glob(pattern))
    if path.name != "__init__.py"
)


def source_of(module: str) -> str:
    """Return the path of a module's source, relative to the repository."""
    return f"hflray/{module}.py"


def tests_of(module: str) -> list[str]:
    """Return the paths of a module's tests, relative to the repository."""
    room, _, name = module.partition("/")
    more = [path for beginning, paths in MORE.items() if module.startswith(beginning) for path in paths]
    return [*([f"tests/{room}"] if name else []), *more]
