"""A process that runs commands of hflray on foreign data, and notes what they do beyond reading it.

Called as ``python audited.py WORK COMMANDS``: WORK is the folder in which the commands run and below which they may
write in the folders `MAY_WRITE`; COMMANDS is a JSON list, see `run`. It prints one JSON value as its last line: for
each command its exit code, what it printed and what it did that a stranger's data must not achieve.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import sys
import traceback
from pathlib import Path
from typing import Any

CANARY = "CANARY_OF_THE_STRANGER"  # is in every text of the stranger's
# What may be written below the work folder: the results, the pages, temporary files, and the caches of libraries
# (XDG_CACHE_HOME and MPLCONFIGDIR lead there).
MAY_WRITE = ("hflray_results", "pages", "tmp", "cache", "policies")
# Programs that libraries ask about this machine, whatever the data: Matplotlib for fonts, `platform` for the CPU.
PROGRAMS = ("fc-list", "uname")
DEVICES = ("/dev/null", "/dev/tty")
# Events that change a folder: which of their arguments are paths.
CHANGES = {
    "os.mkdir": (0,), "os.rename": (0, 1), "os.remove": (0,), "os.rmdir": (0,), "os.link": (1,), "os.symlink": (1,),
    "os.truncate": (0,), "os.chmod": (0,),
}  # fmt: skip
NEVER = {
    "socket.connect", "socket.getaddrinfo", "socket.sendto", "subprocess.Popen", "os.system", "os.exec", "os.fork",
    "os.forkpty", "os.posix_spawn", "os.spawn", "pty.spawn", "webbrowser.open", "urllib.Request", "ftplib.connect",
    "smtplib.connect",
}  # fmt: skip
OPENS_TO_WRITE = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND

work = Path(sys.argv[1] if __name__ == "__main__" else ".").resolve()
deeds: list[str] = []


def audit(event: str, arguments: tuple[Any, ...]) -> None:
    """Note an event that foreign data must not cause."""
    try:
        if event == "subprocess.Popen" and arguments[0] in PROGRAMS:
            return
        if event in NEVER or (event == "import" and "evil" in str(arguments[0])):
            deeds.append(f"{event} {arguments[:2]}")
        elif event == "open":
            flags = arguments[2] if isinstance(arguments[2], int) else 0
            if flags & OPENS_TO_WRITE and not isinstance(arguments[0], int):
                note_place(event, arguments[0])
        elif event in CHANGES:
            for number in CHANGES[event]:
                note_place(event, arguments[number], arguments[1] if event in ("os.remove", "os.rmdir") else -1)
        elif event == "sqlite3.connect" and "mode=ro" not in os.fsdecode(arguments[0]):
            note_place(event, arguments[0])
        elif event == "compile" and CANARY in texts_of(arguments[0]):
            deeds.append(f"compile of the stranger's text {arguments[1]}")
        elif event == "exec" and CANARY in repr(getattr(arguments[0], "co_consts", "")):
            deeds.append(f"exec of the stranger's text {arguments[0]}")
    except Exception:  # an error here would stop what is to be observed
        deeds.append(f"the audit of {event} failed: {traceback.format_exc()}")


def texts_of(source: Any) -> str:
    """Return the text that is compiled, as far as it is a text."""
    return source.decode(errors="replace") if isinstance(source, bytes) else source if isinstance(source, str) else ""


def note_place(event: str, path: Any, folder: int = -1) -> None:
    """Note a change of a file or folder, unless it lies where commands may write.

    `folder` is the number of the open folder to which the path is relative; -1: the present one.
    """
    if path in (None, "") or isinstance(path, int):
        return
    base = Path() if folder < 0 else Path(os.readlink(f"/proc/self/fd/{folder}"))
    place = Path(os.path.abspath(base / os.fsdecode(path)))
    allowed = [work / name for name in MAY_WRITE]
    if str(place) not in DEVICES and not any(place.is_relative_to(each) for each in allowed):
        deeds.append(f"{event} {place}")


def run(command: list[str]) -> int:
    """Run a command in this process and return its exit code.

    The first word is ``hflray``, ``checkpoint`` (which loads one into an experiment), or the name of a module of which
    the rest are the arguments.
    """
    kind, *words = command
    if kind == "checkpoint":
        from hflray.errors import HflrayError
        from hflray.experiment import Experiment
        from hflray.support import checkpoint
        from tests.conftest import small_config

        try:
            Experiment(small_config()).load_state_dict(checkpoint.load(words[0]))
        except HflrayError as error:
            print(f"error: {error}", file=sys.stderr)
            return 2
        return 0
    from hflray.command import cli

    try:
        if kind == "hflray":
            cli.main(words)
        else:
            import runpy

            sys.argv = [kind, *words]
            runpy.run_module(kind, run_name="__main__")
    except SystemExit as end:
        return int(end.code or 0)
    return 0


def main() -> None:
    """Run the commands and print what they did."""
    os.chdir(work)
    sys.path[0] = str(work)  # as `python -m hflray…` has it, so that a module of the results can be found
    sys.addaudithook(audit)
    answers = []
    for command in json.loads(sys.argv[2]):
        deeds.clear()
        out = io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
            try:
                code = run(command)
            except BaseException:
                out.write(traceback.format_exc())
                code = -1
        answers.append({"command": command, "code": code, "text": out.getvalue(), "deeds": list(deeds)})
    loaded = [
        name
        for name, module in list(sys.modules.items())
        if str(getattr(module, "__file__", "")).startswith(f"{work}/")
    ]
    print(json.dumps({"answers": answers, "loaded": loaded}))


if __name__ == "__main__":
    main()
