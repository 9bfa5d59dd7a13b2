"""hflray.world.sumo: floating-car data become a trace."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from hflray.errors import ConfigError
from hflray.world.mobility import FromTrace
from hflray.world.sumo import convert, main
from hflray.world.trace import Trace

FCD = """<?xml version="1.0"?>
<fcd-export>
  <timestep time="0.00"><vehicle id="b" x="100.5" y="20" speed="3"/></timestep>
  <timestep time="1.00"><vehicle id="b" x="103.5" y="20"/><person id="a" x="90.5" y="60"/></timestep>
  <timestep time="2.00"><vehicle id="c" x="110.5" y="20"/></timestep>
</fcd-export>
"""


def test_vehicles_become_devices(tmp_path: Path) -> None:
    source, target = tmp_path / "fcd.xml", tmp_path / "trace.csv"
    source.write_text(FCD, encoding="utf-8")
    assert convert(source, target) == (3, 40.0)
    lines = target.read_text(encoding="utf-8").splitlines()
    assert lines == [
        "time_s,device,x_m,y_m", "0,0,10.000,0.000", "1,0,13.000,0.000", "1,1,0.000,40.000", "2,2,20.000,0.000",
    ]  # fmt: skip
    Trace.read("x", str(target), "device", 3, {"x_m": False, "y_m": False})
    assert convert(source, target, devices=1)[0] == 1
    assert len(target.read_text(encoding="utf-8").splitlines()) == 3


def test_long_times_are_kept_and_the_area_holds_every_place(tmp_path: Path, monkeypatch, capsys) -> None:
    source, target = tmp_path / "fcd.xml", tmp_path / "trace.csv"
    places = '<vehicle id="a" x="0" y="0"/><vehicle id="b" x="1234.54" y="7"/>'
    source.write_text(f'<a><timestep time="1234567.25">{places}</timestep></a>', encoding="utf-8")
    monkeypatch.setattr(sys, "argv", ["sumo", str(source), str(target)])
    main()
    assert target.read_text(encoding="utf-8").splitlines()[2] == "1234567.25,1,1234.540,7.000"
    area_m = 1000 * float(capsys.readouterr().out.rpartition(" ")[2])
    assert 1234.54 < area_m < 1234.7
    FromTrace(seed=0, position_m=np.zeros((2, 2)), area_m=area_m, slot_s=1.0, path=str(target))


@pytest.mark.parametrize("text", ["", "<fcd-export/>", "<a><timestep time='0'><vehicle id='b' x='1'/></timestep></a>"])
def test_another_file_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "fcd.xml").write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError, match=r"fcd\.xml: .* give a file of --fcd-output"):
        convert(tmp_path / "fcd.xml", tmp_path / "trace.csv")
