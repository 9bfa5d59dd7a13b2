"""hflray.tracking.addresses: a folder alone makes hflray contact nobody, and no password is stored or shown."""

from __future__ import annotations

import http.server
import json
import os
import sqlite3
import stat
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import pytest

from hflray import metrics
from hflray.command import compare
from hflray.config import load_config
from hflray.errors import ConfigError
from hflray.report.runs import read_sweep
from hflray.sweep import load_sweep
from hflray.sweep.results import SweepFolder
from hflray.tracking import Journal, Place, Tracker, addresses, default_uri, main, sync
from hflray.tracking.mlflow import MLflowSink
from hflray.tune import cli
from tests.conftest import SMALL, says, small_config

TOKEN = "canary-of-the-reader"


class Listener(http.server.BaseHTTPRequestHandler):
    """A server that keeps what it is asked, and answers 404, or sends the client elsewhere."""

    asked: list[str]
    elsewhere: str | None = None

    def do_GET(self) -> None:
        self.asked.append(f"{self.command} {self.path} {self.headers}")
        self.send_response(404 if self.elsewhere is None else 307)
        if self.elsewhere is not None:
            self.send_header("Location", f"{self.elsewhere}{self.path}")
        self.end_headers()

    do_POST = do_GET

    def log_message(self, *_: object) -> None:
        """Write no log."""


@contextmanager
def listening(elsewhere: str | None = None) -> Iterator[tuple[str, list[str]]]:
    """Yield the address of a server on this machine, and the list of what it is asked."""
    asked: list[str] = []
    handler = type("Handler", (Listener,), {"asked": asked, "elsewhere": elsewhere})
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}", asked
        server.shutdown()


@pytest.fixture(autouse=True)
def _own_list(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("MLFLOW_TRACKING_TOKEN", TOKEN)


def sweep_at(results: Path, uri: str, **settings: object) -> SweepFolder:
    """Return the folder of a sweep with one round in its journal, which says that it was logged at `uri`."""
    file = load_sweep(None, ["name=mine", *SMALL])
    folder = SweepFolder(results.resolve() / "mine-20260101-000000", file, uri, "tests", **settings)  # type: ignore[arg-type]
    folder.save()
    tracker = Tracker(uri, "tests", folder.path.name, folder.path, sinks=())
    tracker.start("t1", "t1", small_config(), {})
    tracker.round("t1", 1, {metrics.ACCURACY: 0.5, metrics.ROUND_OBJECTIVE: 3.0, metrics.TOTAL_OBJECTIVE: 3.0})
    tracker.finish("t1")
    return folder


def resumed(monkeypatch, capsys, *arguments: str) -> tuple[int, str]:
    monkeypatch.setattr("sys.argv", ["hflray.tune", *arguments])
    with pytest.raises(SystemExit) as end:
        cli.main()
    return int(end.value.code or 0), capsys.readouterr().err


def test_no_server_that_a_folder_alone_names_is_contacted(tmp_path, monkeypatch, capsys) -> None:
    with listening() as (uri, asked):
        folder = sweep_at(tmp_path, uri)
        assert [run.name for run in read_sweep(tmp_path, "mine").runs] == ["t1"]  # the journal has it all
        assert compare.main(["mine", "--results", str(tmp_path)]) == 2
        assert main(["sync", str(folder.path)]) == 2
        lines = capsys.readouterr().err.splitlines()
        code, err = resumed(monkeypatch, capsys, "--resume", "mine", "--results", str(tmp_path))
        assert code == 2
        for line in (*lines, *err.splitlines()):
            assert says(line, "error: tracking.uri: only the folder names", uri, "--tracking-uri")
        assert len(lines) == 2
        assert asked == []
        assert not (tmp_path / "config").exists()


@pytest.mark.parametrize("way", ["environment", "password in the environment", "option", "used before"])
def test_a_server_that_the_user_names_gets_their_token(tmp_path, monkeypatch, capsys, way) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    words = ["mine", "--results", str(tmp_path)]
    with listening() as (uri, asked):
        sweep_at(tmp_path, uri)
        if way == "environment":
            monkeypatch.setenv("MLFLOW_TRACKING_URI", f"{uri}/")
        elif way == "password in the environment":
            monkeypatch.delenv("MLFLOW_TRACKING_TOKEN")
            monkeypatch.setenv("MLFLOW_TRACKING_URI", uri.replace("://", f"://me:{TOKEN}@"))
        elif way == "used before":
            addresses.named(uri)
        assert compare.main([*words, *(["--tracking-uri", uri] if way == "option" else [])]) == 2
        assert "authorization: " in asked[0].lower()
        assert (TOKEN in asked[0]) == (not way.startswith("password"))  # else it is in Base64
        line = capsys.readouterr().err
        assert says(line, uri, "does not answer")
        assert TOKEN not in line
        if way == "option":  # from now on it is known
            asked.clear()
            assert compare.main(words) == 2
            assert asked


def test_credentials_do_not_follow_to_another_host(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    with listening() as (other, asked), listening(other) as (uri, first):
        sweep_at(tmp_path, uri)
        compare.main(["mine", "--results", str(tmp_path), "--tracking-uri", uri])
        assert TOKEN in first[0]
        assert TOKEN not in "".join(asked)


@pytest.mark.parametrize("place", ["elsewhere", "beside", "link"])
def test_an_sqlite_file_is_opened_only_if_it_is_that_of_the_results(tmp_path, place) -> None:
    """MLflow would write its tables into any SQLite file, such as one of a browser."""
    results, other = tmp_path / "results", tmp_path / "mine.db"
    results.mkdir()
    with closing(sqlite3.connect(other)) as database:
        database.execute("CREATE TABLE mine (x)")
        database.commit()
    before = other.read_bytes()
    uri = f"sqlite:///{other}"
    if place == "beside":
        other = other.rename(results / "mine.db")
        uri = f"sqlite:///{other}"
    elif place == "link":
        (results / "mlflow.db").symlink_to(other)
        uri = default_uri(results)
    folder = sweep_at(results, uri)
    assert [run.name for run in read_sweep(results, "mine").runs] == ["t1"]
    with pytest.raises(ConfigError, match="only the folder names"):
        sync(folder.path)
    assert other.read_bytes() == before
    assert not list(tmp_path.rglob("*-journal"))


ELSEWHERE = (
    "{tmp}/elsewhere", "file://{tmp}/elsewhere", "http://127.0.0.1:9/x", "s3://bucket/x", "mlflow-artifacts://host/x",
    "{tmp}/results/artifacts/../../elsewhere", "{tmp}/results/artifacts/%2e%2e/%2e%2e/elsewhere", "{tmp}/results",
    "FILE:{tmp}/results/artifacts", "file://host{tmp}/results/artifacts", "artifacts", "",
)  # fmt: skip


def test_a_database_of_a_folder_leads_nowhere_else(tmp_path) -> None:
    """The database of a stranger says where the files of its runs are, which sync would write."""
    results = tmp_path / "results"
    folder = sweep_at(results, default_uri(results))
    assert sync(folder.path)

    def move(table: str, column: str, place: str) -> None:
        with closing(sqlite3.connect(results / "mlflow.db")) as database:
            database.execute(f"UPDATE {table} SET {column} = ?", (place.format(tmp=tmp_path),))
            database.commit()

    sink, run = MLflowSink(Place(folder.uri, "tests", folder.path.name, folder.path)), Journal(folder.path).run("t1")
    assert run is not None
    sink.connect()
    for place in ELSEWHERE:
        move("runs", "artifact_uri", place)
        with pytest.raises(ConfigError, match="keeps its files in"):
            sink.open(run)
    for place in ELSEWHERE:
        move("experiments", "artifact_location", place)
        with pytest.raises(ConfigError, match="keeps its files in"):
            sync(folder.path)
    assert not (tmp_path / "elsewhere").exists()
    addresses.named(default_uri(results))  # the user says that it is theirs
    move("experiments", "artifact_location", str(tmp_path / "elsewhere"))
    assert sync(folder.path)


@pytest.mark.parametrize("storage", ["s3://bucket/folder", "elsewhere"])
def test_no_storage_that_a_folder_alone_names_is_contacted(tmp_path, monkeypatch, capsys, storage) -> None:
    place = storage if "://" in storage else str(tmp_path / storage)
    sweep_at(tmp_path, default_uri(tmp_path), storage=place)
    code, err = resumed(monkeypatch, capsys, "--resume", "mine", "--results", str(tmp_path))
    assert code == 2
    assert says(err, "storage: only the folder names", place, f"--storage {place}")
    assert len(err.splitlines()) == 1
    assert not (tmp_path / "elsewhere").exists()


SECRETS = (
    f"http://me:{TOKEN}@127.0.0.1:9", f"https://{TOKEN}@127.0.0.1:9/", f"http://127.0.0.1:9/?token={TOKEN}",
    f"postgresql://me:{TOKEN}@127.0.0.1:9/db", f"mysql+pymysql://me@127.0.0.1:9/db?password={TOKEN}",
    f"http://me:{TOKEN}/with/slash@127.0.0.1:9", f"mssql+pyodbc:///?odbc_connect=PWD%3D{TOKEN}",
)  # fmt: skip


@pytest.mark.parametrize("uri", SECRETS)
def test_a_password_in_a_configuration_is_refused_and_not_shown(uri) -> None:
    for make in (lambda: load_config(None, [f"tracking.uri={uri}"]), lambda: addresses.refuse_secret(uri)):
        with pytest.raises(ConfigError) as error:
            make()
        assert TOKEN not in str(error.value)


@pytest.mark.parametrize("uri", SECRETS[:1])
def test_no_command_takes_a_password_in_an_address_or_shows_it(tmp_path, monkeypatch, capsys, uri) -> None:
    monkeypatch.chdir(tmp_path)
    folder = sweep_at(tmp_path, default_uri(tmp_path))
    (tmp_path / "a.yaml").write_text(f"name: a\ntracking: {{uri: '{uri}'}}\n")
    (tmp_path / "b.yaml").write_text(f"name: b\nsweep: {{tracking.uri: {{grid: ['{uri}']}}}}\n")
    commands: list[Callable[[], object]] = [
        lambda: compare.main(["mine", "--results", str(tmp_path), "--tracking-uri", uri]),
        lambda: main(["sync", str(folder.path), "--tracking-uri", uri]),
        *(
            lambda words=words: resumed(monkeypatch, capsys, *words)  # type: ignore[misc]
            for words in (
                ["a.yaml"], ["b.yaml"], ["--tracking-uri", uri], ["--set", f"tracking.uri={uri}"],
                ["--storage", uri], ["--address", uri], ["--resume", "mine", "--tracking-uri", uri, "--results", "."],
            )
        ),
    ]  # fmt: skip
    for command in commands:
        answer = command()
        code, text = answer if isinstance(answer, tuple) else (answer, "".join(capsys.readouterr()))
        assert code == 2
        assert TOKEN not in text
        assert says(text, "error: ", "accepted: "), text
        assert says(text, "it holds a ") or says(text, "sweep.tracking.uri: a sweep is tracked in one place")
    kept = [path for path in tmp_path.rglob("*") if path.is_file() and path.suffix != ".yaml"]
    assert not [path for path in kept if TOKEN.encode() in path.read_bytes()]


def test_a_password_that_an_older_hflray_has_stored_is_not_read_again(tmp_path) -> None:
    folder = sweep_at(tmp_path, "http://127.0.0.1:9")
    for path in (folder.path / "sweep.json", *folder.path.glob("journal/*")):
        text = path.read_text().replace("http://127", f"http://me:{TOKEN}@127")
        path.write_text(text)
    content = json.loads((folder.path / "sweep.json").read_text())
    content.pop("sha256")
    content["file"]["experiment"]["tracking"] = {"uri": f"http://me:{TOKEN}@127.0.0.1:9"}
    (folder.path / "sweep.json").write_text(json.dumps(content))
    loaded = SweepFolder.load(folder.path)
    assert loaded.uri == loaded.file.experiment["tracking"]["uri"] == "http://127.0.0.1:9"
    assert TOKEN.encode() not in loaded.content()


CANARIES = ("canary-in-the-address", "canary-in-the-token", "canary-of-the-cloud")
SWEEP = Path(__file__).with_name("secret.yaml").read_text(encoding="utf-8")


def command_lines(found: set[str], over: threading.Event) -> None:
    """Collect the words of all processes that hold a canary, until it is over."""
    while not over.wait(0.02):
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            with suppress(OSError):
                words = path.read_bytes().decode(errors="replace")
                found |= {words for canary in CANARIES if canary in words}


@pytest.mark.slow  # a minute or more; `tests/support/test_ray_private.py` has what it found
@pytest.mark.timeout(600)
def test_a_sweep_leaves_no_password_anywhere(tmp_path, monkeypatch) -> None:
    """They are in the environment, which is where they belong, and MLflow is sent them; nothing else has them."""
    monkeypatch.delenv("MLFLOW_TRACKING_TOKEN")
    found, over = set[str](), threading.Event()
    root = str(Path(addresses.__file__).parents[2])
    with (
        listening() as (uri, asked),
        tempfile.TemporaryDirectory(prefix="hf") as short,
    ):  # Ray's sockets need a short path
        env = os.environ | {
            "PYTHONPATH": root, "TMPDIR": short, "XDG_CACHE_HOME": str(tmp_path / "cache"), "COLUMNS": "100",
            "MLFLOW_TRACKING_URI": uri.replace("://", f"://me:{CANARIES[0]}@"), "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0",
            "AWS_SECRET_ACCESS_KEY": CANARIES[2], "WANDB_API_KEY": CANARIES[1],
        }  # fmt: skip
        (tmp_path / "secret.yaml").write_text(SWEEP.replace("URI", uri))
        watch = threading.Thread(target=command_lines, args=(found, over))
        watch.start()
        outputs = []
        try:
            for words in (
                ["-m", "hflray.tune", "secret.yaml", "--cpus", "1", "-v"],
                ["-m", "hflray.report", "secret", "--export", "exports"],
                ["-m", "hflray.compare", "secret"],
            ):
                outputs.append(
                    subprocess.run([sys.executable, *words], cwd=tmp_path, env=env, capture_output=True, timeout=300)
                )
        finally:
            over.set()
            watch.join()
        tuned, reported, compared = outputs
        assert b"finished" in tuned.stdout or tuned.returncode == 0, tuned.stderr
        assert reported.returncode == 0, reported.stderr
        assert compared.returncode == 2
        assert b"does not answer" in compared.stderr
        assert any("authorization: basic" in each.lower() for each in asked)
        files = [path for top in (tmp_path, Path(short)) for path in top.rglob("*") if path.is_file()]
        assert {"sweep.json", "index.html", "secret.zip"} <= {path.name for path in files}
        assert [path for path in files if path.suffix == ".jsonl"]
        assert [path for path in files if "checkpoints" in path.parts]
        for canary in CANARIES:
            assert not [path for path in files if canary.encode() in path.read_bytes()], canary
            for each in outputs:
                assert canary.encode() not in each.stdout + each.stderr
    assert found == set()


def test_the_list_of_named_addresses_is_the_users_alone(tmp_path) -> None:
    assert not addresses.is_known("http://one:1")
    assert not addresses.is_known("")
    assert "\x1b" not in addresses.unnamed("http://one\x1b]52;c;x\x07")
    for uri in ("http://one:1", "http://one:1/", "s3://bucket/folder"):
        addresses.named(uri)
    path = tmp_path / "config" / "hflray" / "known_addresses"
    assert path.read_text() == "http://one:1\ns3://bucket/folder\n"
    assert (stat.S_IMODE(path.stat().st_mode), stat.S_IMODE(path.parent.stat().st_mode)) == (0o600, 0o700)
    assert addresses.is_known("http://one:1/")
    assert not addresses.is_known("http://one:1/other")
    path.chmod(0o620)  # others can add what they like
    assert not addresses.is_known("http://one:1")
    path.chmod(0o600)
    path.rename(path.with_name("elsewhere"))
    path.symlink_to(path.with_name("elsewhere"))
    assert not addresses.is_known("http://one:1")


def test_the_environment_gives_a_database_its_password(monkeypatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "postgresql://me:secret@host/db")
    assert addresses.is_known("postgresql://host/db")
    assert addresses.with_credentials("postgresql://me@host/db") == "postgresql://me:secret@host/db"
    assert addresses.with_credentials("postgresql://host/other") == "postgresql://host/other"
