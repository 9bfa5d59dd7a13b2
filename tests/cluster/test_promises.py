"""What cluster/ promises, as it can be read in its files; needs no launcher and no moto, so it is an ordinary test."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import yaml

CLUSTER = Path(__file__).parents[2] / "cluster"


def shipped(name: str) -> dict:
    return yaml.safe_load((CLUSTER / name).read_text(encoding="utf-8"))


def test_what_the_files_promise() -> None:
    """Spot workers from none, no work on the head, IMDSv2, loopback, no secret, an image and a setup of our choice."""
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
    for wanted in (*project["dependencies"], *extras["search"], *extras["cluster"]):
        assert re.match(r"[a-z0-9-]+", wanted)[0] in names, f"{wanted} is not in requirements.lock: make lock"


def test_the_account_template_closes_the_bucket_and_opens_one_port() -> None:
    text = (CLUSTER / "aws-account.yaml").read_text()
    block = "{BlockPublicAcls: true, BlockPublicPolicy: true, IgnorePublicAcls: true, RestrictPublicBuckets: true}"
    assert block in text  # moto knows nothing of it, so it is read here
    assert re.findall(r"FromPort: (\d+), ToPort: (\d+), CidrIp: (\S+) ", text) == [("22", "22", "!Ref")]
