"""References: a class or function of the user's own, named in a configuration as ``mine.py:Thing``.

A reference is ``path/to/mine.py:Thing`` or ``package.module:Thing``. When a configuration is read, the reference is
*pinned*: the file is read once, and the SHA-256 of its text becomes part of the name, ``mine.py:Thing@sha256:3f…``. The
configuration of a trial is therefore complete, and two texts never pass for one. The texts themselves are `Source`
objects, which a process holds by their SHA-256. They travel with whatever is sent to other processes and nodes, so that
no other place needs the file. The text of ``mine.py`` runs as it was read. A module of a package is imported where it
is installed, and refused if its text there is another one. To find a module imports nothing, because its name may have
come from a stranger, and `importlib.util.find_spec` imports the packages around a module, whose code then runs.

Only a text that this process has read itself, or that it was handed by code that it trusts (`adopt`), is ever run. A
results folder from a stranger holds names and texts, and neither is enough (`hflray.sweep.results.SweepFolder.admit`).
"""

from __future__ import annotations

import ast
import importlib
import importlib.abc
import importlib.util
import linecache
import os
import platform
import re
import stat
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any, NamedTuple

from hflray.errors import ConfigError, HflrayError, nearest
from hflray.support import pinned
from hflray.support.checksum import digest
from hflray.support.pinned import SHOWN as SHOWN
from hflray.support.text import one_line

LONGEST = 1_000_000  # bytes of a text, which is kept in the sweep's folder and sent to every trial
_FORM = re.compile(
    r"(?P<place>.*[^/:]\.py|[^\W\d]\w*(?:\.[^\W\d]\w*)*):(?P<thing>[^\W\d]\w*)(?:@sha256:(?P<sha256>[0-9a-f]{64}))?"
)
_PINNED = re.compile(r"[^\s'\"]+:([^\W\d]\w*)@sha256:[0-9a-f]{64}")  # within a longer text
_LINE = re.compile(r'File "([^"]+)", line (\d+)')  # of a traceback that another process has printed


class Reference(NamedTuple):
    """The parts of a reference.

    Attributes:
        place: the path of a file as it was written, or the dotted name of a module.
        thing: the name of the class or function in it.
        sha256: the SHA-256 of the text as 64 hexadecimal digits; empty if the reference is not pinned.
    """

    place: str
    thing: str
    sha256: str = ""

    @property
    def is_file(self) -> bool:
        """Whether the reference names a file, and not a module."""
        return self.place.endswith(".py")

    @property
    def source(self) -> str:
        """The name of the text: the file's name without folders, or the module's name."""
        return Path(self.place).name if self.is_file else self.place

    @property
    def pinned(self) -> str:
        """The pinned name."""
        return f"{self.source}:{self.thing}@sha256:{self.sha256}"


@dataclass(frozen=True)
class Source:
    """The text behind references. In the process that unpickles it, it is adopted.

    Attributes:
        name: the file's name without folders, such as ``mine.py``, or the module's dotted name.
        text: the text of the file.
        path: where the file was read, for messages; that place may be on another machine.
    """

    name: str
    text: str
    path: str = ""

    @cached_property
    def sha256(self) -> str:
        """The SHA-256 of the text in UTF-8, as ``sha256sum`` prints it for the file."""
        return digest(self.text.encode())

    @property
    def is_file(self) -> bool:
        """Whether the text is that of a file named by its path, and not of a module."""
        return self.name.endswith(".py")

    def __reduce__(self) -> tuple[Any, ...]:
        return adopted, (self.name, self.text, self.path)


_sources: dict[tuple[str, str], Source] = {}  # by name and SHA-256; only these are ever run
_modules: dict[tuple[str, str], ModuleType] = {}  # those that have run
_ran: dict[str, str] = {}  # names of texts by the file name that tracebacks give
_by_value: list[Callable[[ModuleType], object]] = []


def parse(name: str) -> Reference | None:
    """Return the parts of a reference, or None if `name` has not the form of one."""
    match = _FORM.fullmatch(name)
    return None if match is None else Reference(match["place"], match["thing"], match["sha256"] or "")


def short(value: object) -> str:
    """Return a value as text in which a reference is its class or function, and a file has no hash."""
    reference = parse(value) if isinstance(value, str) else None
    return pinned.plain(_PINNED.sub(r"\1", str(value))) if reference is None else reference.thing


def spoken(name: str) -> str:
    """Return a reference without its SHA-256, as its author wrote it but for the folders."""
    reference = parse(name)
    return name if reference is None else f"{reference.source}:{reference.thing}"


def unplaced(value: object) -> str:
    """Return a value as text in which a pinned file has no folders, so that it is the same wherever the file lies."""
    text = str(value)
    return text.rpartition("/")[2] if "@sha256:" in text else text


def named(thing: object) -> str:
    """Return how messages call a class, a function, or the class of an object: ``mine.py:Thing`` if a file made it."""
    made: Any = thing if callable(thing) and hasattr(thing, "__qualname__") else type(thing)
    loader = getattr(sys.modules.get(made.__module__), "__loader__", None)
    return f"{loader.name}:{made.__qualname__}" if isinstance(loader, _Loader) else str(made.__qualname__)


def pin(name: str, folder: Path | None = None) -> str:
    """Return the pinned name of a reference, whose text this process then holds. Nothing of the text runs.

    Args:
        name: a reference. If it is pinned already, its text is only looked for.
        folder: the folder that the path of a file is relative to; None: the present one.

    Raises:
        ConfigError: there is no such file or module, its text is no Python, it imports a neighbour, or the text is not
            the one that the pinned name tells. The message does not begin with a setting.
    """
    reference = parse(name)
    if reference is None:
        raise ConfigError("not a reference; accepted: path/to/mine.py:Thing, or package.module:Thing")
    if reference.sha256 and (reference.source, reference.sha256) in _sources:
        return name
    try:
        source = _read_file(reference, folder) if reference.is_file else _read_module(reference.place)
    except FileNotFoundError as error:
        if reference.sha256:  # the text may still come from elsewhere; `load` says so if it does not
            return name
        raise ConfigError(
            f"{one_line(error.filename)}: no such file; a path is relative to the sweep file, and in --set to the "
            "present folder; correct it"
        ) from error
    if reference.sha256 not in ("", source.sha256):
        raise pinned.changed(source.path or source.name, source.sha256, reference.sha256)
    _check(source)
    _sources[source.name, source.sha256] = source  # of equal texts, the path of the last one that was read
    return reference._replace(sha256=source.sha256).pinned


def adopt(sources: Iterable[Source]) -> None:
    """Let references to these texts run in this process."""
    for source in sources:
        _sources.setdefault((source.name, source.sha256), source)


def adopt_own(sources: Iterable[Source], outside: Path) -> list[Source]:
    """Let references to those texts run that are the text of the user's own file (`own_text`); return the others."""
    foreign = []
    for source in sources:
        if own_text(source, outside) == source.text:
            adopt([source])
        else:
            foreign.append(source)
    return foreign


def own_text(source: Source, outside: Path) -> str | None:
    """Return what the file that a text was read from holds now; None: there is none, or it is not the user's own.

    It is the user's own if it is a file and no link, it belongs to this user (a module may belong to root), and it does
    not lie in the folder `outside`, which may have come from a stranger. A file is looked for at the absolute path at
    which it was read. A module is looked for where modules are installed, since the path that a stranger's folder tells
    need not be where Python finds its name.
    """
    try:
        path, owners = Path(source.path), {os.getuid()}
        if not source.is_file:
            path, owners = own_module(source.name, outside) or Path(), {os.getuid(), 0}
        state = path.lstat()
        if not path.is_absolute() or path.resolve().is_relative_to(outside.resolve()):
            return None
        return _text_of(path) if stat.S_ISREG(state.st_mode) and state.st_uid in owners else None
    except (OSError, ValueError, ConfigError):  # a path may also hold what no path can hold
        return None


def adopted(name: str, text: str, path: str) -> Source:
    """Return a text that this process holds from now on."""
    source = Source(name, text, path)
    adopt([source])
    return source


def sources_of(names: Iterable[str]) -> tuple[Source, ...]:
    """Return the texts behind the pinned references among `names`, each once, as far as this process holds them."""
    references = [reference for name in names if (reference := parse(name)) is not None]
    keys = dict.fromkeys((reference.source, reference.sha256) for reference in references)
    return tuple(_sources[key] for key in keys if key in _sources)


def as_files(sources: Sequence[Source]) -> list[tuple[str, Source]]:
    """Return texts with file names for copies of them. Texts of one name have their hashes in the file names."""
    names = [source.name for source in sources]
    return [
        (source.name.removesuffix(".py") + f"-{source.sha256[:SHOWN]}" * (names.count(source.name) > 1) + ".py", source)
        for source in sources
    ]


def to_json(sources: Iterable[Source]) -> list[dict[str, str]]:
    """Return texts as JSON values, for `from_json`."""
    return [{"name": source.name, "path": source.path, "text": source.text} for source in sources]


def from_json(entries: Iterable[Mapping[str, Any]]) -> tuple[Source, ...]:
    """Return the texts of `to_json`, without adopting them. Raises KeyError, TypeError: they are damaged."""
    return tuple(Source(str(entry["name"]), str(entry["text"]), str(entry["path"])) for entry in entries)


def refuse_change(source: Source) -> None:
    """Raise ConfigError, which names both hashes, if the file that a text was read from has another text now.

    A file that is not there is no change: the text is at hand.
    """
    try:
        now = _text_of(Path(source.path)) if source.is_file else _read_module(source.name, module_places()).text
    except (OSError, ConfigError):
        return
    if now != source.text:
        raise pinned.changed(source.path or source.name, digest(now.encode()), source.sha256)


def load(name: str) -> Any:
    """Return the class or function of a reference; its text runs, once in a process.

    Raises:
        ConfigError: the text is not at hand, fails when it runs, or has no such name; the message gives the line.
    """
    reference, module = _module_of(name)
    try:
        return getattr(module, reference.thing)
    except AttributeError as error:
        things = list(_own_of(module))
        raise ConfigError(
            f"{reference.source} has no '{reference.thing}'{nearest(reference.thing, things)}; it has: "
            f"{', '.join(things) or 'no class or function'}; correct the name"
        ) from error


def things_in(path: Path) -> dict[str, Any]:
    """Return the public classes and functions that a file defines, by name; its text runs, once in a process.

    Raises:
        ConfigError: there is no such file, it is no Python, or it fails when it runs; the message gives the line.
    """
    return _own_of(_module_of(f"{path}:_")[1])


def _module_of(name: str) -> tuple[Reference, ModuleType]:
    """Return the parts of a reference and the module that its text has made. Raises ConfigError as `load` does."""
    reference = parse(name)
    if reference is None or not reference.sha256:
        reference = parse(pin(name))
    assert reference is not None
    source = _sources.get((reference.source, reference.sha256))
    if source is None:
        raise ConfigError(
            f"{spoken(name)}: the text with sha256 {reference.sha256[:SHOWN]}… is not at hand; put the file beside the "
            "sweep file, or go on with the sweep that keeps it"
        )
    key = source.name, source.sha256
    if key not in _modules:
        _modules[key] = _run(source) if source.is_file else _import(source)
    return reference, _modules[key]


def blame(error: BaseException) -> str | None:
    """Return the line of a referenced file in which an error arose, such as ``mine.py:12: NameError: …``.

    Returns:
        None if no call of the error's traceback is in a referenced file.
    """
    calls = [(frame.f_code.co_filename, line) for frame, line in traceback.walk_tb(error.__traceback__)]
    reason = str(error).strip()
    kind = type(error).__name__
    if type(error).__module__.startswith("ray."):  # an actor's error comes with the text of its traceback
        calls += [(file, int(line)) for file, line in _LINE.findall(reason)]
        cause = getattr(error, "cause", None) or error
        kind, reason = type(cause).__name__, str(cause).strip()
    lines = [f"{_ran[file]}:{line}" for file, line in calls if file in _ran]
    if not lines:
        return None
    lines_shown = reason.splitlines()[-1:] if type(error).__module__.startswith("ray.") else reason.splitlines()
    return f"{lines[-1]}: {kind}{': ' if reason else ''}{one_line(' '.join(map(str.strip, lines_shown)))}"


def reason(error: BaseException) -> str:
    """Return why a call failed in one line: `blame` for an error in a referenced file, else the type and the text."""
    text = one_line((str(error).strip().splitlines() or [""])[0])
    return blame(error) or f"{type(error).__name__}{': ' if text else ''}{text}"


def pickle_by_value(register: Callable[[ModuleType], object]) -> None:
    """Call `register` with every module of a referenced file, now and later.

    With cloudpickle's ``register_pickle_by_value``, the classes of these modules travel to other processes as they are.
    """
    if register not in _by_value:
        _by_value.append(register)
        for module in _modules.values():
            if isinstance(getattr(module, "__loader__", None), _Loader):
                register(module)


def _own_of(module: ModuleType) -> dict[str, Any]:
    """Return the public classes and functions that a module defines, by name."""
    home = module.__name__
    return {
        name: value
        for name, value in vars(module).items()
        if not name.startswith("_") and getattr(value, "__module__", None) == home
    }


def _text_of(path: Path) -> str:
    if path.exists() and not (path.is_file() or path.is_dir()):  # to open a pipe would wait for ever
        raise ConfigError(f"{path}: is no file; accepted: a file with Python's text; name another")
    with path.open("rb") as file:
        content = file.read(LONGEST + 1)
    if len(content) > LONGEST:
        raise ConfigError(f"{path}: the file is too long; accepted: at most {LONGEST:,} bytes; move data out of it")
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: the file is not UTF-8 text; accepted: Python's text; name another file") from error


def _read_file(reference: Reference, folder: Path | None) -> Source:
    """Read a file. Raises FileNotFoundError, or ConfigError: it cannot be read."""
    try:
        path = ((folder or Path()) / Path(reference.place).expanduser()).resolve()
        return Source(reference.source, _text_of(path), str(path))
    except FileNotFoundError:
        raise
    except (OSError, RuntimeError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ConfigError(f"{one_line(reference.place)}: cannot be read ({reason}); name another file") from error


def _read_module(name: str, places: Sequence[str] | None = None) -> Source:
    """Read the text of an installed module, see `find_module`. Raises ConfigError: there is none."""
    specs = find_module(name, places)
    if not specs:
        raise ConfigError(
            f"there is no module '{name}'; install its package, or name a file as in {name}.py:Thing; correct it"
        )
    path = Path(specs[-1].origin or "")
    if path.suffix != ".py":
        raise ConfigError(f"module '{name}' has no Python text ({specs[-1].origin}); name a class in a .py file")
    try:
        return Source(name, _text_of(path), str(path))
    except OSError as error:
        raise ConfigError(f"module '{name}' cannot be read at {path} ({error.strerror}); name another") from error


def _check(source: Source) -> None:
    """Raise ConfigError if a file's text is no Python, or imports a file from beside it, which would be left behind."""
    try:
        tree = ast.parse(source.text.encode())
    except SyntaxError as error:
        where = f":{error.lineno}" if error.lineno else ""
        raise ConfigError(f"{source.name}{where}: SyntaxError: {error.msg}; correct the file") from error
    except (ValueError, RecursionError, MemoryError) as error:
        raise ConfigError(f"{source.name}: no Python text ({one_line(error)}); correct the file") from error
    if not source.is_file:
        return
    folder = Path(source.path).parent
    for line, root in _roots(tree):
        beside = root == "" or (folder / f"{root}.py").is_file() or (folder / root / "__init__.py").is_file()
        # The first entry of `sys.path` is the present folder.
        if beside and not (root and find_module(root, sys.path[1:])):
            raise ConfigError(
                f"{source.name}:{line}: it imports {repr(root) if root else 'relatively'} from its own folder, and a "
                "reference takes one file along; put that code into the file, or install it as a package"
            )


def _roots(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield the line and the first part of the name of each import; it is empty for a relative import."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name.partition(".")[0]
        elif isinstance(node, ast.ImportFrom):
            yield node.lineno, "" if node.level else (node.module or "").partition(".")[0]


class _Loader(importlib.abc.InspectLoader):
    """Runs a text that is held in memory, and shows its lines to tracebacks and to `inspect`."""

    def __init__(self, source: Source, filename: str) -> None:
        self._source, self._filename, self.name = source, filename, source.name

    def get_source(self, fullname: str) -> str:
        return self._source.text

    def get_code(self, fullname: str) -> CodeType:
        code: CodeType = compile(self._source.text.encode(), self._filename, "exec", dont_inherit=True)
        return code


def _run(source: Source) -> ModuleType:
    """Run a file's text as a new module, whose name holds its hash. Raises ConfigError with the line that fails."""
    digits = source.sha256[:16]
    name = re.sub(r"\W", "_", source.name.removesuffix(".py")) + f"__{digits}"
    filename = source.path or source.name
    if filename in _ran:  # an earlier text of this path has run here
        filename = f"{filename} (sha256 {digits}…)"
    spec = importlib.util.spec_from_loader(name, _Loader(source, filename), origin=filename)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    module.__file__ = filename
    # Without a time of change, the lines stay although the file is edited, or is not there.
    linecache.cache[filename] = (len(source.text), None, source.text.splitlines(keepends=True), filename)
    _ran[filename] = source.name
    sys.modules[name] = module  # dataclasses and pickle look a class's module up
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        raise ConfigError(f"{blame(error) or source.name}; correct the file") from error
    for register in _by_value:
        register(module)
    return module


def _import(source: Source) -> ModuleType:
    """Import an installed module. Raises ConfigError: it fails, or its text on this machine is not that of `source`."""
    try:
        installed = _read_module(source.name)
    except ConfigError as error:
        raise ConfigError(
            f"on {platform.node()}, {error} (a reference takes a file along, and no installed package)"
        ) from error
    if installed.sha256 != source.sha256:
        raise pinned.changed(f"on {platform.node()}, {installed.path}", installed.sha256, source.sha256)
    _ran[installed.path] = Path(installed.path).name
    try:
        return importlib.import_module(source.name)
    except HflrayError:
        raise
    except (Exception, SystemExit) as error:
        raise ConfigError(f"{blame(error) or f'{source.name}: {one_line(error)}'}; correct the file") from error


def find_module(name: str, places: Sequence[str] | None = None) -> list[ModuleSpec]:
    """Return where Python finds a module's packages and the module, outermost first; empty if one is missing.

    Nothing is imported, not even a package, because the name may be a stranger's. So a package that changes its
    ``__path__`` when it is imported is not followed.

    Args:
        name: the dotted name.
        places: the folders in which the outermost package may lie; None: `sys.path`.
    """
    specs: list[ModuleSpec] = []
    parts = name.split(".")
    for number, part in enumerate(parts, 1):
        within = list(specs[-1].submodule_search_locations or ()) if specs else None
        for finder in sys.meta_path:
            spec = None
            if finder is PathFinder:  # of a whole name it would look the parent up in sys.modules
                spec = finder.find_spec(part, within if specs else places)
            else:
                with suppress(Exception):  # a package may have added any finder
                    spec = finder.find_spec(".".join(parts[:number]), within)
            if spec is not None:
                specs.append(spec)
                break
        else:
            return []
    return specs


def module_places() -> list[str]:
    """Return the entries of `sys.path` without the first and the empty ones, which are the folder of the present run.

    A stranger's folder may lie there.
    """
    return [entry for entry in sys.path[1:] if entry]


def own_module(name: str, outside: Path) -> Path | None:
    """Return the path of a module that is installed, and of which nothing lies in `outside`; None: it is not so.

    What Python would import must be what is installed, with all packages around it, since these run first.
    """
    specs = find_module(name, module_places())
    paths = _paths(specs)
    if not specs or paths != _paths(find_module(name)):
        return None
    if any(Path(path).resolve().is_relative_to(outside.resolve()) for path in paths):
        return None
    return Path(specs[-1].origin or "")


def _paths(specs: Sequence[ModuleSpec]) -> list[str]:
    return [path for spec in specs for path in (spec.origin, *(spec.submodule_search_locations or ())) if path]
