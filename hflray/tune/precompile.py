"""A process that compiles the kernels of a sweep while the command checks data and Ray starts.

Compiled kernels are cached on the disk. A trial that needs a kernel which is being compiled waits for this process
(`hflray.allocation.kernels.jit`), and a trial compiles the kernels that this process does not compile.
"""

from __future__ import annotations

import gc
import hashlib
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from hflray.config import ExperimentConfig
from hflray.support.cache import cache_folder, cpu_model
from hflray.sweep import Trial

PACKAGE = Path(__file__).parents[1]
MAX_LINKS = 1_000_000  # N·M; for a larger fleet the draw would take longer than the compilation saves
SEARCHES = ("hfel", "local_search")  # the assigners with compiled kernels


def begin(trials: Sequence[Trial]) -> list[subprocess.Popen[bytes]]:
    """Start a process for each set of kernels that is not in the cache, and return the processes."""
    processes = []
    configs: dict[str, ExperimentConfig] = {}
    for trial in trials:
        config = trial.config
        small = config.fleet.num_devices * config.fleet.num_edges <= MAX_LINKS
        if config.allocation.method in ("newton", "fixed_cpu") and small:
            configs.setdefault(kernels_name(config), config)
    for kernels, config in configs.items():
        stamp = cache_folder("kernels") / stamp_name(kernels)
        if not stamp.exists():
            process = subprocess.Popen(
                [sys.executable, "-m", __name__, config.model_dump_json(), str(stamp)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
            processes.append(process)
    return processes


def announce(processes: Sequence[subprocess.Popen[bytes]], tell: Callable[[str], None]) -> None:
    """Tell the user that kernels are being compiled, and after how long they are; return at once."""
    if not processes:
        return
    began = time.monotonic()
    tell("compiling the kernels of this sweep in the background, once on this machine")

    def wait() -> None:
        failed = [process for process in processes if process.wait() != 0]
        if failed:
            tell("the kernels could not be compiled beforehand; the trials compile them")
        else:
            tell(f"compiled the kernels of this sweep in {time.monotonic() - began:.0f} s")

    threading.Thread(target=wait, name="hflray-kernels", daemon=True).start()


def kernels_name(config: ExperimentConfig) -> str:
    """Return the name of the kernels that a configuration uses. Kernels of the same name are compiled once."""
    polished = config.assignment.name == "d3qn" and config.assignment.polish_ms
    search = "local_search" if polished else config.assignment.name
    return f"{config.allocation.coupling} {search if search in SEARCHES else 'no search'}"


def stamp_name(kernels: str) -> str:
    """Return the name of the file that marks these kernels as cached for the present sources and this CPU."""
    digest = hashlib.sha256("\0".join([kernels, sys.version, cpu_model(), str(PACKAGE)]).encode())
    digest.update("\0".join(f"{name}={os.environ[name]}" for name in sorted(os.environ) if "NUMBA" in name).encode())
    for folder in ("allocation", "assignment"):
        for path in sorted((PACKAGE / folder).rglob("*.py")):
            digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def compile_for(config: ExperimentConfig) -> None:
    """Compile the kernels of a configuration by assigning and allocating a round of its fleet."""
    import numpy as np

    from hflray.allocation import allocate_round
    from hflray.assignment import build_assigner
    from hflray.cost import Workload
    from hflray.fleet import sample_fleet
    from hflray.seeding import stream

    gc.disable()  # this saves a tenth of the compilation's time, and the process ends afterwards
    fleet = sample_fleet(config.fleet, stream(config.seed, "fleet")).with_samples([500] * config.fleet.num_devices)
    work = Workload.of(config, 1e6)
    devices = np.arange(config.scheduling.num_scheduled)
    coupling = config.allocation.coupling
    assignment = devices % config.fleet.num_edges
    allocate_round(fleet, work, devices, assignment, coupling=coupling)
    name = kernels_name(config).partition(" ")[2]
    if name in SEARCHES:
        build_assigner(name, coupling=coupling).assign(fleet, work, devices, stream(config.seed, "assign"))


def main(arguments: Sequence[str]) -> None:
    """Compile the kernels of the configuration in the first argument (JSON) and create the file in the second."""
    config, stamp = arguments
    compile_for(ExperimentConfig.model_validate_json(config))
    with suppress(OSError):
        Path(stamp).touch()


if __name__ == "__main__":
    main(sys.argv[1:])
