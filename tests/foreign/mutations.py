"""Changes of values and bytes, each a function of the random generator."""

from __future__ import annotations

import copy
import io
import json
import random
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import parquet
from safetensors import safe_open
from safetensors.numpy import save as as_safetensors

from hflray.support.checksum import SHA256, digest, stamped

ODD = (
    None, True, 0, -1, 1.5, 1e308, float("nan"), float("inf"), 10**30, "", "x", "1", "\x1b]52;c;eA==\x07", "\ud800",
    "\0", "../../x", "λ" * 3000, [], {}, [[]], [None], ["x"], [1, "x"], {"a": 1}, {"": None}, [[1, 2], [3]],
    list(range(2000)),
)  # fmt: skip


def swap(tree: Any, rng: random.Random) -> tuple[Any, str]:
    """Return a copy of a tree with one value replaced, removed, doubled or renamed, and what was done.

    Values near the top are taken as often as the many below them.
    """
    tree = copy.deepcopy(tree)
    if rng.random() < 0.03:
        odd = rng.choice(ODD)
        return odd, f"all := {odd!r:.40}"
    place, key, depth = tree, rng.choice(list(tree) if isinstance(tree, dict) else range(len(tree))), 0
    while isinstance(place[key], dict | list) and place[key] and rng.random() < 0.8:
        place, depth = place[key], depth + 1
        key = rng.choice(list(place) if isinstance(place, dict) else range(len(place)))
    kind = rng.random()
    if kind < 0.1:
        del place[key]
        return tree, f"-{key!r:.40} at {depth}"
    if kind < 0.15 and isinstance(place, list):
        place.append(copy.deepcopy(place[key]))
        return tree, f"doubled {key!r:.40} at {depth}"
    if kind < 0.18 and isinstance(place, dict):
        place["unknown"] = place.pop(key)
        return tree, f"renamed {key!r:.40} at {depth}"
    odd = rng.choice(ODD)
    place[key] = odd
    return tree, f"{key!r:.40} at {depth} := {odd!r:.40}"


def as_json(tree: Any) -> bytes:
    """Return a tree as JSON, which keeps half characters as escapes."""
    return json.dumps(tree).encode()


def swapped_json(content: bytes, rng: random.Random) -> tuple[bytes, str]:
    """Swap a value of a JSON file, with a checksum that fits if it had one."""
    tree = json.loads(content)
    changed, what = swap({name: value for name, value in tree.items() if name != SHA256}, rng)
    if SHA256 in tree and isinstance(changed, dict):
        changed = stamped(changed)
    return as_json(changed), what


def swapped_line(content: bytes, rng: random.Random) -> tuple[bytes, str]:
    """Swap a value of a journal's line, with a checksum that fits."""
    lines = content.decode().splitlines()
    number = rng.randrange(len(lines))
    entry = json.loads(lines[number])
    entry.pop("crc32")
    if "artifacts" in entry and rng.random() < 0.4:
        name = rng.choice(list(entry["artifacts"]))
        text, what = swapped_bytes(entry["artifacts"][name].encode(), rng)
        entry["artifacts"][name], changed = text.decode(errors="replace"), entry
    else:
        changed, what = swap(entry, rng)
    if isinstance(changed, dict) and changed:
        lines[number] = _line(changed)
        assert "\n" not in lines[number]
    else:
        lines[number] = json.dumps(changed)
    if rng.random() < 0.1:
        lines.append(lines[number])
    return "".join(f"{line}\n" for line in lines).encode(), f"line {number}: {what}"


def swapped_bytes(content: bytes, rng: random.Random) -> tuple[bytes, str]:
    """Flip, cut, insert, remove or repeat bytes."""
    data, at = bytearray(content), rng.randrange(len(content))
    kind = rng.choice(("flip", "flip", "flip", "cut", "insert", "remove", "repeat", "empty"))
    length = rng.choice((1, 2, 8, 300))
    if kind == "flip":
        for _ in range(rng.choice((1, 1, 4))):
            data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    elif kind == "cut":
        del data[at:]
    elif kind == "insert":
        data[at:at] = rng.randbytes(length)
    elif kind == "remove":
        del data[at : at + length]
    elif kind == "repeat":
        data[at:at] = data[at : at + length]
    else:
        data.clear()
    return bytes(data), f"{kind} at {at}"


# Values that fill a column of a table.
VALUES = ("\x1b]52;c;eA==\x07", [1.0], float("nan"), 2**62, -5, {"a": 1}, True, list(range(50)), b"\xff", ["a", "b"],
          [[1]], None)  # fmt: skip


def _column(rng: random.Random, length: int) -> pa.Array:
    made = [pa.array([value] * length) for value in VALUES]
    made += [pa.array([0.5 + n for n in range(length)]), pa.array([list(range(n % 4)) for n in range(length)])]
    return rng.choice([*made, pa.array([0] * length, pa.timestamp("s"))])


def swapped_parquet(content: bytes, rng: random.Random) -> tuple[bytes, str]:
    """Replace a column of a table by one of another type, remove it, or repeat rows."""
    table = parquet.read_table(io.BytesIO(content))
    number = rng.randrange(table.num_columns)
    name, kind = table.column_names[number], rng.random()
    if kind < 0.05:
        table, what = pa.concat_tables([table, table]), "rows twice"
    elif kind < 0.1:
        table, what = table.slice(0, 0), "no row"
    elif kind < 0.15:
        table, what = table.remove_column(number), "none"
    else:
        column = _column(rng, len(table))
        table, what = table.set_column(number, name, column), str(column.type)
    stream = io.BytesIO()
    parquet.write_table(table, stream)
    return stream.getvalue(), f"{name}: {what}"


def with_members(path: Path, change: Callable[[dict[str, bytes]], Any]) -> Any:
    """Let a function change the members of a zip file, by name, and return its answer."""
    with zipfile.ZipFile(path) as archive:
        files = {name: archive.read(name) for name in archive.namelist()}
    answer = change(files)
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return answer


def with_entries(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Let a function change each entry of a journal, with checksums that fit."""
    entries = [json.loads(line) for line in path.read_text().splitlines()]
    for entry in entries:
        entry.pop("crc32")
        change(entry)
    path.write_text("".join(f"{_line(entry)}\n" for entry in entries))


def _line(entry: dict[str, Any]) -> str:
    body = json.dumps(entry)[:-1]
    return f'{body}, "crc32": "{zlib.crc32(body.encode()):08x}"}}'


def in_zip(path: Path, change: Any, rng: random.Random, ending: str) -> str:
    """Change one of the members of a zip file whose names end so."""

    def one_of(files: dict[str, bytes]) -> str:
        name = rng.choice(sorted(name for name in files if name.endswith(ending)))
        files[name], what = change(files[name], rng)
        return f"{name}: {what}"

    return str(with_members(path, one_of))


def with_policy(path: Path, change: Callable[[dict[str, Any], dict[str, Any]], Any]) -> Any:
    """Let a function change a policy's header and tensors, write them with a checksum that fits; return its answer."""
    import torch

    from hflray.assignment.policy import _digest

    with safe_open(path, framework="np") as reader:
        head = json.loads(reader.metadata()["hflray_policy"])
        tensors = {name: reader.get_tensor(name) for name in reader.keys()}  # noqa: SIM118
    answer = change(head, tensors)
    text, whole = json.dumps(head), {name: np.ascontiguousarray(tensor) for name, tensor in tensors.items()}
    digest_ = _digest(text, {name: torch.as_tensor(tensor) for name, tensor in whole.items()})
    path.write_bytes(as_safetensors(whole, {"hflray_policy": text, "sha256": digest_}))
    return answer


def swapped_policy(path: Path, rng: random.Random) -> str:
    """Swap a value of a policy's header, or a tensor, with a checksum that fits."""

    def change(head: dict[str, Any], tensors: dict[str, Any]) -> str:
        if rng.random() < 0.3:
            name = rng.choice(sorted(tensors))
            odd = rng.choice((np.zeros(3, np.float32), np.zeros((0, 2), np.float64),
                              np.full(tensors[name].shape, np.nan), tensors[name].astype(np.int32),
                              tensors[name].ravel()))  # fmt: skip
            tensors[name] = odd
            return f"{name}: {odd.dtype} {odd.shape}"
        changed, what = swap(head, rng)
        head.clear()
        head.update(changed if isinstance(changed, dict) else {"": changed})
        return what

    return str(with_policy(path, change))


def swapped_npz(path: Path, rng: random.Random) -> str:
    """Replace an array of a file of arrays, or remove it."""
    with np.load(path) as archive:
        arrays = {name: archive[name] for name in archive.files}
    name = rng.choice(sorted(arrays))
    odd: Any = rng.choice((None, np.zeros(3), np.array("x"), np.zeros((2, 2, 2)), np.array([], int), np.array([-1]),
                      arrays[name][:1] if arrays[name].ndim else 1, np.full(5, np.nan), np.array([2**62]),
                      np.array([1, 2], "datetime64[s]"), arrays[name].astype(complex),
                      np.zeros(2, [("a", int)])))  # fmt: skip
    arrays.pop(name)
    if odd is not None:
        arrays[name] = odd
    np.savez(path, **arrays)
    return f"{name}: {None if odd is None else np.asarray(odd).dtype}"


def in_checkpoint(path: Path, rng: random.Random, ending: str) -> str:
    """Change a member of a checkpoint, with checksums that fit."""
    content = path.read_bytes().partition(b"\n")[2]
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        files = {name: archive.read(name) for name in archive.namelist()}
    name = next(each for each in files if each.endswith(ending))
    if ending == ".json":
        files[name], what = swapped_json(files[name], rng)
    else:
        files[name], what = swapped_bytes(files[name], rng)
        state = next(each for each in files if each.endswith(".json"))
        values = {key: value for key, value in json.loads(files[state]).items() if key != SHA256}
        files[state] = as_json(stamped(values | {"arrays_sha256": digest(files[name])}))
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        for each, text in files.items():
            archive.writestr(each, text)
    path.write_bytes(digest(stream.getvalue()).encode() + b"\n" + stream.getvalue())
    return what


def in_zip_of_checkpoint(path: Path, rng: random.Random) -> str:
    """Change bytes of a checkpoint's zip file, with a checksum that fits."""
    content, what = swapped_bytes(path.read_bytes().partition(b"\n")[2], rng)
    path.write_bytes(digest(content).encode() + b"\n" + content)
    return what
