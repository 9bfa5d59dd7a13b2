"""A place for files on this machine or in a bucket: a folder, or ``s3://bucket/folder``.

A file of a store is there as a whole or not at all. Names have slashes, and folders come with their files.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hflray.errors import ConfigError
from hflray.support.files import write
from hflray.support.reader import UnfitError, memory_share, read_bytes


class Store:
    """The files below a folder or a bucket's prefix.

    Args:
        uri: the path of a folder, or an address that PyArrow knows, such as ``s3://bucket/folder``.

    Raises:
        ConfigError: `uri` names no file system.
    """

    def __init__(self, uri: str) -> None:
        from pyarrow import fs

        self.uri, reason = uri, "it names no bucket"
        self._system: Any
        try:
            self._system, path = fs.FileSystem.from_uri(uri if "://" in uri else str(Path(uri).expanduser().resolve()))
        except (OSError, ValueError, RuntimeError) as error:
            path, reason = "", short(error)
        if not path.strip("/"):
            raise ConfigError(
                f"--storage: '{uri}' cannot be opened ({reason}); accepted: s3://bucket/folder, or a folder that all "
                "machines share"
            )
        self._path = path.rstrip("/")
        self.is_local = isinstance(self._system, fs.LocalFileSystem)

    def names(self, folder: str = "") -> list[str]:
        """Return the names of the files and folders right below `folder`, sorted; empty if there is none.

        Raises:
            OSError: the place cannot be read.
        """
        from pyarrow import fs

        infos = self._system.get_file_info(fs.FileSelector(self._full(folder), allow_not_found=True))
        return sorted(str(info.base_name) for info in infos)

    def read(self, name: str) -> bytes:
        """Return a file's content. Raises OSError: it cannot be read, or needs more than half of this memory."""
        if self.is_local:
            try:
                return read_bytes(self._full(name), memory_share(0.5))
            except UnfitError as error:
                raise OSError(f"{self._full(name)}: {error}") from None
        with self._system.open_input_stream(self._full(name)) as file:
            return bytes(file.read())

    def write(self, name: str, content: bytes) -> None:
        """Write a file, as a whole or not at all. Raises OSError: it cannot be written."""
        if self.is_local:
            write(self._full(name), content, durable=True)
            return
        with self._system.open_output_stream(self._full(name)) as file:  # an object shows when all of it has arrived
            file.write(content)

    def remove(self, name: str) -> None:
        """Remove a file, if there is one. Raises OSError: it cannot be removed."""
        if self.has(name):
            self._system.delete_file(self._full(name))

    def has(self, name: str) -> bool:
        """Return whether there is a file of this name. Raises OSError: the place cannot be read."""
        return bool(self._system.get_file_info(self._full(name)).is_file)

    def modified_s(self, name: str) -> float:
        """Return when a file was written, in s since 1970 by the place's clock. Raises OSError: there is none."""
        info = self._system.get_file_info(self._full(name))
        if not info.is_file:
            raise FileNotFoundError(f"{self.uri}/{name}: no such file")
        return float(info.mtime_ns) / 1e9

    def _full(self, name: str) -> str:
        return f"{self._path}/{name}" if name else self._path


def short(error: Exception) -> str:
    """Return the first line of an error's text."""
    return (str(error).strip() or type(error).__name__).splitlines()[0][:300]
