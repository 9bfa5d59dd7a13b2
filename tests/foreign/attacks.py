"""Files that are made to exhaust, to stop or to mislead their reader, written in place of those of a sample."""

from __future__ import annotations

import io
import os
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import parquet

from tests.foreign.mutations import with_entries, with_members
from tests.foreign.samples import FOLDER, NAME

DEEP = b"[" * 200_000 + b"]" * 200_000
ALIASES = "a: &a0 [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"b{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 12)
)


def bomb(name: str, gigabytes: int) -> bytes:
    """Return a ZIP file of a megabyte a gigabyte of zeros, which is what DEFLATE can do."""
    flush = zlib.compressobj(9, zlib.DEFLATED, -15)
    block = flush.compress(bytes(2**20)) + flush.flush(zlib.Z_FULL_FLUSH)
    data = block * (1024 * gigabytes) + flush.flush()
    size = 2**30 * gigabytes
    stem = name.encode()
    # Sizes above 4 GiB would need ZIP64, so the file says a smaller one, as a liar would.
    head = struct.pack("<HHHHHLLLHH", 20, 0, 8, 0, 33, 0, len(data), min(size, 2**32 - 2), len(stem), 0)
    local = b"PK\3\4" + head + stem + data
    entry = b"PK\1\2" + struct.pack("<H", 20) + head[:-2] + struct.pack("<HHHHLL", 0, 0, 0, 0, 0, 0) + stem
    return local + entry + b"PK\5\6" + struct.pack("<HHHHLLH", 0, 0, 1, 1, len(entry), len(local), 0)


def table(rows: int, groups: int) -> bytes:
    """Return a table of `rows` × `groups` rows with the same values, which take a few bytes."""
    stream = io.BytesIO()
    part = pa.table({"run": pa.array(["x"] * rows).dictionary_encode(), "round": np.zeros(rows, np.int64)})
    with parquet.ParquetWriter(stream, part.schema, compression="zstd") as writer:
        for _ in range(groups):
            writer.write_table(part, row_group_size=rows)
    return stream.getvalue()


def texts() -> bytes:
    """Return a table whose rows all hold the same long text."""
    stream = io.BytesIO()
    long = pa.DictionaryArray.from_arrays(np.zeros(100_000, np.int32), ["x" * 2**20])
    parquet.write_table(pa.table({"run": long, "round": np.arange(100_000)}), stream, compression="zstd")
    return stream.getvalue()


def _in_export(name: str, content: Callable[[], bytes]) -> Callable[[Path], None]:
    def attack(root: Path) -> None:
        with_members(root / "exports" / f"{NAME}.zip", lambda files: files.update({name: content()}))

    return attack


def _instead(pattern: str, make: Callable[[Path], object]) -> Callable[[Path], None]:
    def attack(root: Path) -> None:
        path = sorted(root.glob(pattern))[0]
        path.unlink()
        make(path)

    return attack


def _aliases(root: Path) -> None:
    def change(entry: dict[str, Any]) -> None:
        if "artifacts" in entry:
            entry["artifacts"]["config.yaml"] = ALIASES

    for path in root.glob(f"results/{FOLDER}/journal/*.jsonl"):
        with_entries(path, change)


def _zero(path: Path) -> None:
    path.symlink_to("/dev/zero")


def _outside(path: Path) -> None:
    path.symlink_to("/etc/hostname")


def _deep(path: Path) -> None:
    path.write_bytes(DEEP)


EXPORT = {
    "nested JSON in an export": _in_export("runs.json", lambda: DEEP),
    "a ZIP bomb": _instead(f"exports/{NAME}.zip", lambda path: path.write_bytes(bomb("runs.json", 8))),
    "a table of many rows": _in_export("rounds.parquet", lambda: table(1_000_000, 60)),
    "a table of long texts": _in_export("rounds.parquet", texts),
    "a pipe as an export": _instead(f"exports/{NAME}.zip", os.mkfifo),
    "a link to /dev/zero as an export": _instead(f"exports/{NAME}.zip", _zero),
}
FILES = {"sweep.json": f"results/{FOLDER}/sweep.json", "a journal": f"results/{FOLDER}/journal/*ikc*.jsonl",
         "a checkpoint": f"results/{FOLDER}/checkpoints/*ikc*/*"}  # fmt: skip
RESULTS = {
    "aliases in a configuration": _aliases,
    **{
        f"{what} as {name}": _instead(pattern, make)
        for name, pattern in FILES.items()
        for what, make in (
            ("nested JSON", _deep),
            ("a pipe", os.mkfifo),
            ("a link to /dev/zero", _zero),
            ("a link outside", _outside),
        )
    },
}
POLICY = {
    "a pipe": _instead("files/assigner.safetensors", os.mkfifo),
    "a link to /dev/zero": _instead("files/assigner.safetensors", _zero),
    "a data set that unpacks to gigabytes": _instead(
        "files/data.npz", lambda path: path.write_bytes(bomb("x_train.npy", 8))
    ),
}
