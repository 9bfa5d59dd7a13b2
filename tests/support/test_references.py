"""A reference runs the text that was pinned, and no other; errors in it show the user's line."""

from __future__ import annotations

import copy
import hashlib
import inspect
import os
import pickle
import platform
import subprocess
import sys
import traceback
from pathlib import Path

import pytest

from hflray.config import load_config
from hflray.errors import ConfigError, HflrayError
from hflray.support import references
from tests.conftest import cases, own_module, refusals

TEXT = own_module("dataclass")


@pytest.fixture(autouse=True)
def fresh(monkeypatch):
    """Begin with a process that has read and run no text."""
    for name in ("_sources", "_modules", "_ran"):
        monkeypatch.setattr(references, name, {})
    monkeypatch.setattr(references, "_by_value", [])
    known = set(sys.modules)
    yield
    for name in set(sys.modules) - known:
        if "__" in name and isinstance(getattr(sys.modules[name], "__loader__", None), references._Loader):
            del sys.modules[name]


def written(folder, text=TEXT, name="mine.py"):
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def refusal(function, *arguments):
    with pytest.raises(ConfigError) as error:
        function(*arguments)
    message = str(error.value)
    assert "\n" not in message
    return message


@pytest.mark.parametrize("name, parts", cases("support/forms"))
def test_the_form_of_a_reference(name, parts):
    reference = references.parse(name)
    assert (None if reference is None else list(reference)) == parts


def test_a_pinned_name_holds_the_hash_of_the_files_bytes(tmp_path):
    path = written(tmp_path)
    expected = hashlib.sha256(path.read_bytes()).hexdigest()
    pinned = references.pin("mine.py:Thing", tmp_path)
    assert pinned == f"mine.py:Thing@sha256:{expected}"
    assert references.pin(str(path) + ":Thing") == pinned  # neither the folder nor the way to it is part of the name
    assert references.pin(pinned) == pinned
    assert (references.short(pinned), references.spoken(pinned)) == ("Thing", "mine.py:Thing")
    assert (references.short("ikc"), references.short(3)) == ("ikc", "3")
    assert references.short({"name": pinned, "options": {}}) == "{'name': 'Thing', 'options': {}}"
    (source,) = references.sources_of([pinned, "ikc", pinned])
    assert (source.name, source.text, source.sha256) == ("mine.py", TEXT, expected)


def test_pinning_runs_nothing_and_the_text_that_was_pinned_runs_once(tmp_path):
    path = written(
        tmp_path, "import os\nos.environ['HFLRAY_RAN'] = os.environ.get('HFLRAY_RAN', '') + 'x'\nclass A: pass\n"
    )
    os.environ.pop("HFLRAY_RAN", None)
    try:
        pinned = references.pin("mine.py:A", tmp_path)
        assert "HFLRAY_RAN" not in os.environ
        path.write_text("class A:\n    other = True\n")  # an edit after the start of a sweep changes nothing in it
        assert references.load(pinned) is references.load(pinned)
        assert os.environ["HFLRAY_RAN"] == "x"
        assert not hasattr(references.load(pinned), "other")
        assert references.load(references.pin("mine.py:A", tmp_path)).other  # the new text is another module
    finally:
        os.environ.pop("HFLRAY_RAN", None)


def test_dataclasses_copies_and_pickles_work_as_in_an_imported_module(tmp_path):
    made = references.load(references.pin("mine.py:make", tmp_path) if written(tmp_path) else "")()
    assert made == copy.deepcopy(made) == pickle.loads(pickle.dumps(made))
    assert type(made).count == 3
    assert "count: ClassVar[int] = 3" in inspect.getsource(type(made))


def test_a_traceback_shows_the_users_line_although_the_file_is_gone(tmp_path):
    path = written(tmp_path)
    made = references.load(references.pin("mine.py:make", tmp_path))()
    path.unlink()
    with pytest.raises(IndexError) as error:
        made.fail()
    assert "return self.values[7]" in "".join(traceback.format_exception(error.value))
    line = 1 + TEXT.splitlines().index("        return self.values[7]")
    assert references.blame(error.value) == f"mine.py:{line}: IndexError: list index out of range"
    assert references.blame(IndexError("elsewhere")) is None


def test_a_reason_of_several_lines_is_joined(tmp_path):
    written(tmp_path, "def fail():\n    raise ValueError('no such\\n  link')\n")
    with pytest.raises(ValueError) as error:  # noqa: PT011
        references.load(references.pin("mine.py:fail", tmp_path))()
    assert references.blame(error.value) == "mine.py:2: ValueError: no such link"


def test_of_two_texts_of_one_path_each_shows_its_own_lines(tmp_path):
    made = []
    for marker in ("first", "second"):
        written(tmp_path, f"def fail():\n    raise KeyError  # {marker}\n")
        made.append(references.load(references.pin("mine.py:fail", tmp_path)))
    for function, marker in zip(made, ("first", "second"), strict=True):
        with pytest.raises(KeyError) as error:
            function()
        assert f"# {marker}" in "".join(traceback.format_exception(error.value))
        assert references.blame(error.value) == "mine.py:2: KeyError"


def test_an_actors_error_is_blamed_on_the_users_line_as_well(tmp_path):
    path = written(tmp_path)
    references.load(references.pin("mine.py:make", tmp_path))

    class RayTaskError(Exception):
        cause = KeyError("a")

    RayTaskError.__module__ = "ray.exceptions"
    text = f'ray::Actor.call()\n  File "/x/ours.py", line 3, in f\n  File "{path}", line 14, in fail\nKeyError: "a"'
    assert references.blame(RayTaskError(text)) == "mine.py:14: KeyError: 'a'"


@pytest.mark.parametrize("text, message", refusals("support/references"))
def test_a_mistake_in_the_file_is_one_line(tmp_path, text, message):
    written(tmp_path, text)
    written(tmp_path, "x = 1\n", "beside.py")
    assert refusal(lambda: references.load(references.pin("mine.py:Thing", tmp_path))).startswith(message)


def test_a_neighbour_that_is_an_installed_package_is_no_neighbour(tmp_path):
    (tmp_path / "numpy").mkdir()
    (tmp_path / "numpy" / "__init__.py").write_text("")
    written(tmp_path, "import numpy\nclass Thing: pass\n")
    assert references.load(references.pin("mine.py:Thing", tmp_path)).__name__ == "Thing"


def test_a_file_that_cannot_be_read_is_refused(tmp_path):
    assert refusal(references.pin, "gone.py:Thing", tmp_path).startswith(f"{tmp_path}/gone.py: no such file; a path is")
    (tmp_path / "folder.py").mkdir()
    assert refusal(references.pin, "folder.py:Thing", tmp_path).startswith("folder.py: cannot be read (Is a directory)")
    (tmp_path / "bytes.py").write_bytes(b"x = '\xff'\n")
    assert "not UTF-8 text" in refusal(references.pin, "bytes.py:Thing", tmp_path)
    (tmp_path / "long.py").write_bytes(b"#" * (references.LONGEST + 1))
    assert "too long" in refusal(references.pin, "long.py:Thing", tmp_path)
    assert refusal(references.pin, "ikc").startswith("not a reference")


def test_a_pinned_name_with_another_text_is_refused_with_both_hashes(tmp_path):
    path = written(tmp_path)
    now, other = hashlib.sha256(path.read_bytes()).hexdigest(), "0" * 64
    message = refusal(references.pin, f"mine.py:Thing@sha256:{other}", tmp_path)
    assert now[:12] in message
    assert other[:12] in message


def test_a_text_that_nobody_trusted_does_not_run(tmp_path, monkeypatch):
    written(tmp_path, "raise SystemError('ran')\n")
    digits = hashlib.sha256((tmp_path / "mine.py").read_bytes()).hexdigest()
    monkeypatch.chdir(tmp_path)
    message = refusal(references.load, f"mine.py:Thing@sha256:{digits}")
    assert message.startswith(f"mine.py:Thing: the text with sha256 {digits[:12]}… is not at hand")
    digits = hashlib.sha256(Path(traceback.__file__).read_bytes()).hexdigest()
    assert "not at hand" in refusal(references.load, f"traceback:print_exc@sha256:{digits}")


def test_a_text_is_adopted_by_the_process_that_unpickles_it(tmp_path):
    written(tmp_path)
    pinned = references.pin("mine.py:make", tmp_path)
    (source,) = references.sources_of([pinned])
    code = (
        "import pickle, sys; from hflray.support import references\n"
        f"source = pickle.loads({pickle.dumps(source)!r})\n"
        f"print(references.load({pinned!r})().values, source.sha256)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd="/", check=True)
    assert done.stdout.split() == ["[1]", source.sha256]


def test_a_change_of_the_file_is_refused_with_both_hashes_and_its_absence_is_not(tmp_path):
    path = written(tmp_path)
    (source,) = references.sources_of([references.pin("mine.py:Thing", tmp_path)])
    references.refuse_change(source)
    path.write_text(TEXT + "\n# changed\n")
    message = refusal(references.refuse_change, source)
    assert message.startswith(
        f"{path} has changed: it has sha256 {hashlib.sha256(path.read_bytes()).hexdigest()[:12]}…"
    )
    assert source.sha256[:12] in message
    path.unlink()
    references.refuse_change(source)


def test_every_module_of_a_file_is_told_to_the_pickler(tmp_path):
    written(tmp_path)
    written(tmp_path, "class Later: pass\n", "later.py")
    told = []
    references.load(references.pin("mine.py:Thing", tmp_path))
    references.pickle_by_value(told.append)
    references.pickle_by_value(told.append)
    references.load(references.pin("later.py:Later", tmp_path))
    references.load(references.pin("hflray.scheduling.simple:FedAvg"))  # an installed module travels by its name
    assert [module.__name__.partition("__")[0] for module in told] == ["mine", "later"]


@pytest.fixture
def package(tmp_path, monkeypatch):
    """Install a package in a folder of its own."""
    folder = tmp_path / "installed" / "hflray_own"
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text("")
    written(folder, "from hflray_own.inside import x\nclass Thing: pass\nclass Bad:\n    def f(self): return 1 / 0\n")
    written(folder, "x = 1\n", "inside.py")
    monkeypatch.syspath_prepend(str(folder.parent))
    yield folder
    for name in [name for name in sys.modules if name.partition(".")[0] == "hflray_own"]:
        del sys.modules[name]


def test_a_module_of_an_installed_package_is_imported_and_its_text_hashed(package):
    pinned = references.pin("hflray_own.mine:Thing")
    assert pinned.endswith(hashlib.sha256((package / "mine.py").read_bytes()).hexdigest())
    assert references.load(pinned) is sys.modules["hflray_own.mine"].Thing
    with pytest.raises(ZeroDivisionError) as error:
        references.load(references.pin("hflray_own.mine:Bad"))().f()
    assert references.blame(error.value) == "mine.py:4: ZeroDivisionError: division by zero"


def test_an_installed_module_with_another_text_is_refused(package):
    pinned = references.pin("hflray_own.mine:Thing")
    (package / "mine.py").write_text("class Thing: pass\n")
    assert "has changed: it has sha256" in refusal(references.load, pinned)


@pytest.mark.parametrize("name", ["hflray_nothing:Thing", "hflray_nothing.parts:Thing"])
@pytest.mark.parametrize("key", ["scheduling.name", "model.name", "data.name", "training.loss", "target.metric"])
def test_a_module_whose_package_the_driver_lacks_is_one_line_with_the_setting(key, name):
    message = refusal(load_config, None, [f"{key}={name}"])
    assert message.startswith(f"{key}: got '{name}'; ")
    assert "install" in message
    assert "hflray_nothing" in message.partition("; ")[2]


def test_a_module_whose_package_a_trials_machine_lacks_is_one_line_with_the_machine(package, monkeypatch):
    """The text that came along does not run, because the module may need the rest of its package."""
    pinned = references.pin("hflray_own.mine:Thing")
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry != str(package.parent)])
    message = refusal(references.load, pinned)
    assert message.startswith(f"on {platform.node()}, there is no module 'hflray_own.mine'; install its package")


def test_modules_that_are_not_there_or_have_no_text(package):
    assert refusal(references.pin, "hflray_nothing:Thing").startswith(
        "there is no module 'hflray_nothing'; install its"
    )
    assert "there is no module" in refusal(references.pin, "hflray_nothing.at_all:Thing")
    assert "there is no module" in refusal(references.pin, "hflray_own.mine.inside:Thing")
    assert "has no Python text" in refusal(references.pin, "math:sqrt")
    assert issubclass(ConfigError, HflrayError)


@pytest.mark.parametrize("kind", ["package", "namespace"])
@pytest.mark.parametrize("depth", [1, 2])
def test_a_module_is_found_and_read_without_importing_the_packages_around_it(tmp_path, monkeypatch, kind, depth):
    """`importlib.util.find_spec` would import them, and a name may be a stranger's."""
    parts = ["hflray_evil", "inner"][:depth]
    for number in range(depth):
        folder = tmp_path.joinpath(*parts[: number + 1])
        folder.mkdir()
        if kind == "package":
            (folder / "__init__.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w').close()\n")
    written(tmp_path.joinpath(*parts), TEXT)
    monkeypatch.syspath_prepend(str(tmp_path))
    pinned = references.pin(f"{'.'.join(parts)}.mine:Thing")
    assert pinned.endswith(hashlib.sha256(TEXT.encode()).hexdigest())
    assert not [name for name in sys.modules if name.startswith("hflray_evil")]
    assert not (tmp_path / "ran").exists()
    assert references.load(pinned).__module__ == f"{'.'.join(parts)}.mine"  # the user's own name loads as ever
    for name in [name for name in sys.modules if name.startswith("hflray_evil")]:
        del sys.modules[name]


@pytest.mark.parametrize(
    "way", ["in the results", "in the present folder", "beside an installed one", "a linked folder"]
)
def test_a_module_of_a_stranger_s_folder_is_not_the_user_s_own(tmp_path, monkeypatch, way):
    """Its text may be that of any installed module, and the packages around it would run first."""
    results, here = tmp_path / "hflray_results", tmp_path / "here"
    for folder in (results / "evil", here / "evil", tmp_path / "installed" / "evil"):
        folder.mkdir(parents=True)
        (folder / "__init__.py").write_text("raise SystemExit('ran')\n")
        written(folder)
    name, text, path = "evil.mine", TEXT, str(tmp_path / "installed" / "evil" / "mine.py")
    rest = sys.path[1:]
    if way == "in the results":
        name, places = "hflray_results.evil.mine", ["/nothing", *rest, str(tmp_path)]
    elif way == "in the present folder":
        places = [str(here), "", *rest]
        monkeypatch.chdir(here)
    elif way == "beside an installed one":  # what Python would import is not what is installed
        places = [str(here), *rest, str(tmp_path / "installed")]
    else:  # the file lies elsewhere, and the package around it in the results
        (results / "evil" / "way").symlink_to(tmp_path / "installed" / "evil")
        name, places = "hflray_results.evil.way.mine", ["/nothing", *rest, str(tmp_path)]
    monkeypatch.setattr(sys, "path", places)
    source = references.Source(name, text, path)
    assert references.own_text(source, results) is None
    assert references.adopt_own([source], results) == [source]
    if way == "in the present folder":
        references.refuse_change(references.Source(name, "other", path))  # raises no error: it is not looked at
    monkeypatch.setattr(sys, "path", ["/nothing", *rest, str(tmp_path / "installed")])
    assert references.own_text(references.Source("evil.mine", TEXT, path), results) == TEXT
    assert not [name for name in sys.modules if name.startswith(("evil", "hflray_results"))]


def test_only_texts_of_the_user_s_own_files_are_adopted(tmp_path, monkeypatch) -> None:
    results, place = tmp_path / "results", tmp_path / "place"
    for folder in (results, place):
        folder.mkdir()
    own = references.Source("mine.py", TEXT, str(written(place)))
    inside = references.Source("inside.py", TEXT, str(written(results, name="inside.py")))
    (place / "link.py").symlink_to(written(results, name="target.py"))
    (place / "way").symlink_to(results)
    os.mkfifo(place / "fifo.py")
    written(place, TEXT + "\n", "other.py")
    monkeypatch.chdir(place)
    paths = [place / name for name in ("link.py", "fifo.py", "other.py", "gone.py", "way/inside.py", "")]
    texts = [str(path) for path in paths] + ["mine.py", "/a\0b", ""]
    others = [references.Source(f"{number}.py", TEXT, path) for number, path in enumerate(texts)]
    assert references.adopt_own([own, inside, *others], results) == [inside, *others]
    assert list(references._sources.values()) == [own]
    assert references.own_text(others[2], results) == TEXT + "\n"
    assert references.own_text(own, place / "elsewhere") == TEXT
    module = references.Source("mine", TEXT, "/on/another/machine/mine.py")
    monkeypatch.setattr(sys, "path", [*sys.path, str(place)])
    monkeypatch.setattr(os, "getuid", lambda: os.stat(own.path).st_uid + 1)
    references._sources.clear()
    assert references.adopt_own([own, module], results) == ([own] if os.stat(own.path).st_uid == 0 else [own, module])
