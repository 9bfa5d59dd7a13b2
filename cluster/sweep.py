"""Run a sweep on the cluster whose head is this machine.

    ray submit cluster/aws.yaml cluster/sweep.py tune_configs/sweep_h_lambda_data.yaml [--set KEY=VALUE]
    ray submit cluster/aws.yaml cluster/sweep.py --resume sweep_h_lambda_data

`ray submit` copies this file to the head and runs it there. All arguments are passed on to `python -m hflray.tune`,
which runs in a session of its own. The sweep therefore continues when the connection drops, and the last lines of the
output say how to watch it again.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

RESULTS = Path.home() / "hflray_results"
MLFLOW = ("127.0.0.1", 5000)
TOKEN = Path.home() / ".ray" / "auth_token"
CHECKOUT = Path.home() / "hflray"


def fail(message: str) -> int:
    print(f"error: {message}", file=sys.stderr)
    return 2


def option_value(arguments: list[str], option: str) -> str | None:
    """Return the value of an option in the form ``--option VALUE`` or ``--option=VALUE``; None if it is absent."""
    for index, argument in enumerate(arguments):
        if argument.startswith(f"{option}="):
            return argument.partition("=")[2]
        if argument == option and index + 1 < len(arguments):
            return arguments[index + 1]
    return None


def with_defaults(arguments: list[str]) -> list[str]:
    """Return the arguments with the cluster's address, results folder, storage and MLflow server as defaults."""
    defaults = ["--address", "auto"] if option_value(arguments, "--address") is None else []
    if option_value(arguments, "--results") is None:
        defaults += ["--results", str(RESULTS)]
    storage = os.environ.get("HFLRAY_STORAGE")
    if storage and option_value(arguments, "--storage") is None:
        defaults += ["--storage", storage]
    resuming = option_value(arguments, "--resume") is not None
    if not resuming and option_value(arguments, "--tracking-uri") is None and is_listening(MLFLOW):
        defaults += ["--tracking-uri", f"http://{MLFLOW[0]}:{MLFLOW[1]}"]
    return [*arguments, *defaults]


def is_listening(address: tuple[str, int]) -> bool:
    try:
        with socket.create_connection(address, timeout=2):
            return True
    except OSError:
        return False


def follow(process: subprocess.Popen[bytes], log: Path) -> int | None:
    """Print the log until the sweep ends; return its exit code, or None if the user leaves before."""
    received: list[int] = []
    leave = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.signal(number, lambda which, _: received.append(which)) for number in leave}
    try:
        return _tail(process, log, received)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _tail(process: subprocess.Popen[bytes], log: Path, received: list[int]) -> int | None:
    with log.open(encoding="utf-8", errors="replace") as file:
        while True:
            code = process.poll()  # poll before reading, so that the last output is printed
            text = file.read()
            try:
                print(text, end="", flush=True)
            except OSError:  # the connection is closed
                return None
            if code is not None:
                return code
            if received:
                return None
            time.sleep(0.5)


def main(arguments: list[str]) -> int:
    if not arguments or arguments[0] in ("-h", "--help"):
        print(__doc__)
        return 0 if arguments else 2
    if not TOKEN.is_file() or not TOKEN.stat().st_size:
        return fail(f"{TOKEN} is missing, and the cluster lets nobody in without it; `ray up` copies it to all nodes")
    if TOKEN.stat().st_mode & 0o077:
        return fail(f"{TOKEN} can be read by others; chmod 600 {TOKEN}")
    try:
        import hflray
    except ImportError as error:
        return fail(f"hflray is not installed here ({error}); `ray up` does it with cluster/setup_node.sh")
    if CHECKOUT.is_dir():
        os.chdir(CHECKOUT)  # so that tune_configs/… is a path in the repository
    elif not (Path(hflray.__file__).parents[1] / "tune_configs").is_dir():
        return fail(f"{CHECKOUT} is missing; `ray up` copies the repository there")
    if option_value(arguments, "--storage") is None and not os.environ.get("HFLRAY_STORAGE"):
        return fail(
            "--storage: not given, and HFLRAY_STORAGE is not set; trials on other nodes could not save. Give "
            "--storage s3://bucket/folder or a folder that all nodes share, or set it in the cluster's file"
        )

    logs = RESULTS / "logs"
    logs.mkdir(parents=True, exist_ok=True)
    log = logs / f"{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}.log"
    command = [sys.executable, "-m", "hflray.tune", *with_defaults(arguments)]
    print(f"+ {' '.join(command)}\n  log: {log}", flush=True)
    with log.open("wb") as file:
        # The sweep gets a session of its own, because the end of the SSH connection ends the processes of this one.
        process = subprocess.Popen(
            command, stdout=file, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, start_new_session=True,
            env=os.environ | {"PYTHONUNBUFFERED": "1", "COLUMNS": os.environ.get("COLUMNS", "120")},
        )  # fmt: skip
    code = follow(process, log)
    if code is None:
        with contextlib.suppress(OSError):
            print(
                f"\nthe sweep goes on without you (process {process.pid}); see it: ray exec CLUSTER 'tail -f {log}'; "
                f"stop it: ray exec CLUSTER 'kill -INT {process.pid}'",
                flush=True,
            )
        return 0
    storage = option_value(arguments, "--storage") or os.environ.get("HFLRAY_STORAGE")
    print(
        f"\nresults: {RESULTS} on the head; journals and checkpoints: {storage}\n"
        "charts: `ray attach CLUSTER -p 5000`, then http://127.0.0.1:5000 in a browser\n"
        f"to your machine: ray rsync-down CLUSTER {RESULTS}/ ./hflray_results/",
        flush=True,
    )
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
