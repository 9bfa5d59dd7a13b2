"""One reader for each format of a file that somebody else may have made: bytes, JSON, YAML, ZIP and Parquet.

A results folder, an export, a checkpoint or a policy may come from a stranger. A reader therefore takes plain files
only, and counts what a file would become before it is made: a few kilobytes of brackets, aliases, compressed zeros or
repeated values must not fill the memory. Whatever is wrong with a file is a ValueError with a reason for one line, to
which the caller adds the file's name and the fix.
"""

from __future__ import annotations

import base64
import io
import json
import os
import stat
import zipfile
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from hflray.support.text import one_line, shorten

if TYPE_CHECKING:
    import pyarrow
    from pydantic import BaseModel

MOST_BYTES = 2**28  # of a file that is read as a whole
MOST_VALUES = 4_000_000  # in a text of JSON: an empty list takes 64 bytes, of which its text is three
MOST_DEPTH = 50  # values inside values
TOO_DEEP = f"values are nested too deeply; accepted: {MOST_DEPTH} levels; write them flatter"
MOST_CHARACTERS = 200_000  # of a YAML text; PyYAML reads about 50,000 characters in a second
MOST_NODES = 100_000  # of a YAML text with its aliases written out
MOST_ENTRIES = 10_000  # of a ZIP file
MOST_RATIO = 100  # of an unpacked ZIP file to the packed one, beyond `FREE_BYTES`
FREE_BYTES = 2**26
MOST_TABLE_BYTES = 2**28  # of a Parquet table in memory
BYTES_OF_A_LIST = 112  # that NumPy needs for each list in a column, beside its numbers
LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # libyaml reads the same values five times as fast
_SKIPPED_BYTES = 2**20  # a shorter text of JSON cannot hold too many values
_KINDS = {stat.S_IFDIR: "a directory", stat.S_IFIFO: "a pipe", stat.S_IFSOCK: "a socket", stat.S_IFCHR: "a device",
          stat.S_IFBLK: "a device"}  # fmt: skip


class UnfitError(ValueError):
    """A file is larger, deeper or of another kind than its reader accepts."""


def memory_share(share: float) -> int:
    """Return a share of this machine's memory in bytes."""
    return int(share * os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))


def refuse_link(path: Path, inside: Path) -> None:
    """Refuse a path that leads through a symbolic link below the folder `inside`, which may be a link itself.

    Raises:
        UnfitError: there is such a link.
    """
    place = path
    while place not in (inside, place.parent):
        if os.path.islink(place):
            raise UnfitError(f"{one_line(place.name)} is a symbolic link; put the file itself in its place")
        place = place.parent


def read_bytes(
    path: str | Path, most: int = MOST_BYTES, inside: Path | None = None, offset: int = 0, until: int | None = None
) -> bytes:
    """Return the content of a plain file, from the byte `offset` to the byte `until` or the end.

    Args:
        path: the path, which may be a link if the user names it.
        most: the most bytes that are accepted.
        inside: the folder of a stranger in which `path` was found, and below which no link is followed.

    Raises:
        OSError: the file cannot be read.
        UnfitError: it is no plain file, a link inside that folder, or larger.
    """
    if inside is not None:
        refuse_link(Path(path), inside)
    # Without O_NONBLOCK, opening a pipe waits for a writer.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    state = os.fstat(descriptor)
    if not stat.S_ISREG(state.st_mode):
        os.close(descriptor)
        raise UnfitError(f"it is {_KINDS.get(stat.S_IFMT(state.st_mode), 'another thing')}, and no plain file")
    with open(descriptor, "rb") as file:
        end = state.st_size if until is None else min(until, state.st_size)
        file.seek(offset)
        content = file.read(max(0, end - offset)) if end - offset <= most else b""
    if end - offset > most:
        raise UnfitError(f"it is larger than {most / 2**20:,.0f} MiB")
    return content


def read_json(path: str | Path, inside: Path | None = None) -> Any:
    """Return the value in a JSON file. Raises OSError, ValueError: see `read_bytes` and `parse_json`."""
    return parse_json(read_bytes(path, inside=inside))


def parse_json(content: bytes | str) -> Any:
    """Return the value of a JSON text.

    Raises:
        ValueError: it is no JSON in UTF-8, holds half a character, or is larger or deeper than accepted.
    """
    text = content if isinstance(content, str) else content.decode()
    opened = text.count("[") + text.count("{")
    if len(text) > _SKIPPED_BYTES and opened + text.count(",") > MOST_VALUES:
        raise UnfitError(f"it holds more than {MOST_VALUES:,} values")
    try:
        value = json.loads(text)
    except RecursionError:
        raise UnfitError("its values are nested too deeply") from None
    if opened > MOST_DEPTH:
        level = [value] if isinstance(value, dict | list) else []
        for _ in range(MOST_DEPTH):  # each time, what is inside the containers of the level before
            level = [child for outer in level for child in (outer.values() if isinstance(outer, dict) else outer)
                     if isinstance(child, dict | list)]  # fmt: skip
        if level:
            raise UnfitError(f"its values are nested too deeply; accepted: {MOST_DEPTH} levels")
    if "\\ud" in text or "\\uD" in text:
        json.dumps(value, ensure_ascii=False).encode()  # raises an error for half a character
    return value


def inflate(text: str, most: int) -> bytes:
    """Return what a compressed text in Base64 holds. Raises ValueError: it is damaged, or holds more bytes."""
    inflater = zlib.decompressobj()
    try:
        content = inflater.decompress(base64.b64decode(text, validate=True), most)
    except zlib.error as error:
        raise ValueError(str(error)) from error
    if not inflater.eof:
        raise UnfitError("it is cut off, or too large")
    return content


def fit(schema: type[BaseModel], value: Any) -> Any:
    """Return a value as its schema, whose types must hold exactly. Raises UnfitError: it names the first wrong key."""
    from pydantic import ValidationError

    try:
        return schema.model_validate(value, strict=True)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        key = ".".join(str(part) for part in first["loc"]) or "its content"
        got = "" if first["type"] == "missing" else f", and not {shorten(first['input'])}"
        raise UnfitError(f"{one_line(key)[:80]}: {one_line(first['msg'])}{got}") from None


def parse_yaml(text: str, kind: Any = LOADER) -> Any:
    """Return the value of a YAML text of plain values, by a kind of loader.

    Raises:
        ValueError: it is no such text, or it is larger or deeper than accepted, with its aliases written out.
    """
    if len(text) > MOST_CHARACTERS:
        raise UnfitError(f"the text is too long; accepted: at most {MOST_CHARACTERS:,} characters")
    loader = None
    try:
        loader = kind(text)
        node = loader.get_single_node()
        if node is None:
            return None
        check_extent(node)
        return loader.construct_document(node)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f" at line {mark.line + 1}" if mark else ""
        problem = getattr(error, "problem", None) or str(error).partition("\n")[0]
        raise ValueError(f"not valid YAML{line}: {one_line(problem)}") from error
    except RecursionError:
        raise UnfitError(TOO_DEEP) from None
    except UnfitError:
        raise
    except (ValueError, TypeError, AttributeError, LookupError, ArithmeticError) as error:  # such as a date of the 45th
        raise ValueError(f"not valid YAML: a value cannot be read ({one_line(error)}); quote it as a text") from error
    finally:
        if loader is not None:
            loader.dispose()


def check_extent(node: yaml.Node, extents: dict[int, tuple[int, int] | None] | None = None) -> tuple[int, int]:
    """Return the number of values in a node with its aliases written out, and the number of its levels.

    `extents` holds the results by the node's id, and None for the nodes that contain this one.

    Raises:
        UnfitError: the node contains itself, or it has more values or levels than accepted.
    """
    extents = {} if extents is None else extents
    where = f"line {node.start_mark.line + 1}"
    if id(node) in extents:
        extent = extents[id(node)]
        if extent is None:
            raise UnfitError(f"{where}: a value contains itself through an alias; write it without '*'")
        return extent
    extents[id(node)] = None
    children: list[yaml.Node] = []
    if isinstance(node, yaml.SequenceNode):
        children = node.value
    elif isinstance(node, yaml.MappingNode):
        children = [child for pair in node.value for child in pair]
    inner = [check_extent(child, extents) for child in children]
    extent = 1 + sum(count for count, _ in inner), 1 + max((levels for _, levels in inner), default=0)
    if extent[0] > MOST_NODES:
        raise UnfitError(
            f"{where}: the text holds more than {MOST_NODES:,} values, with its aliases ('*') written out; "
            f"accepted: at most {MOST_NODES:,}; shorten its lists"
        )
    if extent[1] > MOST_DEPTH:
        raise UnfitError(f"{where}: {TOO_DEEP}")
    extents[id(node)] = extent
    return extent


def check_unpacked(archive: zipfile.ZipFile, packed_bytes: int, most: int, ratio: float = MOST_RATIO) -> None:
    """Refuse a ZIP file that would unpack to more than accepted, or that holds names which lead elsewhere.

    Args:
        archive: the file, of which only the list of entries is read.
        packed_bytes: its size.
        most: the most bytes of all its entries.
        ratio: the most bytes of them for each byte of the file, beyond `FREE_BYTES`.

    Raises:
        UnfitError: it is refused.
    """
    entries = archive.infolist()
    size = sum(entry.file_size for entry in entries)
    if len(entries) > MOST_ENTRIES:
        raise UnfitError(f"it holds {len(entries):,} files; accepted: at most {MOST_ENTRIES:,}")
    if size > most or size > max(FREE_BYTES, ratio * packed_bytes):
        raise UnfitError(
            f"its {packed_bytes / 2**20:,.1f} MiB would unpack to {size / 2**20:,.0f} MiB; accepted: at most "
            f"{min(most, max(FREE_BYTES, ratio * packed_bytes)) / 2**20:,.0f} MiB"
        )
    for entry in entries:
        parts = entry.filename.split("/")
        if entry.flag_bits & 1 or ".." in parts or parts[0] == "" or "\\" in entry.filename:
            raise UnfitError(f"it holds {one_line(entry.filename)[:80]!r}, which is encrypted or leads elsewhere")
    if len({entry.filename for entry in entries}) < len(entries):
        raise UnfitError("it holds two files of one name")


def unzip(content: bytes, most: int = MOST_BYTES) -> dict[str, bytes]:
    """Return the files of a ZIP file by name, without its folders.

    Raises:
        ValueError: it is damaged, or `check_unpacked` refuses it.
    """
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            check_unpacked(archive, len(content), most)
            return {entry.filename: archive.read(entry) for entry in archive.infolist() if not entry.is_dir()}
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError, OSError, LookupError) as error:
        raise ValueError(f"not a whole ZIP file ({one_line(error)})") from error


def read_parquet(content: bytes, leave_out: bool = False) -> pyarrow.Table:
    """Return a table of numbers, lists of numbers and names (`is_number`, `is_name`), without its metadata.

    Args:
        content: the file.
        leave_out: whether columns of other types are left out, and not refused.

    Raises:
        ValueError: the file is damaged, has a column of another type, or would need more memory than accepted.
    """
    import pyarrow.compute
    from pyarrow import parquet

    try:
        # Arrow reads `content` itself and in this thread: a thread of its own that called Python at the end of the
        # process, or that could not be started where memory is limited, would abort the process.
        limits = {"thrift_string_size_limit": 2**24, "thrift_container_size_limit": 2**18}
        buffer = pyarrow.BufferReader(content)
        with parquet.ParquetFile(buffer, pre_buffer=False, **limits) as file:
            schema = [field for field in file.schema_arrow if not leave_out or _is_readable(field.type)]
            _check_table(file.metadata, schema)
        names = [field.name for field in schema if _is_name(field.type)]
        chosen = [field.name for field in schema] if leave_out else None
        buffer = pyarrow.BufferReader(content)
        with parquet.ParquetFile(buffer, read_dictionary=names, pre_buffer=False, **limits) as file:
            table = file.read(columns=chosen, use_threads=False)
        for name in names:
            for chunk in table[name].chunks:
                longest = pyarrow.compute.max(pyarrow.compute.binary_length(chunk.dictionary)).as_py() or 0
                if longest * len(table) > MOST_TABLE_BYTES:
                    raise UnfitError(f"column {one_line(name)[:80]!r} holds a text of {longest:,} bytes in many rows")
    except (pyarrow.ArrowException, OSError, MemoryError, RuntimeError) as error:
        raise ValueError(f"not a whole Parquet file ({one_line(str(error).partition(chr(10))[0])[:200]})") from error
    return table.replace_schema_metadata(None)


def parquet_types(content: bytes) -> list[tuple[str, str]]:
    """Return names and types, as texts, of the columns of a table that `read_parquet` has read."""
    import pyarrow
    from pyarrow import parquet

    return [(field.name, str(field.type)) for field in parquet.read_schema(pyarrow.BufferReader(content))]


def _check_table(metadata: Any, schema: Any) -> None:
    """Raise UnfitError for a table with other columns than `read_parquet` accepts, or with too much in them.

    The same value in all rows is a few bytes of a file, so that the rows are counted and not the bytes.
    """
    from pyarrow import types

    for field in schema:
        if not _is_readable(field.type):
            raise UnfitError(
                f"column {one_line(field.name)[:80]!r} is of {one_line(field.type)[:80]}; accepted: numbers"
            )
    rows = metadata.num_rows
    size = sum(rows * BYTES_OF_A_LIST for field in schema if types.is_nested(field.type)) + 8 * rows
    for number in range(metadata.num_row_groups):
        group = metadata.row_group(number)
        for column in range(group.num_columns):
            chunk = group.column(column)
            size += max(8 * chunk.num_values, chunk.total_uncompressed_size)
    if size > MOST_TABLE_BYTES:
        raise UnfitError(
            f"its {rows:,} rows need {size / 2**20:,.0f} MiB of memory; accepted: at most "
            f"{MOST_TABLE_BYTES / 2**20:,.0f} MiB"
        )


def _is_readable(kind: Any) -> bool:
    from pyarrow import types

    inner = kind.value_type if types.is_list(kind) or types.is_large_list(kind) else kind
    return bool(_is_name(kind) or types.is_integer(inner) or types.is_floating(inner) or types.is_null(inner))


def _is_name(kind: Any) -> bool:
    from pyarrow import types

    value = kind.value_type if types.is_dictionary(kind) else kind
    return bool(types.is_string(value) or types.is_large_string(value))
