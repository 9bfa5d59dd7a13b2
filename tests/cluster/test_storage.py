"""moto's S3 as the storage of sweeps; tests/tune/test_storage.py resumes them from there."""

from __future__ import annotations

from collections.abc import Iterator
from urllib.request import Request, urlopen

import pytest

from tests.cluster.fake import CREDENTIALS

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(400)]


@pytest.fixture
def s3(monkeypatch) -> Iterator[str]:
    """Yield the address of an S3 server with a bucket `results`."""
    server = pytest.importorskip("moto.server", reason="pip install '.[cluster-test]'")
    import boto3

    running = server.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    running.start()
    host, port = running.get_host_and_port()
    endpoint = f"http://{host}:{port}"
    for name, value in {**CREDENTIALS, "AWS_ENDPOINT_URL": endpoint}.items():
        monkeypatch.setenv(name, value)
    place = {"LocationConstraint": "us-west-2"}
    boto3.client("s3", endpoint_url=endpoint).create_bucket(Bucket="results", CreateBucketConfiguration=place)
    yield endpoint
    urlopen(Request(f"{endpoint}/moto-api/reset", method="POST")).close()  # moto's state would outlive the server
    running.stop()


@pytest.mark.parametrize("place", ["s3://no-such-bucket/x", "s3://results"])
def test_storage_that_cannot_be_written_is_refused_before_any_trial(s3, tmp_path, place) -> None:
    from hflray.errors import ConfigError
    from hflray.tune.storage import check_storage

    if place == "s3://results":
        check_storage(place)
        return
    with pytest.raises(ConfigError, match=r"--storage: 's3://no-such-bucket/x' cannot be written \(.*NO_SUCH_BUCKET"):
        check_storage(place)
