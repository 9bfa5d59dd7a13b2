"""Compiles the kernels that a sweep will use, in a process of its own, while data are checked and Ray starts.

What is compiled lies on the disk from then on. A trial that needs a kernel before it is there waits for this process
(`hflray.allocation.jit`), and compiles what this one has not thought of.
"""

from __future__ import annotations

import gc
import hashlib
import os
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from hflray.config import ExperimentConfig
from hflray.sweep import Trial
from hflray.training.machine import cache_folder, cpu_model

PACKAGE = Path(__file__).parents[1]
MOST_LINKS = 1_000_000  # N·M beyond which a fleet drawn for this would take longer than it saves
SEARCHES = ("hfel", "local_search")  # assigners that are compiled


def begin(trials: Sequence[Trial]) -> None:
    """Start the process, unless all has been compiled before."""
    configs: dict[str, ExperimentConfig] = {}
    for trial in trials:
        config = trial.config
        small = config.fleet.num_devices * config.fleet.num_edges <= MOST_LINKS
        if config.allocation.method == "newton" and small:
            configs.setdefault(what_for(config), config)
    for kernels, config in configs.items():
        stamp = cache_folder("kernels") / stamp_name(kernels)
        if not stamp.exists():
            subprocess.Popen(
                [sys.executable, "-m", __name__, config.model_dump_json(), str(stamp)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )


def what_for(config: ExperimentConfig) -> str:
    """A name of the kernels that a configuration uses: those of the same name are compiled once."""
    polished = config.assignment.name == "d3qn" and config.assignment.polish_ms
    search = "local_search" if polished else config.assignment.name
    return f"{config.allocation.coupling} {search if search in SEARCHES else 'no search'}"


def stamp_name(kernels: str) -> str:
    """Name of the file that says that these kernels are in the cache: of these sources, on this CPU."""
    digest = hashlib.sha256("\0".join([kernels, sys.version, cpu_model(), str(PACKAGE)]).encode())
    digest.update("\0".join(f"{name}={os.environ[name]}" for name in sorted(os.environ) if "NUMBA" in name).encode())
    for folder in ("allocation", "assignment"):
        for path in sorted((PACKAGE / folder).rglob("*.py")):
            digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def compile_for(config: ExperimentConfig) -> None:
    """Assign and allocate a round of the fleet of a configuration."""
    import numpy as np

    from hflray.allocation import allocate_round
    from hflray.assignment import build_assigner
    from hflray.cost import Workload
    from hflray.fleet import sample_fleet
    from hflray.seeding import stream

    gc.disable()  # a tenth of the time of a compilation, in a process that ends with it
    fleet = sample_fleet(config.fleet, stream(config.seed, "fleet")).with_samples([500] * config.fleet.num_devices)
    work = Workload.of(config, 1e6)
    devices = np.arange(config.scheduling.num_scheduled)
    coupling = config.allocation.coupling
    assignment = devices % config.fleet.num_edges
    allocate_round(fleet, work, devices, assignment, coupling=coupling)
    name = what_for(config).partition(" ")[2]
    if name in SEARCHES:
        build_assigner(name, coupling=coupling).assign(fleet, work, devices, stream(config.seed, "assign"))


def main(arguments: Sequence[str]) -> None:
    """Compile for a configuration given as JSON; leave the file given after it."""
    config, stamp = arguments
    compile_for(ExperimentConfig.model_validate_json(config))
    with suppress(OSError):
        Path(stamp).touch()


if __name__ == "__main__":
    main(sys.argv[1:])
