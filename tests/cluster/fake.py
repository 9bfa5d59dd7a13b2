"""Machines for the tests of cluster/: namespace hosts, and a fake EC2 whose machines are such hosts."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
SCRIPT = Path(__file__).parent / "hosts.sh"
GATEWAY, PORT = "10.77.0.1", 5555
ENDPOINT = f"http://{GATEWAY}:{PORT}"
CREDENTIALS = {
    "AWS_ACCESS_KEY_ID": "testing",
    "AWS_SECRET_ACCESS_KEY": "testing",
    "AWS_DEFAULT_REGION": "us-west-2",
    "AWS_EC2_METADATA_DISABLED": "true",
}


def why_not() -> str | None:
    """Return why this machine cannot run namespace hosts; None if it can."""
    if os.geteuid():
        return "namespace hosts need root"
    missing = [name for name in ("ip", "unshare", "ssh", "ssh-keygen", "rsync") if shutil.which(name) is None]
    missing += [] if Path("/usr/sbin/sshd").exists() else ["sshd"]
    if missing:
        return f"not installed: {', '.join(missing)} (apt-get install openssh-server rsync iproute2)"
    probe = subprocess.run(["unshare", "--net", "--pid", "--mount", "--fork", "true"], capture_output=True, check=False)
    return "this machine forbids namespaces" if probe.returncode else None


class Hosts:
    """Namespace hosts, and the home of the user who starts them, with a token and a key.

    Args:
        folder: the parent of all files.
        environment: the environment variables of every host's shells.
    """

    def __init__(self, folder: Path, environment: dict[str, str] | None = None) -> None:
        self.folder, self.home, self.repository = folder / "hosts", folder / "home", folder / "hflray"
        (self.home / ".ray").mkdir(parents=True)
        (self.home / ".ssh").mkdir(mode=0o700)
        self.folder.mkdir()
        ignore = shutil.ignore_patterns(".git", "__pycache__", ".venv", "*.egg-info", "hflray_results", ".*_cache")
        shutil.copytree(ROOT, self.repository, ignore=ignore)
        self.key = self.home / ".ssh" / "id_ed25519"
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(self.key)], check=True)
        timing = "RAY_health_check_period_ms=1000 RAY_health_check_failure_threshold=5"
        lines = [f"export {name}={value}" for name, value in (environment or {}).items()]
        (self.folder / "environment").write_text(
            "\n".join([*lines, f"export {timing} RAY_DISABLE_MEMORY_MONITOR=1", ""])
        )
        self._env = os.environ | {
            "HOSTS": str(self.folder),
            "PYTHON_ENV": sys.prefix,
            "REPOSITORY": str(self.repository),
            "HOME": str(self.home),
            "PATH": f"{sys.prefix}/bin:{os.environ['PATH']}",
            "PYTHONPATH": str(self.repository),
            "RAY_USAGE_STATS_ENABLED": "0",
            **(environment or {}),
        }
        self.script("bridge-up")
        token = subprocess.run(
            ["ray", "get-auth-token", "--generate"], env=self._env, check=True, capture_output=True, text=True
        )
        assert token.stdout.strip()
        (self.home / ".ray" / "auth_token").chmod(0o600)

    def script(self, *arguments: str) -> None:
        subprocess.run([str(SCRIPT), *arguments], env=self._env, check=True, timeout=60)

    def up(self, name: str, addresses: str, key: Path | None = None) -> None:
        self.script("up", name, addresses, str(key or self.key.with_suffix(".pub")))

    def down(self, name: str) -> None:
        self.script("down", name)

    def close(self) -> None:
        self.script("all-down")

    def ray(self, *arguments: str, timeout: float = 600, **env: str) -> subprocess.CompletedProcess[str]:
        """Run ``ray …`` in the repository as the user."""
        return subprocess.run(
            ["ray", *arguments], cwd=self.repository, env=self._env | env, timeout=timeout, check=False,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip

    def spawn(self, *command: str, **env: str) -> subprocess.Popen[str]:
        """Start a command in the repository as the user."""
        return subprocess.Popen(
            command, cwd=self.repository, env=self._env | env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True, start_new_session=True,
        )  # fmt: skip

    def inside(self, name: str, code: str, timeout: float = 120, **env: str) -> subprocess.CompletedProcess[str]:
        """Run Python in a host's network with this machine's files."""
        command = ["ip", "netns", "exec", f"hfl-{name}", sys.executable, "-c", code]
        return subprocess.run(
            command,
            env=self._env | env,
            timeout=timeout,
            check=False,
            capture_output=True,
            text=True,
            cwd=self.repository,
        )


class FakeEc2:
    """Moto's EC2, S3 and IAM at `ENDPOINT`. Every running machine is a namespace host."""

    def __init__(self, hosts: Hosts) -> None:
        self._hosts, self._log = hosts, (hosts.folder / "moto.log").open("w")
        self.machines: dict[str, dict[str, Any]] = {}  # EC2's descriptions by id, with "host", "tags" and "running"
        env = os.environ | {"MOTO_IAM_LOAD_MANAGED_POLICIES": "true"} | CREDENTIALS
        # The server ends with the tests, or the next run would find its port taken.
        command = ["setpriv", "--pdeathsig", "KILL", f"{sys.prefix}/bin/moto_server", "-H", GATEWAY, "-p", str(PORT)]
        self._moto = subprocess.Popen(command, env=env, stdout=self._log, stderr=self._log)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        deadline = time.monotonic() + 60
        while True:
            try:
                self.client("ec2").describe_instances()
                break
            except Exception:
                assert self._moto.poll() is None, (hosts.folder / "moto.log").read_text()
                assert time.monotonic() < deadline, "moto_server does not answer"
                time.sleep(0.5)
        self._thread.start()

    def client(self, name: str) -> Any:
        import boto3

        return boto3.client(
            name, region_name="us-west-2", endpoint_url=ENDPOINT, aws_access_key_id="t", aws_secret_access_key="t"
        )

    def running(self, kind: str | None = None) -> list[dict[str, Any]]:
        """Return the running machines of a node type, or of all types."""
        return [
            m for m in self.machines.values() if m["running"] and kind in (None, m["tags"].get("ray-user-node-type"))
        ]

    def lose(self, machine: dict[str, Any]) -> None:
        """Terminate a machine as AWS reclaims a spot machine: EC2 reports the end, and the host disappears."""
        self.client("ec2").terminate_instances(InstanceIds=[machine["InstanceId"]])

    def _watch(self) -> None:
        ec2 = self.client("ec2")
        while not self._stop.wait(0.5):
            try:
                reservations = ec2.describe_instances()["Reservations"]
            except Exception:
                continue
            for machine in (m for r in reservations for m in r["Instances"]):
                number, state = machine["InstanceId"], machine["State"]["Name"]
                if state == "running" and number not in self.machines:
                    self._start(machine)
                elif state in ("terminated", "shutting-down", "stopped") and self.machines.get(number, {}).get(
                    "running"
                ):
                    self.machines[number]["running"] = False
                    self._hosts.down(self.machines[number]["host"])

    def _start(self, machine: dict[str, Any]) -> None:
        pems = sorted((self._hosts.home / ".ssh").glob("ray-autoscaler*.pem"))
        public = self._hosts.folder / "ec2.pub"
        public.write_bytes(subprocess.check_output(["ssh-keygen", "-y", "-f", str(pems[0])]))
        host = machine["InstanceId"][2:10]
        self._hosts.up(host, f"{machine['PrivateIpAddress']},{machine['PublicIpAddress']}", public)
        tags = {tag["Key"]: tag["Value"] for tag in machine.get("Tags", ())}
        self.machines[machine["InstanceId"]] = {**machine, "host": host, "tags": tags, "running": True}

    def close(self) -> None:
        self._stop.set()
        self._thread.join(30)
        self._moto.terminate()
        self._moto.wait(20)
        self._log.close()


def need_hosts() -> None:
    """Skip the test if this machine cannot run hosts."""
    reason = why_not()
    if reason:
        pytest.skip(reason)
    pytest.importorskip("moto", reason="pip install '.[cluster-test]'")
