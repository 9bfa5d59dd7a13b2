"""The files of cluster/ without machines: Ray's schema, EC2's parameters, a launch in moto, the checks. No root."""

from __future__ import annotations

import ast
import copy
import importlib.util
import os
import subprocess
import sys
from collections.abc import Iterator
from fnmatch import fnmatchcase
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


MISTAKES = yaml.safe_load(Path(__file__).with_name("mistakes.yaml").read_text(encoding="utf-8"))


def changed(cluster: dict[str, Any], path: list[str], value: Any) -> dict[str, Any]:
    """Return a cluster file with another value."""
    cluster = copy.deepcopy(cluster)
    place = cluster
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    return cluster


@pytest.mark.parametrize("path, value, message", MISTAKES["file"])
def test_a_misspelt_key_is_reported(tmp_path, path, value, message) -> None:
    problems = list(check.file_problems(written(tmp_path, changed(shipped(), path, value))))
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

    config = commands._bootstrap_config(shipped(), no_config_cache=True)
    provider = _get_node_provider(config["provider"], config["cluster_name"])
    for name, kind, count in (("head", "head", 1), *[("worker_spot", "worker", 1)] * 2):
        node = dict(config["available_node_types"][name]["node_config"]) | (
            config["head_node"] if kind == "head" else {}
        )
        tags = {"node-type": kind, "node-name": name, "user-node-type": name, "launch-config": "x",
                "node-status": "uninitialized"}  # fmt: skip
        tags = {f"ray-{tag}": value for tag, value in tags.items()}
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


def allowed(policy: dict[str, Any], action: str, resource: str, context: dict[str, str]) -> bool:
    """Return whether a policy without Deny allows a request, by the rules of IAM for the conditions that ours has.

    moto compares the action of a request only, and neither its resource nor its conditions; botocore has AWS's own
    simulator, which needs an account.
    """

    def holds(kind: str, key: str, value: str) -> bool:
        if kind == "Null":
            return (key not in context) == (value == "true")
        assert kind in ("StringEquals", "StringEqualsIfExists"), kind
        return context.get(key, value if kind.endswith("IfExists") else None) == value

    def lists(value: str | list[str]) -> list[str]:
        return [value] if isinstance(value, str) else value

    for statement in policy["Statement"]:
        assert statement["Effect"] == "Allow"
        conditions = statement.get("Condition", {}).items()
        if (
            any(fnmatchcase(action, pattern) for pattern in lists(statement["Action"]))
            and any(fnmatchcase(resource, pattern) for pattern in lists(statement["Resource"]))
            and all(holds(kind, *pair) for kind, pairs in conditions for pair in pairs.items())
        ):
            return True
    return False


EC2 = "arn:aws:ec2:us-west-2:123456789012:"


def head_policy(account: Any) -> dict[str, Any]:
    iam = account.client("iam", region_name="us-west-2")
    document = iam.get_role_policy(RoleName="hflray-head", PolicyName="start-and-end-workers")["PolicyDocument"]
    return ast.literal_eval(document)  # moto gives what Python prints of it


def tagged(tags: list[dict[str, str]], where: str) -> dict[str, str]:
    return {f"aws:{where}Tag/{tag['Key']}": tag["Value"] for tag in tags}


def requests_of(operation: str, parameters: dict[str, Any], tags_of: Any) -> Iterator[tuple[str, str, dict[str, str]]]:
    """Yield what EC2 asks IAM for a call, by AWS's service authorization reference: action, resource and context."""
    action = f"ec2:{operation}"
    if operation == "RunInstances":
        asked = [tag for spec in parameters["TagSpecifications"] for tag in spec["Tags"]]
        assert [spec["ResourceType"] for spec in parameters["TagSpecifications"]] == ["instance"]
        yield action, f"{EC2}instance/*", tagged(asked, "Request")
        yield "ec2:CreateTags", f"{EC2}instance/*", tagged(asked, "Request") | {"ec2:CreateAction": "RunInstances"}
        yield action, f"arn:aws:ec2:us-west-2::image/{parameters['ImageId']}", {}
        for kind in ("subnet", "security-group", "network-interface", "volume", "key-pair", "spot-instances-request"):
            yield action, f"{EC2}{kind}/x", {}
    elif operation in ("CreateTags", "TerminateInstances", "StopInstances", "StartInstances"):
        asked = tagged(parameters.get("Tags", []), "Request")
        for machine in parameters.get("Resources") or parameters["InstanceIds"]:
            yield action, f"{EC2}instance/{machine}", asked | tagged(tags_of(machine), "Resource")
    else:
        yield action, "*", {}


def test_the_heads_role_allows_each_call_of_rays_autoscaler(account, monkeypatch) -> None:
    """Also those of a new head, which finds the workers of a lost one by the tag of the cluster, and ends them."""
    import botocore.client
    from ray.autoscaler._private import commands
    from ray.autoscaler._private.providers import _get_node_provider

    config, policy = commands._bootstrap_config(shipped(), no_config_cache=True), head_policy(account)
    ec2, calls, original = account.client("ec2", region_name="us-west-2"), [], botocore.client.BaseClient._make_api_call

    def tags_of(machine: str) -> list[dict[str, str]]:
        (reservation,) = original(ec2, "DescribeInstances", {"InstanceIds": [machine]})["Reservations"]
        return reservation["Instances"][0]["Tags"]

    def call(client: Any, operation: str, parameters: dict[str, Any]) -> Any:
        calls.append(operation)
        assert client.meta.service_model.service_name == "ec2"
        for request in requests_of(operation, parameters, tags_of):
            assert allowed(policy, *request), request
        return original(client, operation, parameters)

    monkeypatch.setattr(botocore.client.BaseClient, "_make_api_call", call)
    node = config["available_node_types"]["worker_spot"]["node_config"]
    assert node["IamInstanceProfile"]["Name"] == "hflray-worker"  # the only one that the head may give
    first = _get_node_provider(config["provider"], config["cluster_name"])
    for _ in range(2):  # moto makes one spot machine at a time
        first.create_node(dict(node), {"ray-node-type": "worker", "ray-node-status": "uninitialized"}, 1)
    second = _get_node_provider(config["provider"], config["cluster_name"], use_cache=False)
    workers = second.non_terminated_nodes({"ray-node-type": "worker"})
    assert len(workers) == 2
    second.set_node_tags(workers[0], {"ray-node-status": "up-to-date", "ray-runtime-config": "x"})
    second.terminate_node(workers[0])
    second.terminate_nodes(workers[1:])
    assert second.non_terminated_nodes({}) == []
    assert {"RunInstances", "CreateTags", "TerminateInstances", "DescribeInstances"} <= set(calls)


def test_the_heads_role_reaches_no_machine_of_others(account) -> None:
    policy = head_policy(account)
    answers = [[*request, allowed(policy, *request)] for *request, _ in MISTAKES["requests"]]
    assert answers == MISTAKES["requests"]


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


@pytest.mark.parametrize("path, value, message", MISTAKES["account"])
def test_a_missing_part_of_the_account_is_named(account, path, value, message) -> None:
    problems = list(check.account_problems(changed(ready_cluster(account), path, value)))
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


def test_a_file_that_cannot_be_read_is_an_error(tmp_path, capsys) -> None:
    (tmp_path / "broken.yaml").write_text("a: [")
    assert check.main([str(tmp_path / "broken.yaml")]) == 2
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

    def test_a_token_of_others_and_a_missing_storage_are_errors(self, capsys) -> None:
        problems = {
            "HFLRAY_STORAGE is not set": lambda: None,
            "chmod 600": lambda: sweep.TOKEN.chmod(0o644),
            "auth_token is missing": sweep.TOKEN.unlink,
        }
        for problem, make in problems.items():
            make()
            assert sweep.main(["x.yaml"]) == 2
            assert problem in capsys.readouterr().err

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
