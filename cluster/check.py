"""Check whether `ray up` has everything it needs. No machine is started, and every message names the fix.

    python cluster/check.py cluster/aws.yaml

The checks compare the file with Ray's schema and EC2's parameters, and look for the token, credentials, region and
zones, machine types, instance profiles, security group, bucket and image. cluster/local.yaml needs only the checks of
the file and the token.
"""

from __future__ import annotations

import copy
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

TOKEN = Path("~/.ray/auth_token")
PLACEHOLDER = "EDIT-ME"
TEMPLATE = "deploy cluster/aws-account.yaml (cluster/README.md, step 1)"


def file_problems(path: Path) -> Iterator[str]:
    """Yield the problems of the file itself."""
    from ray.autoscaler._private.util import prepare_config, validate_config

    cluster = yaml.safe_load(path.read_text(encoding="utf-8"))
    prepared = prepare_config(copy.deepcopy(cluster))
    for kind in prepared["available_node_types"].values():
        kind.setdefault("resources", {})
    try:
        validate_config(prepared)
    except Exception as error:  # the types are jsonschema's and others
        yield f"{path}: {str(error).splitlines()[0]}; the keys are those of Ray's cluster YAML reference"
        return
    if cluster["provider"]["type"] == "aws":
        import botocore.session
        import botocore.validate

        # Ray passes node_config on unchecked, so its keys are compared with EC2's description of RunInstances.
        model = botocore.session.get_session().get_service_model("ec2").operation_model("RunInstances").input_shape
        for name, kind in cluster["available_node_types"].items():
            request = {**kind["node_config"], "MinCount": 1, "MaxCount": 1}
            report = botocore.validate.ParamValidator().validate(request, model).generate_report()
            for line in report.splitlines():
                yield f"{path}: available_node_types.{name}.node_config: {line}"
            if "ImageId" not in kind["node_config"]:
                yield f"{path}: available_node_types.{name}.node_config.ImageId is missing: Ray would take Ubuntu 18.04"
    if PLACEHOLDER in "".join(map(str, cluster.get("setup_commands", ()))):
        yield f"{path}: setup_commands: put your bucket in the place of {PLACEHOLDER}"


def token_problems(token: Path) -> Iterator[str]:
    """Yield the problems of the cluster's token."""
    if not token.is_file() or not token.stat().st_size:
        yield f"{token} is missing; make it with: ray get-auth-token --generate && chmod 600 {token}"
    elif token.stat().st_mode & 0o077:
        yield f"{token} can be read by others; chmod 600 {token}"


def account_problems(cluster: dict[str, Any]) -> Iterator[str]:
    """Yield what is missing in the AWS account."""
    import boto3
    from botocore.exceptions import BotoCoreError, ClientError, NoCredentialsError, PartialCredentialsError

    provider = cluster["provider"]
    region, zones = provider["region"], provider.get("availability_zone", "").split(",")
    session = boto3.Session(region_name=region)
    regions = session.get_available_regions("ec2")
    if region not in regions:
        yield f"provider.region: '{region}' is no region of AWS; accepted: {', '.join(regions)}"
        return
    try:
        session.client("sts").get_caller_identity()
    except (NoCredentialsError, PartialCredentialsError):
        yield "no AWS credentials here; run `aws configure` (or `aws sso login`), or set AWS_PROFILE"
        return
    except (ClientError, BotoCoreError) as error:
        yield f"AWS does not accept the credentials here ({error}); run `aws configure` or `aws sso login` again"
        return

    def error_of(call: Any, **arguments: Any) -> ClientError | None:
        try:
            call(**arguments)
        except ClientError as error:
            return error
        return None

    ec2, iam = session.client("ec2"), session.client("iam")
    offered = {zone["ZoneName"] for zone in ec2.describe_availability_zones()["AvailabilityZones"]}
    for zone in filter(None, zones):
        if zone not in offered:
            yield f"provider.availability_zone: '{zone}' is not in {region}; accepted: {', '.join(sorted(offered))}"
    for name, kind in cluster["available_node_types"].items():
        node, setting = kind["node_config"], f"available_node_types.{name}.node_config"
        machine, profile, image = node["InstanceType"], node.get("IamInstanceProfile", {}).get("Name"), node["ImageId"]
        if error_of(ec2.describe_instance_types, InstanceTypes=[machine]):
            yield f"{setting}.InstanceType: {region} has no '{machine}'; give another, or another region"
        if profile and error_of(iam.get_instance_profile, InstanceProfileName=profile):
            yield f"{setting}.IamInstanceProfile: there is no '{profile}'; {TEMPLATE}"
        parameter = image.partition("resolve:ssm:")[2]
        if parameter:
            try:
                value = session.client("ssm").get_parameter(Name=parameter)["Parameter"]["Value"]
                print(f"{name}: the image is {value} now; to pin it, put this as ImageId")
            except ClientError:
                yield f"{setting}.ImageId: {region} does not know '{parameter}'; give an ami-… of Debian 12"
    profile = cluster["available_node_types"][cluster["head_node_type"]]["node_config"].get("IamInstanceProfile", {})
    clusters = set(_clusters_of(iam, profile.get("Name", "")))
    if clusters and cluster["cluster_name"] not in clusters:
        yield (
            f"cluster_name: the head's role may start machines of '{', '.join(sorted(clusters))}' only, and not of "
            f"'{cluster['cluster_name']}'; deploy cluster/aws-account.yaml with ClusterName={cluster['cluster_name']}"
        )
    group = provider.get("security_group", {}).get("GroupName")
    groups = ec2.describe_security_groups(Filters=[{"Name": "group-name", "Values": [group or ""]}])["SecurityGroups"]
    if not groups:
        yield f"provider.security_group: there is no '{group}', and Ray would make one open to the world; {TEMPLATE}"
    for bucket in sorted(set(re.findall(r"s3://([^/\s]+)", str(cluster.get("setup_commands", ""))))):
        error = error_of(session.client("s3").head_bucket, Bucket=bucket)
        if error and bucket != PLACEHOLDER:
            yield f"setup_commands: bucket '{bucket}' cannot be reached ({error.response['Error']['Code']}); {TEMPLATE}"


def _clusters_of(iam: Any, profile: str) -> Iterator[str]:
    """Yield the names of the clusters whose machines the roles of an instance profile may start."""
    from botocore.exceptions import ClientError

    try:
        for role in iam.get_instance_profile(InstanceProfileName=profile)["InstanceProfile"]["Roles"]:
            for policy in iam.list_role_policies(RoleName=role["RoleName"])["PolicyNames"]:
                document = str(iam.get_role_policy(RoleName=role["RoleName"], PolicyName=policy)["PolicyDocument"])
                yield from re.findall(r"RequestTag/ray-cluster-name['\"]: *['\"]([^'\"]+)", document)
    except ClientError:  # there is none, or it may not be read
        return


def main(arguments: list[str]) -> int:
    if len(arguments) != 1 or arguments[0].startswith("-"):
        print(__doc__)
        return 2
    path = Path(arguments[0])
    try:
        cluster = yaml.safe_load(path.read_text(encoding="utf-8"))
        problems = [*file_problems(path), *token_problems(TOKEN.expanduser())]
        if cluster["provider"]["type"] == "aws":
            problems += account_problems(cluster)
    except (OSError, yaml.YAMLError, KeyError, TypeError) as error:
        problems = [f"{path}: not a cluster file that can be read ({type(error).__name__}: {error})"]
    except ImportError as error:
        problems = [f"{error}; pip install '.[cluster]'"]
    for problem in problems:
        print(f"error: {problem}", file=sys.stderr)
    if not problems:
        print(f"{path}: ready for `ray up`")
    return 2 if problems else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
