"""A sweep on the cluster this machine is the head of.

    ray submit cluster/aws.yaml cluster/sweep.py tune_configs/sweep_h_lambda_data.yaml [--set KEY=VALUE]
    ray submit cluster/aws.yaml cluster/sweep.py --resume sweep_h_lambda_data

`ray submit` copies this one file to the head and runs it there. What follows is for `python -m hflray.tune`, which runs
in a session of its own: it goes on when the connection drops, and the last lines here say how to see it again.
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


def given(arguments: list[str], option: str) -> str | None:
    """The value of an option, in either form; None if it is not there."""
    for index, argument in enumerate(arguments):
        if argument.startswith(f"{option}="):
            return argument.partition("=")[2]
        if argument == option and index + 1 < len(arguments):
            return arguments[index + 1]
    return None


def completed(arguments: list[str]) -> list[str]:
    """The arguments, and where this cluster keeps things unless they say otherwise."""
    more = ["--address", "auto"] if given(arguments, "--address") is None else []
    if given(arguments, "--results") is None:
        more += ["--results", str(RESULTS)]
    storage = os.environ.get("HFLRAY_STORAGE")
    if storage and given(arguments, "--storage") is None:
        more += ["--storage", storage]
    resuming = given(arguments, "--resume") is not None
    if not resuming and given(arguments, "--tracking-uri") is None and answers(MLFLOW):
        more += ["--tracking-uri", f"http://{MLFLOW[0]}:{MLFLOW[1]}"]
    return [*arguments, *more]


def answers(address: tuple[str, int]) -> bool:
    try:
        with socket.create_connection(address, timeout=2):
            return True
    except OSError:
        return False


def follow(process: subprocess.Popen[bytes], log: Path) -> int | None:
    """Print the log until the sweep ends; return its exit code, or None if somebody here wants to leave."""
    left: list[int] = []
    leave = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.signal(number, lambda which, _: left.append(which)) for number in leave}
    try:
        return _tail(process, log, left)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _tail(process: subprocess.Popen[bytes], log: Path, left: list[int]) -> int | None:
    with log.open(encoding="utf-8", errors="replace") as file:
        while True:
            code = process.poll()  # asked before reading: what was written until then is printed
            text = file.read()
            try:
                print(text, end="", flush=True)
            except OSError:  # nobody is listening any more
                return None
            if code is not None:
                return code
            if left:
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
        os.chdir(CHECKOUT)  # tune_configs/… is meant as it is in the repository
    elif not (Path(hflray.__file__).parents[1] / "tune_configs").is_dir():
        return fail(f"{CHECKOUT} is missing; `ray up` copies the repository there")
    if given(arguments, "--storage") is None and not os.environ.get("HFLRAY_STORAGE"):
        return fail(
            "--storage: not given, and HFLRAY_STORAGE is not set; trials on other nodes could not save. Give "
            "--storage s3://bucket/folder or a folder that all nodes share, or set it in the cluster's file"
        )

    logs = RESULTS / "logs"
    logs.mkdir(parents=True, exist_ok=True)
    log = logs / f"{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}.log"
    command = [sys.executable, "-m", "hflray.tune", *completed(arguments)]
    print(f"+ {' '.join(command)}\n  log: {log}", flush=True)
    with log.open("wb") as file:
        # A session of its own: the end of the SSH connection ends what is in this one.
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
    storage = given(arguments, "--storage") or os.environ.get("HFLRAY_STORAGE")
    print(
        f"\nresults: {RESULTS} on the head; trials and checkpoints: {storage}\n"
        "charts: `ray attach CLUSTER -p 5000`, then http://127.0.0.1:5000 in a browser\n"
        f"to your machine: ray rsync-down CLUSTER {RESULTS}/ ./hflray_results/",
        flush=True,
    )
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
