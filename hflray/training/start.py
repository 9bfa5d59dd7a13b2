"""The start of Ray for this process: it uses its own session, joins a cluster, or starts Ray on this machine.

A Ray that hflray starts listens on the loopback interface only, so that no other machine can reach it.
"""

from __future__ import annotations

import faulthandler
import logging
import os
import platform
import socket
import sys
import tempfile
import threading
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from hflray.errors import ConfigError, HflrayError
from hflray.support import ray_private, references
from hflray.support.cache import cache_folder
from hflray.support.deadline import within
from hflray.support.files import MIB, free_bytes, write
from hflray.support.limits import check_address_space
from hflray.training import session
from hflray.training.machine import available_cpus

log = logging.getLogger(__name__)

LOOPBACK = "127.0.0.1"
QUIET: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
OBJECT_STORE_BYTES = 2 * 2**30  # for a Ray that we start: data sets and a few models; Ray spills the excess to disk
SESSION_BYTES = 20 * MIB  # the files of a session of Ray in `ray_folder`, measured: 0.3 to 7 MiB
# Ray would keep a record of every call, of which its state API and its dashboard make a page. A Ray that we start has
# neither, and its GCS server would grow by 16 kB with each round, up to 100,000 calls. Nor does it write statistics of
# its own event loops into its logs each minute. (With -1 in place of 0, Ray 2.60 writes them without end.)
CONFIG: dict[str, Any] = {"task_events_report_interval_ms": 0, "event_stats_print_interval_ms": 0}
CONNECT_S = 10.0  # how long a cluster's address may take to answer
JOIN_S = 20.0  # and how long the cluster may take to let this process in
PATIENCE_S = 100.0  # how long the start in the background may take; Ray gives up after twice 30 s
LATE = "HFLRAY_STARTS_RAY_LATE"  # set for a command that begins anew, so that it starts Ray in its main thread

_starting: Future[int] | None = None  # the start that `start_soon` has begun


def ray_folder() -> Path:
    """Return the folder of Ray's sessions on this machine, as Ray chooses it."""
    return Path(os.environ.get("RAY_TMPDIR") or os.environ.get("TMPDIR") or "/tmp") / "ray"


def start_soon() -> None:
    """Begin to start Ray on this machine in the background, unless $RAY_ADDRESS names a cluster; `start_ray` waits.

    Ray starts no workers in advance, because neither Tune's trials, which have an environment of their own, nor their
    actors could use them. A Ray that this process already has is not touched, so that `cancel_start` cannot end it.
    Nothing is started on a full disk, about which the later check of the disks has a message.
    """
    global _starting
    ray = sys.modules.get("ray")  # importing Ray takes a second, which the thread below spends in the background
    if (ray is not None and ray.is_initialized()) or os.environ.get(LATE):
        return
    if _starting is None and not os.environ.get("RAY_ADDRESS") and free_bytes(ray_folder()) > SESSION_BYTES:
        _starting = outcome = Future[int]()

        def begin() -> None:
            try:
                outcome.set_result(_start(None, ray_private.system_config({}, {"prestart_worker_first_driver": False})))
            except BaseException as error:
                outcome.set_exception(error)
            threading.Event().wait()  # Ray's processes end with the thread that started them

        threading.Thread(target=begin, name="hflray-start-ray", daemon=True).start()


def cancel_start() -> None:
    """End the start that `start_soon` has begun, if `start_ray` has not used it, because the command ends early."""
    global _starting
    if _starting is not None:
        outcome, _starting = _starting, None
        with suppress(TimeoutError):
            if outcome.exception(PATIENCE_S) is None:
                import ray

                ray.shutdown()


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


def start_ray(num_cpus: int | None = None) -> int:
    """Use this process's Ray session, or join the cluster at ``$RAY_ADDRESS``, or start Ray on this machine.

    Returns:
        The number of CPUs that Ray has, at least 1.

    Raises:
        ConfigError: there is no cluster at ``$RAY_ADDRESS``, it requires a token, or it runs another Ray or Python.
    """
    global _starting
    if _starting is not None:
        outcome, _starting = _starting, None
        try:
            outcome.exception(PATIENCE_S)
        except TimeoutError:
            _begin_anew()
        outcome.result()
    return _start(num_cpus, {})


def _begin_anew() -> None:
    """Run this process's command anew in place of it. The processes that Ray has started end with their thread.

    A start in the background was once seen stuck, just before the raylet, when Ray's forks still ran Python beside
    other threads (`ray_private.plain_forks`). A file in the cache folder gets what each thread was doing.
    """
    place = cache_folder("stuck") / f"{os.getpid()}.txt"
    with tempfile.TemporaryFile() as threads:
        faulthandler.dump_traceback(threads, all_threads=True)
        threads.seek(0)
        write(place, threads.read())
    log.warning("Ray was not started within %.0f s, so the command begins anew (see %s)", PATIENCE_S, place)
    sys.stdout.flush()
    os.environ[LATE] = "1"
    os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])


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


def _start(num_cpus: int | None, more: dict[str, Any]) -> int:
    """Do what `start_ray` does. `more` holds further arguments for a Ray that we start."""
    import ray
    from ray.exceptions import AuthenticationError

    if not ray.is_initialized():
        check_address_space()
        # The address is passed as an argument because Ray may start a new cluster when the environment says "auto".
        address = os.environ.get("RAY_ADDRESS")
        reachable = False
        try:
            if address:
                reachable = _is_reachable(address)
                within(JOIN_S, lambda: ray.init(address=address, **QUIET))  # Ray waits minutes for a Ray that ends
            else:
                # This is for the processes that Ray starts. One process serves several trials, each in a new thread. By
                # default glibc gives nearly every thread its own heap, and each heap keeps its peak size.
                os.environ.setdefault("MALLOC_ARENA_MAX", "2")
                cpus = len(available_cpus())
                if num_cpus is None and cpus < (os.cpu_count() or 1):
                    num_cpus = cpus  # Ray counts the machine's CPUs, also those that this process must not use
                context = start_local_ray(num_cpus=num_cpus, object_store_memory=OBJECT_STORE_BYTES, **more)
                session.own(Path(context.address_info["session_dir"]), partial(ray.shutdown, wait_for_processes=True))
        except (AuthenticationError, OSError, ValueError, OverflowError, RuntimeError) as error:
            # For a wrong token Ray often reports only that it could not connect, or tries for longer than `JOIN_S`.
            token = "it wants its token; copy its nodes' ~/.ray/auth_token here, chmod 600, and set RAY_AUTH_MODE=token"
            if isinstance(error, AuthenticationError) or (reachable and isinstance(error, ConnectionError)):
                raise ConfigError(
                    f"RAY_ADDRESS: the cluster at '{address or 'this machine'}' does not let this process in: {token}"
                ) from error
            if not address and "AF_UNIX path length" in str(error):
                raise ConfigError(
                    f"$RAY_TMPDIR, $TMPDIR: got {ray_folder().parent}, which is too long for the sockets that Ray puts "
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


def start_local_ray(**options: Any) -> Any:
    """Start Ray on this machine with the options of ``ray.init``; all its processes listen on the loopback only.

    Returns:
        What ``ray.init`` returns.
    """
    import ray

    options = ray_private.system_config(options, CONFIG)
    with (
        ray_private.plain_forks(),
        ray_private.fewer_processes(),
        ray_private.keep_loopback(LOOPBACK) as address,
    ):
        # Without "local", Ray would join any cluster that runs on this machine.
        context = _init({"address": "local", "include_dashboard": False, **QUIET, **address, **options})
    if ray.util.get_node_ip_address() != LOOPBACK:
        log.warning(
            "Ray %s listens on all network interfaces, where its token guards it; set a firewall, or install Ray 2.60",
            ray.__version__,
        )
    return context
