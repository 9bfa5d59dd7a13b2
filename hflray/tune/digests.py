"""The digests of the files that Ray Tune writes of a sweep, sealed by this user.

Tune's files hold pickles, and a stranger may have put others into a folder whose ``sweep.json`` is genuine. The driver
therefore records the SHA-256 of every file that Tune stages, before Tune copies it to the sweep's folder. A resume lets
Tune read a file only if its digest is in the record and the record carries this user's seal. The record also tells a
damaged or missing file.

Tune copies its files in the background, so those in the sweep's folder may be older than the staged ones. The record
therefore keeps the last digests of each file.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

from hflray.support.checksum import digest
from hflray.support.files import write
from hflray.support.seal import is_mine, sealed, unsealed

FILE = "tune_state.json"
MOST = 50  # digests of each file
# The files that Tune writes of a sweep: `tuner.pkl` once at its start, and the others repeatedly. The names of the
# others contain the time of that start. Tune finds them by the same patterns.
TUNER = "tuner.pkl"
STATE = re.compile(
    r"(?:experiment_state|basic-variant-state|search_gen_state|searcher-state|callback-states)-(.*)\.(?:json|pkl)",
    re.DOTALL,
)


class TuneDigests:
    """The record of a sweep.

    Args:
        folder: the sweep's folder.

    Attributes:
        known: the digests of each file by its name, the newest last.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.known: dict[str, list[str]] = {}
        self._seen: dict[str, tuple[int, int]] = {}  # modification time and size of each staged file

    @classmethod
    def load(cls, folder: Path) -> TuneDigests:
        """Read the record; it is empty if there is none, or if it is damaged or not sealed by this user.

        Raises:
            ConfigError: see `hflray.support.seal.user_key`.
        """
        record = cls(folder)
        try:
            content = json.loads((folder / FILE).read_text(encoding="utf-8"))
            if is_mine(content, record._purpose):
                record.known = unsealed(content)["files"]
        except (OSError, ValueError, KeyError):
            pass
        return record

    def add(self, name: str, content: bytes) -> None:
        """Record the content of a file."""
        digests = self.known.setdefault(name, [])
        if (new := digest(content)) not in digests[-1:]:
            digests.append(new)
            del digests[:-MOST]

    def add_staged(self, staging: Path) -> bool:
        """Record Tune's files in the folder `staging` that have changed; return whether there are any.

        Raises:
            OSError: a file cannot be read.
        """
        changed = False
        for path in staging.iterdir():
            if STATE.fullmatch(path.name):
                state = path.stat()
                stamp = (state.st_mtime_ns, state.st_size)
                if self._seen.get(path.name) != stamp:
                    self.add(path.name, path.read_bytes())
                    self._seen[path.name] = stamp
                    changed = True
        return changed

    def save(self) -> None:
        """Write the record.

        Raises:
            OSError: it cannot be written.
            ConfigError: see `hflray.support.seal.user_key`.
        """
        write(self._folder / FILE, json.dumps(sealed({"files": self.known}, self._purpose)))

    @property
    def _purpose(self) -> str:
        return f"Ray Tune's files of {self._folder.name}"
