"""A cache of fleets that are solved ahead and in parallel, so that training never waits for a teacher.

The cache is a folder with ``spec.json`` and ``fleets-FIRST-END.npz``, and holds no pickles. Both carry checksums: the
specification its hash, and an npz archive a CRC-32 of each array. Each fleet is a function of the specification and the
fleet's number. A cache can therefore grow while it is read, and two machines make the same cache.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from hflray.assignment import build_assigner
from hflray.assignment.objective import Hop, RoundProblem
from hflray.data.npz import UNREADABLE, read_archive
from hflray.errors import ConfigError
from hflray.rl.fleets import FORMAT, FleetSpec, SolvedFleet
from hflray.support.files import replacing, write
from hflray.support.limits import available_cpus
from hflray.support.reader import read_json

SPEC = "spec.json"
SHARD = 250  # fleets per file; finished files stay if the process is stopped


class FleetPool:
    """The solved fleets of a cache, in memory. A pool is read-only.

    Args:
        folder: the cache.
        count: number of fleets to use, from the first; None: all.

    Raises:
        ConfigError: `folder` is no cache, or holds fewer fleets than `count`.
    """

    def __init__(self, folder: str | Path, count: int | None = None) -> None:
        self.folder, self.spec = Path(folder), read_spec(Path(folder))
        self.fleets: list[SolvedFleet] = []
        self.solve_s = 0.0
        for first, end, path in _shards(self.folder):
            if first <= len(self.fleets) < end:
                fleets, solve_s = _read_shard(path)
                self.fleets += fleets[len(self.fleets) - first :]
                self.solve_s += solve_s
        if count is not None:
            if len(self.fleets) < count:
                raise ConfigError(
                    f"learning.fleets: {count} wanted, {self.folder} holds {len(self.fleets)}; solve the rest with "
                    f"hflray.rl.solved_fleets.prepare(spec, {count}, folder)"
                )
            del self.fleets[count:]

    def __len__(self) -> int:
        return len(self.fleets)

    def __getitem__(self, index: int) -> SolvedFleet:
        return self.fleets[index]


def read_spec(folder: Path) -> FleetSpec:
    """Return the specification of a cache.

    Raises:
        ConfigError: `folder` is no cache, a cache of another format, or its specification is damaged.
    """
    try:
        content = read_json(folder / SPEC)
        if content["format"] != FORMAT:
            raise ValueError(f"format {content['format']}, this hflray reads {FORMAT}")
        spec = FleetSpec.from_dict(content["spec"])
        if content["hash"] != spec.hash:
            raise ValueError("its checksum differs")
        return spec
    except (OSError, ValueError, KeyError, TypeError, AttributeError, ConfigError) as error:
        reason = str(error).partition("\n")[0]
        raise ConfigError(
            f"learning.cache: {folder} holds no solved fleets ({reason}); give another folder, or remove it"
        ) from error


def check_same(folder: Path, cached: FleetSpec, required: FleetSpec) -> None:
    """Raise a ConfigError that names the differences if a cache holds another specification than the required one."""
    if cached.hash == required.hash:
        return
    cached_values, required_values = (values | values.pop("fleet") for values in (cached.to_dict(), required.to_dict()))
    differ = [
        f"{key} = {cached_values[key]} in the cache, {required_values[key]} in the configuration"
        for key in required_values
        if cached_values.get(key) != required_values[key]
    ]
    raise ConfigError(
        f"learning.cache: {folder} holds fleets of another configuration ({'; '.join(differ)}); give another folder, "
        "null for a folder of the configuration's own, or the configuration that made this cache"
    )


def prepare(
    spec: FleetSpec,
    count: int,
    folder: str | Path | None = None,
    *,
    workers: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> FleetPool:
    """Solve those of the first `count` fleets of `spec` that its cache lacks, and open the cache.

    Args:
        spec: the specification of the fleets.
        count: the number of fleets.
        folder: the cache; None: a folder of the specification's own under ``~/.cache/hflray/fleets``.
        workers: number of solving threads (the kernels release the interpreter lock); None: one per CPU.
        progress: called with the number of solved fleets and `count`.

    Raises:
        ConfigError: the cache is of another specification, or a teacher's option is unknown.
    """
    target = Path(folder if folder is not None else f"~/.cache/hflray/fleets/{spec.hash}").expanduser()
    if (target / SPEC).exists():
        check_same(target, read_spec(target), spec)
    elif target.is_dir() and any(target.iterdir()):
        raise ConfigError(f"learning.cache: {target} is not empty and not a cache; give another folder, or empty it")
    else:
        build_assigner(spec.teacher, **spec.options)  # raise for an unknown option before making a folder
        target.mkdir(parents=True, exist_ok=True)
        content = {"format": FORMAT, "hash": spec.hash, "spec": spec.to_dict()}
        write(target / SPEC, json.dumps(content, indent=1))
    solved = _solved(target)
    if progress:
        progress(min(solved, count), count)
    step = max(1, min(SHARD, count - solved))
    while solved < count:
        end = min(solved + step, count)
        begin = time.perf_counter()
        with ThreadPoolExecutor(workers or len(available_cpus())) as threads:
            fleets = list(threads.map(spec.solve, range(solved, end)))
        write_shard(target / f"fleets-{solved:08d}-{end:08d}.npz", fleets, time.perf_counter() - begin)
        solved = end
        if progress:
            progress(solved, count)
    return FleetPool(target, count)


_PER_DEVICE = ("cycles", "power", "cap")
_SCALARS = ("iterations", "weight", "bits", "alpha")


def write_shard(path: Path, fleets: list[SolvedFleet], solve_s: float) -> None:
    """Write some solved fleets, and the seconds that solving them took, to a file of the cache."""
    problems = [fleet.problem for fleet in fleets]
    arrays: dict[str, Any] = {
        "h": np.array([len(p.cycles) for p in problems]),
        "m": np.array([len(p.bandwidth) for p in problems]),
        "snr": np.concatenate([p.snr.ravel() for p in problems]),
        "labels": np.concatenate([fleet.labels for fleet in fleets]),
        "objective": np.array([fleet.objective for fleet in fleets]),
        "cycles_per_sample": np.concatenate([fleet.cycles_per_sample for fleet in fleets]),
        "samples": np.concatenate([fleet.samples for fleet in fleets]),
        "solve_s": np.array(solve_s),
    }
    arrays |= {name: np.concatenate([getattr(p, name) for p in problems]) for name in (*_PER_DEVICE, "bandwidth")}
    arrays |= {f"hop_{name}": np.concatenate([getattr(p.hop, name) for p in problems]) for name in Hop._fields}
    arrays |= {name: np.array([getattr(p, name) for p in problems]) for name in _SCALARS}
    with replacing(path) as scratch:
        np.savez(scratch, **arrays)


def _read_shard(path: Path) -> tuple[list[SolvedFleet], float]:
    try:
        a = read_archive(path)
        if wrong := sorted(name for name, array in a.items() if array.dtype.kind not in "iuf"):
            raise ValueError(f"{wrong[0]} holds no numbers")
        h, m = np.concatenate([[0], a["h"].cumsum()]), np.concatenate([[0], a["m"].cumsum()])
        links = np.concatenate([[0], (a["h"] * a["m"]).cumsum()])
        fleets = []
        for i in range(len(a["h"])):
            device, edge = slice(h[i], h[i + 1]), slice(m[i], m[i + 1])
            values: dict[str, Any] = {name: a[name][device] for name in _PER_DEVICE}
            values |= {"bandwidth": a["bandwidth"][edge], "hop": Hop(a["hop_delay"][edge], a["hop_energy"][edge])}
            values |= {name: float(a[name][i]) for name in _SCALARS}
            snr = a["snr"][links[i] : links[i + 1]].reshape(a["m"][i], a["h"][i])
            problem = RoundProblem(snr=snr, **values)
            objective = float(a["objective"][i])
            per_device = a["cycles_per_sample"][device], a["samples"][device]
            fleets.append(SolvedFleet(problem, a["labels"][device], objective, *per_device))
        return fleets, float(a["solve_s"])
    except (*UNREADABLE, LookupError, TypeError) as error:
        raise ConfigError(f"{path}: a damaged file of solved fleets ({error}); remove it and run again") from error


def _shards(folder: Path) -> list[tuple[int, int, Path]]:
    """Return (first, end, path) of the fleet files, in order; of two with the same first number the longer is last."""
    shards = []
    for path in folder.glob("fleets-*-*.npz"):
        _, first, end = path.stem.split("-")
        shards.append((int(first), int(end), path))
    return sorted(shards)


def _solved(folder: Path) -> int:
    count = 0
    for first, end, _ in _shards(folder):
        count = max(count, end) if first <= count else count
    return count
