"""The files of cluster/ without machines: Ray's schema, EC2's parameters, a launch in moto, the checks. No root."""

from __future__ import annotations

import copy
import importlib.util
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import yaml

from tests.cluster.fake import CREDENTIALS

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]

CLUSTER = Path(__file__).parents[2] / "cluster"


def module(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(f"cluster_{name}", CLUSTER / f"{name}.py")
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    return script


check, sweep = module("check"), module("sweep")


def shipped(name: str = "aws.yaml") -> dict[str, Any]:
    return yaml.safe_load((CLUSTER / name).read_text(encoding="utf-8"))


def written(folder: Path, cluster: dict[str, Any]) -> Path:
    path = folder / "cluster.yaml"
    path.write_text(yaml.safe_dump(cluster).replace("EDIT-ME", "hflray-123456789012-us-west-2"))
    return path


@pytest.mark.parametrize("name", ["aws.yaml", "local.yaml"])
def test_ray_and_ec2_accept_the_shipped_file(tmp_path, name) -> None:
    assert list(check.file_problems(written(tmp_path, shipped(name)))) == []


@pytest.mark.parametrize(
    "path, value, message",
    [
        (("idle_timeout_mins",), 5, "idle_timeout_mins"),
        (("max_workers",), "4", "'4' is not of type"),
        (("available_node_types", "worker_spot", "node_config", "InstanceTyp"), "x", "InstanceTyp"),
        (("available_node_types", "head", "node_config", "MetadataOptions"), {"HttpToken": "required"}, "HttpToken"),
        (("setup_commands",), ["X=s3://EDIT-HERE"], None),
    ],
)
def test_a_misspelt_key_is_reported(tmp_path, path, value, message) -> None:
    cluster = copy.deepcopy(shipped())
    place = cluster
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    problems = list(check.file_problems(written(tmp_path, cluster)))
    assert ([message in problem for problem in problems] == [True]) if message else problems == []


def test_a_placeholder_for_the_bucket_is_reported(tmp_path) -> None:
    path = tmp_path / "aws.yaml"
    path.write_text((CLUSTER / "aws.yaml").read_text())
    (problem,) = check.file_problems(path)
    assert "put your bucket in the place of EDIT-ME" in problem


@pytest.fixture
def account(monkeypatch, tmp_path) -> Iterator[Any]:
    """Yield boto3 for an AWS account in moto with our stack. Ray's code does not sleep."""
    moto = pytest.importorskip("moto", reason="pip install '.[cluster-test]'")
    import boto3

    for name, value in {**CREDENTIALS, "HOME": str(tmp_path)}.items():
        monkeypatch.setenv(name, value)
    with (
        moto.mock_aws(config={"iam": {"load_aws_managed_policies": True}}),
        mock.patch("ray.autoscaler._private.aws.config.time.sleep"),
    ):
        region = {"region_name": "us-west-2"}
        vpc = boto3.client("ec2", **region).describe_vpcs()["Vpcs"][0]["VpcId"]
        boto3.client("cloudformation", **region).create_stack(
            StackName="hflray",
            TemplateBody=(CLUSTER / "aws-account.yaml").read_text(),
            Capabilities=["CAPABILITY_NAMED_IAM"],
            Parameters=[
                {"ParameterKey": "VpcId", "ParameterValue": vpc},
                {"ParameterKey": "MyAddress", "ParameterValue": "203.0.113.7/32"},
            ],
        )
        yield boto3


def test_head_and_spot_workers_are_launched_as_written(account) -> None:
    from ray.autoscaler._private import commands
    from ray.autoscaler._private.providers import _get_node_provider
    from ray.autoscaler.tags import (
        TAG_RAY_LAUNCH_CONFIG,
        TAG_RAY_NODE_KIND,
        TAG_RAY_NODE_NAME,
        TAG_RAY_NODE_STATUS,
        TAG_RAY_USER_NODE_TYPE,
    )

    config = commands._bootstrap_config(shipped(), no_config_cache=True)
    provider = _get_node_provider(config["provider"], config["cluster_name"])
    for name, kind, count in (("head", "head", 1), *[("worker_spot", "worker", 1)] * 2):
        node = dict(config["available_node_types"][name]["node_config"]) | (
            config["head_node"] if kind == "head" else {}
        )
        tags = {
            TAG_RAY_NODE_KIND: kind,
            TAG_RAY_NODE_NAME: name,
            TAG_RAY_USER_NODE_TYPE: name,
            TAG_RAY_LAUNCH_CONFIG: "x",
            TAG_RAY_NODE_STATUS: "uninitialized",
        }
        provider.create_node(node, tags, count)
    ec2 = account.client("ec2", region_name="us-west-2")
    machines = [m for r in ec2.describe_instances()["Reservations"] for m in r["Instances"]]
    kinds = sorted((m["InstanceType"], m.get("InstanceLifecycle")) for m in machines)
    assert kinds == [("m7a.4xlarge", "spot"), ("m7a.4xlarge", "spot"), ("m7a.xlarge", None)]
    profiles = {m["InstanceType"]: m["IamInstanceProfile"]["Arn"].rpartition("/")[2] for m in machines}
    assert profiles == {"m7a.xlarge": "hflray-head", "m7a.4xlarge": "hflray-worker"}
    assert config["available_node_types"]["worker_spot"]["resources"]["CPU"] == 16
    # Ray adds nothing to the security group that the stack made.
    (group,) = {g["GroupId"] for m in machines for g in m["SecurityGroups"]}
    rules = ec2.describe_security_groups(GroupIds=[group])["SecurityGroups"][0]["IpPermissions"]
    assert [r["CidrIp"] for rule in rules for r in rule["IpRanges"]] == ["203.0.113.7/32"]


def ready_cluster(account: Any) -> dict[str, Any]:
    """Return the shipped file with this account's bucket, and an image that moto has instead of Debian's."""
    cluster = shipped()
    bucket = account.client("s3").list_buckets()["Buckets"][0]["Name"]
    cluster["setup_commands"] = [line.replace("EDIT-ME", bucket) for line in cluster["setup_commands"]]
    for kind in cluster["available_node_types"].values():
        kind["node_config"]["ImageId"] = "ami-12c6146b"
    return cluster


def test_a_ready_account_has_no_problems(account) -> None:
    assert list(check.account_problems(ready_cluster(account))) == []


@pytest.mark.parametrize(
    "path, value, message",
    [
        (("provider", "region"), "us-west-9", "provider.region: 'us-west-9' is no region of AWS; accepted: "),
        (
            ("provider", "availability_zone"),
            "eu-central-1a",
            "'eu-central-1a' is not in us-west-2; accepted: us-west-2a",
        ),
        (("available_node_types", "worker_spot", "node_config", "InstanceType"), "m99.huge", "has no 'm99.huge'"),
        (
            ("available_node_types", "head", "node_config", "IamInstanceProfile"),
            {"Name": "nobody"},
            "there is no 'nobody'; deploy cluster/aws-account.yaml",
        ),
        (
            ("provider", "security_group", "GroupName"),
            "elsewhere",
            "there is no 'elsewhere', and Ray would make one open",
        ),
        (("setup_commands",), ["HFLRAY_STORAGE=s3://not-mine/x"], "bucket 'not-mine' cannot be reached (404)"),
        (
            ("available_node_types", "head", "node_config", "ImageId"),
            "resolve:ssm:/aws/service/nothing",
            "us-west-2 does not know '/aws/service/nothing'",
        ),
    ],
)
def test_a_missing_part_of_the_account_is_named(account, path, value, message) -> None:
    cluster = ready_cluster(account)
    place = cluster
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    problems = list(check.account_problems(cluster))
    assert [message in problem for problem in problems] == [True], problems


def test_missing_credentials_and_token_are_named(tmp_path) -> None:
    env = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
    env |= {"HOME": str(tmp_path), "AWS_EC2_METADATA_DISABLED": "true"}
    path = written(tmp_path, shipped())
    done = subprocess.run(
        [sys.executable, str(CLUSTER / "check.py"), str(path)], env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    lines = done.stderr.splitlines()
    assert any(line.startswith("error: no AWS credentials here; run `aws configure`") for line in lines), done.stderr
    assert any("auth_token is missing; make it with: ray get-auth-token --generate" in line for line in lines)
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("name", ["nothing.yaml", "broken.yaml"])
def test_a_file_that_cannot_be_read_is_an_error(tmp_path, name, capsys) -> None:
    (tmp_path / "broken.yaml").write_text("a: [")
    assert check.main([str(tmp_path / name)]) == 2
    assert "not a cluster file that can be read" in capsys.readouterr().err


class TestSweep:
    """cluster/sweep.py before it starts `hflray.tune`."""

    @pytest.fixture(autouse=True)
    def _home(self, tmp_path, monkeypatch) -> None:
        token = tmp_path / ".ray" / "auth_token"
        token.parent.mkdir()
        token.write_text("x")
        token.chmod(0o600)
        monkeypatch.setattr(sweep, "TOKEN", token)
        monkeypatch.setattr(sweep, "RESULTS", tmp_path / "results")
        monkeypatch.setattr(sweep, "CHECKOUT", tmp_path / "nowhere")
        monkeypatch.setattr(sweep, "MLFLOW", ("127.0.0.1", 1))
        monkeypatch.delenv("HFLRAY_STORAGE", raising=False)

    def test_a_missing_token_is_an_error(self, capsys) -> None:
        sweep.TOKEN.unlink()
        assert sweep.main(["x.yaml"]) == 2
        assert "auth_token is missing" in capsys.readouterr().err

    def test_a_token_that_others_can_read_is_an_error(self, capsys) -> None:
        sweep.TOKEN.chmod(0o644)
        assert sweep.main(["x.yaml"]) == 2
        assert "chmod 600" in capsys.readouterr().err

    def test_a_missing_storage_is_an_error(self, capsys) -> None:
        assert sweep.main(["x.yaml"]) == 2
        assert "HFLRAY_STORAGE is not set" in capsys.readouterr().err

    def test_defaults_are_added_to_the_arguments(self, monkeypatch) -> None:
        monkeypatch.setenv("HFLRAY_STORAGE", "s3://b/x")
        added = ["--address", "auto", "--results", str(sweep.RESULTS), "--storage", "s3://b/x"]
        assert sweep.with_defaults(["x.yaml"]) == ["x.yaml", *added]
        explicit = ["x.yaml", "--address=a:1", "--results", "r", "--storage=/s"]
        assert sweep.with_defaults(explicit) == explicit

    def test_a_missing_cluster_is_an_error(self, tmp_path, monkeypatch, capsys) -> None:
        """The message of hflray.tune and its exit code are passed on."""
        monkeypatch.setenv("PYTHONPATH", str(CLUSTER.parent))
        monkeypatch.setenv("HOME", str(tmp_path))
        address = "127.0.0.1:6399"  # not "auto", because another Ray may run on this machine
        smoke = ["--smoke", "--address", address, "--storage", str(tmp_path / "shared")]
        assert sweep.main(smoke) == 2
        output = capsys.readouterr().out
        assert f"error: RAY_ADDRESS: cannot join a cluster at '{address}'" in output
        assert "Traceback" not in output
        assert not list((tmp_path / "results").glob("smoke*/sweep.json"))
