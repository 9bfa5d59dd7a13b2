"""The machine: a network namespace for each node, a link with `tbf` for each pair, and CPU quotas of cgroup v1.

Everything is called by `PREFIX` or lies in `GROUP`, and nothing else is touched. A link is a veth pair whose ends lie
in two namespaces, so that the machine's own network has none of it. `down` removes what is there, also what a killed
testbed left behind. The group has a large weight, so that other work on the machine takes less of its quotas.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

from hflray.errors import ConfigError

PREFIX = "hflray-tb-"
CPU = Path("/sys/fs/cgroup/cpu")
GROUP = "hflray-testbed"
LOCK = Path("/run/hflray-testbed.lock")
PERIOD_US = 10_000
CORES = 2  # which the devices' quotas do not fill
WEIGHT = 262_144  # `cpu.shares` of all nodes together; a process outside has 1,024
BURST, QUEUE = "4kb", "400ms"  # of `tbf`
FULL_FRAME = 1514  # bytes; with larger segments the bucket sees bursts of 64 kB
CLONE_NEWNET, PR_SET_PDEATHSIG = 0x40000000, 1
LIBC = ctypes.CDLL(None, use_errno=True)


def check() -> None:
    """Raise ConfigError, in one line, if this machine cannot carry a testbed."""
    if os.geteuid() != 0:
        raise ConfigError("testbed: got a user without root, who may make no network namespaces; run it as root")
    if (cores := len(os.sched_getaffinity(0))) < CORES:
        raise ConfigError(f"testbed: got {cores} core; accepted: at least {CORES}; run it on a larger machine")
    for tool in ("ip", "tc"):
        if shutil.which(tool) is None:
            raise ConfigError(f"testbed: got no command {tool}; accepted: that of iproute2; install it")
    if not (CPU / "cgroup.procs").exists():
        raise ConfigError(
            f"testbed: got no cpu controller of cgroup v1 at {CPU} (v2 is not supported); mount it, as by "
            "mount -t cgroup -o cpu cgroup /sys/fs/cgroup/cpu"
        )


@contextlib.contextmanager
def only_one() -> Iterator[None]:
    """Hold the machine's lock. Raises ConfigError: another testbed runs."""
    with LOCK.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConfigError(f"testbed: another one runs, which holds {LOCK}; wait for its end") from None
        yield


def run(*words: object) -> str:
    """Run a command and return its output. Raises ConfigError: it failed."""
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True, check=False)
    if done.returncode:
        said = " ".join((done.stderr or done.stdout).split())
        raise ConfigError(f"testbed: {' '.join(map(str, words))} failed: {said or 'it said nothing'}")
    return done.stdout


def name_of(node: str) -> str:
    """Return the name of a node's namespace and CPU group."""
    return PREFIX + node


def address(link: int, end: int) -> str:
    """Return the address of one end, 0 or 1, of a link."""
    return f"10.213.{link}.{1 + end}"


def namespaces() -> list[str]:
    """Return the namespaces of a testbed that there are."""
    names = [line.split()[0] for line in run("ip", "netns", "list").splitlines() if line.strip()]
    return [name for name in names if name.startswith(PREFIX)]


def up(nodes: list[str], links: list[tuple[str, str]]) -> None:
    """Make the namespaces and CPU groups of nodes, and the links, whose first end may send slowly (`set_rate`)."""
    for node in nodes:
        run("ip", "netns", "add", name_of(node))
        run("ip", "-n", name_of(node), "link", "set", "lo", "up")
    for number, pair in enumerate(links):
        ends = [f"l{number}a", f"l{number}b"]
        run("ip", "link", "add", ends[0], "netns", name_of(pair[0]), "type", "veth",
            "peer", "name", ends[1], "netns", name_of(pair[1]))  # fmt: skip
        for end, node in enumerate(pair):
            here = ("ip", "-n", name_of(node))
            run(*here, "addr", "add", f"{address(number, end)}/24", "dev", ends[end])
            run(*here, "link", "set", ends[end], "gso_max_size", FULL_FRAME, "gso_max_segs", 1)
            run(*here, "link", "set", ends[end], "up")
    (CPU / GROUP).mkdir()
    (CPU / GROUP / "cpu.shares").write_text(str(WEIGHT))
    for node in nodes:
        (CPU / GROUP / node).mkdir()
        (CPU / GROUP / node / "cpu.cfs_period_us").write_text(str(PERIOD_US))


def down() -> None:
    """Remove all namespaces, links and CPU groups of testbeds, and end the processes in them."""
    groups = sorted((CPU / GROUP).glob("*/")) if (CPU / GROUP).exists() else []
    for name in namespaces():
        for pid in run("ip", "netns", "pids", name).split():
            _kill(int(pid))
    for group in groups:
        for pid in (group / "cgroup.procs").read_text().split():
            _kill(int(pid))
    for name in namespaces():
        run("ip", "netns", "del", name)
    for group in [*groups, *([CPU / GROUP] if (CPU / GROUP).exists() else [])]:
        for _ in range(100):  # a group is busy until its last process has gone
            try:
                group.rmdir()
                break
            except OSError:
                time.sleep(0.05)


def _kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def enter(node: str) -> None:
    """Move this process into a node's namespace and CPU group; it ends with its parent."""
    LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    with Path("/run/netns", name_of(node)).open() as file:
        if LIBC.setns(file.fileno(), CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), f"setns to {name_of(node)}")
    (CPU / GROUP / node / "cgroup.procs").write_text(str(os.getpid()))


def set_cores(node: str, cores: float) -> None:
    """Give a node this share of a core."""
    (CPU / GROUP / node / "cpu.cfs_quota_us").write_text(str(round(cores * PERIOD_US)))


def set_rate(node: str, link: int, rate_bps: float) -> None:
    """Let a node send over a link of which it is the first end at this rate, headers included, bit/s."""
    words = ("root", "tbf", "rate", f"{round(rate_bps)}bit", "burst", BURST, "latency", QUEUE)
    run("tc", "-n", name_of(node), "qdisc", "replace", "dev", f"l{link}a", *words)


def busy_s() -> float:
    """Return the seconds that all cores together have computed since the machine's start."""
    user, nice, system, _, _, irq, softirq, *_ = Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]
    return sum(map(int, (user, nice, system, irq, softirq))) / os.sysconf("SC_CLK_TCK")


def cpu_name() -> str:
    """Return what the CPU calls itself, with its family and model."""
    text = Path("/proc/cpuinfo").read_text()
    names = ("model name", "cpu family", "model")
    values = [re.search(rf"^{name}\s*: (.*)$", text, re.MULTILINE) for name in names]
    name, family, model = (value[1] if value else "unknown" for value in values)
    return f"{name} (family {family}, model {model})"
