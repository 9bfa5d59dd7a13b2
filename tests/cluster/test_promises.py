"""The promises of cluster/ that its files show by themselves, without a launcher or moto."""

from __future__ import annotations

import re
import subprocess
import tomllib
from pathlib import Path

import pytest
import yaml

CLUSTER = Path(__file__).parents[2] / "cluster"


def shipped(name: str) -> dict:
    return yaml.safe_load((CLUSTER / name).read_text(encoding="utf-8"))


def test_the_files_keep_their_promises() -> None:
    """The workers are spot machines and may be none. The head runs no trials. IMDSv2, an image and our setup are set.

    The dashboard listens on loopback, and no file holds a secret.
    """
    aws, local = shipped("aws.yaml"), shipped("local.yaml")
    head, worker = aws["available_node_types"]["head"], aws["available_node_types"]["worker_spot"]
    assert head["resources"] == {"CPU": 0}
    assert (worker["min_workers"], worker["node_config"]["InstanceMarketOptions"]["MarketType"]) == (0, "spot")
    for kind in (head, worker):
        assert kind["node_config"]["MetadataOptions"]["HttpTokens"] == "required"
        assert "ImageId" in kind["node_config"]
    assert head["node_config"]["IamInstanceProfile"] != worker["node_config"]["IamInstanceProfile"]
    assert (
        head["node_config"]["InstanceType"].partition(".")[0] == worker["node_config"]["InstanceType"].partition(".")[0]
    )
    for cluster in (aws, local):
        (started,) = (line for line in cluster["head_start_ray_commands"] if "ray start" in line)
        assert "--dashboard-host=127.0.0.1" in started
        assert cluster["file_mounts"]["~/.ray/auth_token"] == "~/.ray/auth_token"
        assert any("setup_node.sh" in line for line in cluster["setup_commands"])
    for path in CLUSTER.iterdir():
        assert not re.search(r"AKIA[0-9A-Z]{16}|aws_secret|password\s*[:=]\s*\S", path.read_text()), path


def test_the_lock_has_a_hash_for_every_requirement_and_all_we_depend_on() -> None:
    text = (CLUSTER / "requirements.lock").read_text()
    pins = re.split(r"\n(?=[a-z])", text)[1:] if text.startswith("#") else re.split(r"\n(?=[a-z])", text)
    names = {re.match(r"[a-z0-9-]+", pin)[0] for pin in pins}
    assert all("==" in pin and "--hash=sha256:" in pin for pin in pins)
    project = tomllib.loads((CLUSTER.parent / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    for requirement in (*project["dependencies"], *extras["search"], *extras["cluster"]):
        assert re.match(r"[a-z0-9-]+", requirement)[0] in names, f"{requirement} is not in requirements.lock: make lock"


def test_the_account_template_closes_the_bucket_and_opens_one_port() -> None:
    text = (CLUSTER / "aws-account.yaml").read_text()
    block = "{BlockPublicAcls: true, BlockPublicPolicy: true, IgnorePublicAcls: true, RestrictPublicBuckets: true}"
    assert block in text  # moto does not support this property, so the text is compared
    assert re.findall(r"FromPort: (\d+), ToPort: (\d+), CidrIp: (\S+) ", text) == [("22", "22", "!Ref")]


@pytest.mark.parametrize("trap", ["", "0755", "a link"])
def test_a_node_starts_ray_only_below_a_folder_of_its_user_alone(tmp_path: Path, trap: str) -> None:
    """Other users of a machine could otherwise stage files for Ray, or connect to its sockets."""
    text = (CLUSTER / "setup_node.sh").read_text()
    (lines,) = re.findall(r"^export RAY_TMPDIR=.*?^fi$", text, re.MULTILINE | re.DOTALL)
    lines = lines.replace("\\$", "$").replace("/tmp/", f"{tmp_path}/")
    folder = tmp_path / f"hflray-{subprocess.check_output(['id', '-un'], text=True).strip()}"
    if trap == "a link":
        (tmp_path / "elsewhere").mkdir(mode=0o700)
        folder.symlink_to(tmp_path / "elsewhere")
    elif trap:
        folder.mkdir()
        folder.chmod(int(trap, 8))
    script = f"set -euo pipefail\nray() {{ echo started; }}\n{lines}\n{lines}\nray start"
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=False)
    if trap:
        assert done.returncode == 2
        assert done.stderr == f"error: {folder} is not a folder of yours with mode 700; remove it\n"
    else:
        assert done.stdout == "started\n"
        assert folder.stat().st_mode & 0o7777 == 0o700
