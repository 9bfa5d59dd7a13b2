"""The start of Ray for this process: it uses its own session, joins a cluster, or starts Ray on this machine.

A Ray that hflray starts is closed to other machines and to the other users of this one. It listens on the loopback
interface only, lets in only who has its token, whatever ``RAY_AUTH_MODE`` says, and has its sockets, logs and what it
unpacks below a folder that only this user can enter. Ray itself would make that folder writable for everybody.
"""

from __future__ import annotations

import logging
import os
import platform
import secrets
import socket
import stat
import tempfile
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from hflray.errors import ConfigError, HflrayError
from hflray.support import ray_private, references
from hflray.support.limits import available_cpus, check_address_space, within
from hflray.support.private import own_compiled_code, private_folder, reachable
from hflray.training import session

log = logging.getLogger(__name__)

LOOPBACK = "127.0.0.1"
QUIET: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
OBJECT_STORE_BYTES = 2 * 2**30  # for a Ray that we start: data sets and a few models; Ray spills the excess to disk
# The environment of the processes that Ray starts, unless the user has set it.
SETTINGS = {
    # One process serves several trials, each in a new thread. By default glibc gives nearly every thread its own heap,
    # and each heap keeps its peak size.
    "MALLOC_ARENA_MAX": "2",
    # Ray would keep a record of every call, of which its state API and its dashboard make a page. A Ray that we start
    # has neither, and its GCS server would grow by 16 kB with each round, up to 100,000 calls.
    "RAY_task_events_report_interval_ms": "0",
    # Neither Tune's trials, which have an environment of their own, nor their actors could use a worker started before.
    "RAY_prestart_worker_first_driver": "0",
}
CONNECT_S = 10.0  # how long a cluster's address may take to answer
JOIN_S = 20.0  # and how long the cluster may take to let this process in


def ray_place() -> Path:
    """Return the folder below which a Ray keeps its sessions, as Ray chooses it."""
    return Path(os.environ.get("RAY_TMPDIR") or os.environ.get("TMPDIR") or "/tmp")


def temporary_folder() -> Path:
    """Make and return the folder below which a Ray of ours keeps its sessions; make also that of claimed CPUs.

    Raises:
        ConfigError: other users can reach one of them.
    """
    private_folder()
    return private_folder(ray_place())


def last_line(error: Exception) -> str:
    """Return the error line of a traceback that is given as text."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return next((line for line in reversed(lines) if "Error: " in line), lines[-1] if lines else type(error).__name__)


def _is_reachable(address: str | None) -> bool:
    """Return whether `address` is ``host:port``; raise OSError if no server listens there. Ray tries for minutes."""
    host, _, port = (address or "").rpartition(":")
    if not host or not port.isdigit():
        return False
    socket.create_connection((host.strip("[]"), int(port)), timeout=CONNECT_S).close()
    return True


def _refuse_another_users() -> None:
    """Raise ConfigError if ``auto`` may lead to another user's Ray, which would get this user's token and run code.

    Ray takes any Ray that runs on this machine, or the address in a file of a folder that all users may write to.
    """
    named = ray_place() / "ray" / "ray_current_cluster"
    for place in (named, *Path("/proc").glob("[0-9]*")):
        with suppress(OSError):
            owner = place.lstat().st_uid
            if owner not in (0, os.getuid()) and (
                place == named or b"--gcs-address=" in (place / "cmdline").read_bytes()
            ):
                raise ConfigError(
                    f"RAY_ADDRESS: 'auto' may lead to the Ray of another user of this machine (uid {owner}, {place}); "
                    "accepted: the address of your own as host:port; name it, or leave --address out"
                )


def start_ray(num_cpus: int | None = None) -> int:
    """Use this process's Ray session, or join the cluster at ``$RAY_ADDRESS``, or start Ray on this machine.

    Returns:
        The number of CPUs that Ray has, at least 1.

    Raises:
        ConfigError: there is no cluster at ``$RAY_ADDRESS``, it requires a token, or it runs another Ray or Python; or
            the temporary folder or the token of a Ray on this machine is not this user's alone.
    """
    import ray
    from ray.exceptions import AuthenticationError

    if not ray.is_initialized():
        check_address_space()
        place = ray_place()
        # The address is passed as an argument because Ray may start a new cluster when the environment says "auto".
        address = os.environ.get("RAY_ADDRESS")
        reachable = False
        try:
            if address:
                if address == "auto":
                    _refuse_another_users()
                reachable = _is_reachable(address)
                within(JOIN_S, lambda: ray.init(address=address, **QUIET))  # Ray waits minutes for a Ray that ends
            else:
                cpus = len(available_cpus())
                if num_cpus is None and cpus < (os.cpu_count() or 1):
                    num_cpus = cpus  # Ray counts the machine's CPUs, also those that this process must not use
                context = start_local_ray(num_cpus=num_cpus, object_store_memory=OBJECT_STORE_BYTES)
                session.take_over(
                    Path(context.address_info["session_dir"]), partial(ray.shutdown, wait_for_processes=True)
                )
        except (AuthenticationError, OSError, ValueError, OverflowError, RuntimeError) as error:
            # For a wrong token Ray often reports only that it could not connect, or tries for longer than `JOIN_S`.
            if isinstance(error, AuthenticationError) and not address:
                named = os.environ.get("RAY_AUTH_TOKEN_PATH", "")
                raise ConfigError(
                    f"RAY_AUTH_TOKEN_PATH: got '{named}', where Ray finds no token; accepted: a file of yours with "
                    "mode 600 that has one; unset it, and hflray makes one"
                ) from error
            token = "it wants its token; copy its nodes' ~/.ray/auth_token here, chmod 600, and set RAY_AUTH_MODE=token"
            if isinstance(error, AuthenticationError) or (reachable and isinstance(error, ConnectionError)):
                raise ConfigError(
                    f"RAY_ADDRESS: the cluster at '{address}' does not let this process in: {token}"
                ) from error
            if not address and "AF_UNIX path length" in str(error):
                raise ConfigError(
                    f"$RAY_TMPDIR, $TMPDIR: got {place}, which is too long for the sockets that Ray puts "
                    "below it; accepted: a folder with a short path, such as /tmp; set RAY_TMPDIR to one"
                ) from error
            if not address:
                raise
            versions = f"Ray {ray.__version__}, Python {platform.python_version()}"
            raise ConfigError(
                f"RAY_ADDRESS: cannot join a cluster at '{address}' as {versions} ({last_line(error)}); start it with "
                "`ray up`, run this on one of its nodes, or leave --address out for this machine alone"
                + (f"; or {token}" if reachable and isinstance(error, TimeoutError) else "")
            ) from error
    references.pickle_by_value(ray.cloudpickle.register_pickle_by_value)
    return max(1, int(ray.cluster_resources().get("CPU", 1)))


def _init(options: dict[str, Any]) -> Any:
    """Call ``ray.init``, and once more if this machine was too busy: Ray waits only 30 s for its own processes.

    Raises:
        HflrayError: it was too busy both times.
    """
    import ray

    for _ in range(2):
        try:
            return ray.init(**options)
        except Exception as error:
            if "timed out during startup" not in str(error):
                raise
            ray.shutdown()
    raise HflrayError(
        f"Ray's processes did not start within 30 s, twice (load {os.getloadavg()[0]:.0f} on {os.cpu_count()} CPUs); "
        "nothing was lost; give the same command again when the machine is less busy"
    )


def start_local_ray(**options: Any) -> Any:
    """Start Ray on this machine with the options of ``ray.init``, closed to other machines and other users.

    Returns:
        What ``ray.init`` returns.

    Raises:
        ConfigError: the temporary folder or the token's file is not this user's alone.
    """
    import ray

    for name, value in SETTINGS.items():
        os.environ.setdefault(name, value)
    # As a variable it holds for all that Ray and Tune put at predictable places, and for the processes that Ray starts.
    os.environ["RAY_TMPDIR"] = str(temporary_folder())
    own_compiled_code()
    make_token()
    with ray_private.one_machine():
        # Without "local", Ray would join any cluster that runs on this machine.
        context = _init({"address": "local", "include_dashboard": False, **QUIET, **options})
    if ray.util.get_node_ip_address() != LOOPBACK:
        log.warning(
            "Ray %s listens on all network interfaces, where its token guards it; set a firewall, or install a release "
            "that `hflray doctor` finds right",
            ray.__version__,
        )
    return context


def make_token() -> None:
    """Give this process the token without which the Ray that it starts lets nobody in.

    It is ``$RAY_AUTH_TOKEN``, or that of the file ``$RAY_AUTH_TOKEN_PATH`` or ``~/.ray/auth_token``. The latter is
    made if it is missing: Ray would make one that every user of the machine may read, and two Rays that begin at once
    would each make their own. Where the file cannot be written, or others could read it until now, the processes of
    this Ray alone know the token.

    Raises:
        ConfigError: the file is a link, no file, another user's or empty.
    """
    mode = os.environ.pop("RAY_AUTH_MODE", "token")  # Ray reads it when it is imported, and again where it is not set
    if mode.lower() != "token":
        log.warning("RAY_AUTH_MODE: got '%s', which is for clusters; the Ray that starts here wants its token", mode)
    named = os.environ.get("RAY_AUTH_TOKEN_PATH")
    place = Path(named or "~/.ray/auth_token").expanduser()
    if os.environ.get("RAY_AUTH_TOKEN") or (named and not os.path.lexists(place)):
        return  # of a missing file that the user has named Ray says so
    token = secrets.token_hex(32)
    try:
        if not os.path.lexists(place):
            place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile("w", dir=place.parent) as file:
                file.write(token)
                file.flush()
                with suppress(FileExistsError):
                    os.link(file.name, place)  # another process may just have made one, which then is that of both
        token = _token_of(place) or token
    except OSError as error:
        log.info("%s: %s; this Ray alone has its token", place, error)
    os.environ["RAY_AUTH_TOKEN"] = token


def _token_of(place: Path) -> str:
    """Return the token in a file; empty if others could read it until now, when the file is closed to them."""
    state, problem = place.lstat(), ""
    if not stat.S_ISREG(state.st_mode) or state.st_uid != os.getuid():
        problem = reachable(state) or "is no file"
    elif not (text := place.read_text(encoding="utf-8", errors="replace").strip()):
        problem = "is empty"
    if problem:
        raise ConfigError(
            f"{place} {problem}; accepted: a file of yours with mode 600; remove it, and a new one is made"
        )
    if state.st_mode & 0o077:
        place.chmod(0o600)
        log.warning(
            "%s: other users could read it (mode %o until now), so that this Ray takes another token; remove it for a "
            "new one, unless a cluster uses it",
            place, stat.S_IMODE(state.st_mode),
        )  # fmt: skip
        return ""
    return text
