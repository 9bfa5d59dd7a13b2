"""How every command line of hflray runs, and the options that several commands have.

A mistake is one line on stderr, and the exit code is then 2. Help is plain text, because Typer's frames cut names on a
narrow terminal, and because drawing them takes a third of the time that ``hflray --help`` takes without them.
"""

from __future__ import annotations

import codecs
import shlex
import sys
from collections.abc import Sequence
from io import TextIOWrapper
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from hflray.errors import HflrayError, WriteError
from hflray.support.files import disk_failure
from hflray.support.references import blame
from hflray.support.text import one_line, safe_output

RESULTS = Path("hflray_results")
Results = Annotated[Path, typer.Option(help="Folder of the results.")]
DataRoot = Annotated[
    Path | None, typer.Option(help="Folder of the data sets; else $HFLRAY_DATA, else ~/.cache/hflray.")
]
HELP: dict[str, Any] = {"help_option_names": ["-h", "--help"]}  # the context settings of every command
WRITE_FAILED = 1  # the exit code if a file could not be written; the same command goes on when there is room
STOPPED = 1  # the exit code of a question that the user does not answer
# Typer does not export the class of all mistakes in a command line, and its module depends on Typer's version.
USAGE_ERROR: type[Any] = typer.BadParameter.__mro__[2]
# What stands for a character that the output's encoding lacks: one of ASCII, so that tables keep their columns.
PLAIN = str.maketrans("✓✗⊣⚑…─−–×·≤≥→←λμ", "+x|!.---x.<>><lu")


def _plain(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    lacking = error.object[error.start : error.end].translate(PLAIN)
    return lacking.encode("ascii", "backslashreplace").decode("ascii"), error.end


codecs.register_error("hflray.plain", _plain)


class Commands(TyperGroup):
    """A group of commands whose help shows each command's summary in full, on as many lines as it needs."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the commands and their summaries into the help."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, _summary(command)) for name, command in self.commands.items()])


def _summary(command: Any) -> str:
    return (command.help or "").strip().partition("\n\n")[0].replace("\n", " ")


def group(**options: Any) -> typer.Typer:
    """Return a new application with several commands."""
    settings: dict[str, Any] = {"cls": Commands, "no_args_is_help": True}
    return single(**(settings | options))


def single(**options: Any) -> typer.Typer:
    """Return a new application with one command, which is declared by ``@app.command(context_settings=HELP)``."""
    plain: dict[str, Any] = {"add_completion": False, "pretty_exceptions_enable": False, "rich_markup_mode": None}
    return typer.Typer(context_settings=HELP, **(plain | options))


def exit_code(app: typer.Typer, arguments: Sequence[str] | None, name: str) -> int:
    """Run a command line and return its exit code.

    Args:
        app: the application.
        arguments: the words after the program's name; None: those of this process.
        name: the program's name in the help, such as ``hflray`` or ``python -m hflray.tune``.

    Returns:
        0; or what the command asked for with `typer.Exit`; or 2 after a mistake in the command line, an HflrayError,
        an OSError or an error in a file of the user's own (`hflray.support.references`), each of which is one line on
        stderr (an HflrayError has a line for each mistake).
    """
    for stream in (sys.stdout, sys.stderr):  # whose encoding may be Latin-1; and a file's name need not be UTF-8
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="hflray.plain")
    words = sys.argv[1:] if arguments is None else list(arguments)
    with safe_output():
        return _run(app, words, name)


def _run(app: typer.Typer, words: list[str], name: str) -> int:
    try:
        code = app(words, prog_name=name, standalone_mode=False)
    except HflrayError as error:
        code = _fail(str(error).splitlines())
        return WRITE_FAILED if isinstance(error, WriteError) else code
    except USAGE_ERROR as error:
        return _misused(error, name)
    except typer.Abort:
        print(file=sys.stderr)
        return STOPPED
    except OSError as error:  # a folder that cannot be written, a full disk
        failure = disk_failure(error)
        if failure is not None:
            _fail([failure.line("output", shlex.join([*name.split(), *words]))])
            return WRITE_FAILED
        problem = f"{error.filename or 'output'}: {error.strerror or error}"
        return _fail([f"{problem}; make the folder writable, or name another (--results, --out, $TMPDIR)"])
    except Exception as error:
        line = blame(error)  # an error in a file of the user's own shows that file's line, and not hflray's calls
        if line is None:
            raise
        return _fail([f"{line}; correct the file"])
    return int(code or 0)


def _misused(error: Any, name: str) -> int:
    """Print a mistake in a command line and return its exit code."""
    if type(error).__name__ == "NoArgsIsHelpError":
        error.show()
    else:
        place = error.ctx.command_path if getattr(error, "ctx", None) is not None else name
        _fail([f"{' '.join(error.format_message().split()).rstrip('.')}; see {place} --help"])
    return int(error.exit_code)


def _fail(lines: Sequence[str]) -> int:
    for line in lines:
        print(f"error: {one_line(line)}", file=sys.stderr)
    return 2


def spoken(command: str, module: str) -> str:
    """Return how this process's user calls another command.

    Args:
        command: its name below ``hflray``, such as ``tune``.
        module: its module, such as ``hflray.tune``.

    Returns:
        ``hflray tune`` if this process was called so, else ``python -m hflray.tune``.
    """
    called = program()
    return f"{called} {command}" if called else f"python -m {module}"


def program() -> str | None:
    """Return ``hflray`` or ``python -m hflray`` if this process was called so, else None."""
    path = Path(sys.argv[0])
    if path.name == "__main__.py" and path.parent.name == "hflray":
        return "python -m hflray"
    return "hflray" if path.name in ("hflray", "hflray.exe") else None
