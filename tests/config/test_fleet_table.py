"""What tables say about a fleet, and one line for each mistake in them, with file, row and column."""

from __future__ import annotations

from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from hflray.config import FleetConfig, load_config, validate
from hflray.config.fleet_table import fleet_table
from hflray.errors import ConfigError
from tests.conftest import refusal, refusals

DEVICES = "device,x_m,y_m,max_cpu_ghz\na,0,100,1.5\nb,300,50,2\n"
EDGES = "edge,x_m,y_m,bandwidth_mhz\nnorth,10,20,3\nsouth,200,400,1\n"


@pytest.fixture
def table(tmp_path):
    """Return a function that writes tables and returns what they say."""

    def write(devices=None, edges=None, links=None, **options):
        for name, content in (("devices", devices), ("edges", edges), ("links", links)):
            if content is not None:
                path = tmp_path / f"{name}.csv"
                path.write_bytes(content if isinstance(content, bytes) else content.encode())
                options[name] = str(path)
        return fleet_table(options)

    return write


def test_columns_become_si_units(table):
    made = table(DEVICES, EDGES)
    assert (made.num_devices, made.num_edges, made.area_m) == (2, 2, 400.0)
    assert made.device_names == ("a", "b")
    assert made.edge_names == ("north", "south")
    assert made.arrays["position_m"].tolist() == [[0, 100], [300, 50]]
    assert made.arrays["max_cpu_hz"].tolist() == [1.5e9, 2e9]
    assert made.arrays["edge_bandwidth_hz"].tolist() == [3e6, 1e6]
    assert made.notes == ()


def test_degrees_become_metres_in_the_bounding_square(table):
    made = table("latitude,longitude\n59.995,10\n60.005,10.01\n")
    (first, second) = made.arrays["position_m"]
    assert made.area_m == pytest.approx(1111.9, abs=0.1)
    assert first.tolist() == [0, 0]
    assert second == pytest.approx([556.0, 1111.9], abs=0.1)
    assert made.device_names is None


def test_places_beside_the_date_line_are_neighbours(table):
    made = table("latitude,longitude\n0,179.995\n0,-179.995\n")
    assert made.area_m == pytest.approx(1111.9, abs=0.1)


def test_a_box_cuts_rows_out(table):
    made = table("device,x_m,y_m\na,-50,100\nb,-20,50\nc,900,0\n", area={"x_m": [-100, 0], "y_m": [0, 200]})
    assert made.device_names == ("a", "b")
    assert made.arrays["position_m"].tolist() == [[50, 100], [80, 50]]
    assert (made.area_m, made.is_area_exact) == (200, True)
    assert "1 of 3 rows lie outside" in made.notes[0]


def test_other_names_and_letters_of_any_case(table):
    made = table("SITE_ID,LATITUDE,Longitude,NAME\n7,1,2,x\n8,1.001,2,y\n", columns={"device": "SITE_ID"})
    assert made.device_names == ("7", "8")
    assert made.notes == (made.notes[0],)
    assert "nothing uses the columns NAME" in made.notes[0]


def test_a_renamed_column_of_one_file_may_have_its_known_name_in_another(table):
    devices, links = "SITE,x_m,y_m\na,0,0\nb,9,9\n", "device,edge,gain_db\na,e,-90\nb,e,-95\n"
    made = table(devices, "edge,x_m,y_m\ne,1,1\n", links, columns={"device": "SITE"})
    assert made.device_names == ("a", "b")
    with pytest.raises(ConfigError, match=r"fleet.options.columns.device: got 'PLACE', which no file has"):
        table(devices.replace("SITE", "device"), columns={"device": "PLACE"})


def test_windows_files_with_semicolons_and_decimal_commas(table):
    made = table(b"\xef\xbb\xbfdevice;x_m;y_m\r\na;0,5;1\r\n\r\nb;1;2,25\r\n")
    assert made.arrays["position_m"].tolist() == [[0.5, 1], [1, 2.25]]


def test_links_by_gain_and_by_rate(table):
    made = table(DEVICES, EDGES, "device,edge,gain_db,mbps\na,south,-90,\nb,north,,5\n")
    assert made.arrays["gain"][0, 1] == pytest.approx(1e-9)
    assert made.arrays["rate_bps"][1, 0] == 5e6
    assert np.isnan(made.arrays["gain"]).sum() == 3


def test_links_alone_say_how_many_there_are(table):
    made = table(links="device,edge,mbps\nx,e,1\ny,e,2\n")
    assert (made.num_devices, made.num_edges, made.device_names) == (2, 1, ("x", "y"))


def test_fedscales_capacities(table):
    """A forward pass of 10 ms a sample is 30 ms of training, and 4,000 kbit/s hold to every edge."""
    made = table("device,computation,communication\n1,10,4000\n2,20,8000\n")
    assert made.arrays["seconds_per_sample"] == pytest.approx([0.03, 0.06])
    assert made.arrays["rate_bps"].tolist() == [[4e6], [8e6]]


def test_empty_cells_are_drawn_with_a_note(table):
    made = table("device,max_cpu_ghz\na,\nb,2\n")
    assert np.isnan(made.arrays["max_cpu_hz"][0])
    assert "1 of 2 cells of max_cpu_ghz are empty" in made.notes[0]


NO_TEXT = ({"devices": b"device\n\xe9\n"}, "row 2: a byte is no text of UTF-8")


@pytest.mark.parametrize("arguments, message", [*refusals("config/fleet_table"), NO_TEXT])
def test_a_mistake_is_one_line_with_file_row_and_column(arguments, message, table):
    with refusal(ConfigError, message):
        whole = {"DEVICES": DEVICES, "EDGES": EDGES}
        table(**{name: whole.get(str(given), given) for name, given in arguments.items()})


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(ConfigError, match=r"fleet.options.devices: got .*none.csv.*cannot be read"):
        fleet_table({"devices": str(tmp_path / "none.csv")})


def test_counts_follow_from_the_files_and_may_be_repeated(tmp_path):
    (tmp_path / "d.csv").write_text(DEVICES)
    options = {"devices": str(tmp_path / "d.csv")}
    config = FleetConfig(name="table", options=options)
    assert (config.num_devices, config.num_edges, config.area_km) == (2, 5, 0.3)
    assert FleetConfig(name="table", options=options, num_devices=2, area_km=0.5).area_km == 0.5
    assert FleetConfig.model_validate(config.model_dump(mode="json")) == config
    with pytest.raises(ConfigError, match=r"num_devices: got 3, and d.csv say 2"):
        validate(FleetConfig, {"name": "table", "options": options, "num_devices": 3})
    with pytest.raises(ConfigError, match=r"area_km: got 0.1, and d.csv have places up to 300 m"):
        validate(FleetConfig, {"name": "table", "options": options, "area_km": 0.1})


def test_a_configuration_that_was_written_needs_no_file(tmp_path):
    (tmp_path / "d.csv").write_text(DEVICES)
    tree = FleetConfig(name="table", options={"devices": str(tmp_path / "d.csv")}).model_dump(mode="json")
    tree["options"]["devices"] = tree["options"]["devices"][:-64] + 64 * "0"  # bytes that nobody holds
    assert FleetConfig.model_validate(tree).num_devices == 2


def test_parquet_has_the_same_meaning(tmp_path):
    parquet.write_table(
        pa.table(
            {
                "device": pa.array(["a", "b"]).dictionary_encode(),
                "x_m": [1, 2],
                "y_m": pa.array([3.0, 4.0], pa.float32()),
            }
        ),
        tmp_path / "d.parquet",
    )
    made = fleet_table({"devices": str(tmp_path / "d.parquet")})
    assert made.device_names == ("a", "b")
    assert made.arrays["position_m"].tolist() == [[1, 3], [2, 4]]
    known = pa.table({"x_m": [1.0], "y_m": [1.0], "max_cpu_ghz": pa.array([Decimal("0.5")])})
    parquet.write_table(known, tmp_path / "decimal.parquet")  # its devices had the default of 2 GHz
    with pytest.raises(ConfigError, match=r"decimal.parquet, column max_cpu_ghz: holds decimal.*; accepted: numbers"):
        fleet_table({"devices": str(tmp_path / "decimal.parquet")})
    parquet.write_table(known.rename_columns(["x_m", "y_m", "Max_CPU_GHz"]), tmp_path / "upper.parquet")
    with pytest.raises(ConfigError, match=r"upper.parquet, column Max_CPU_GHz: holds decimal"):
        fleet_table({"devices": str(tmp_path / "upper.parquet")})
    parquet.write_table(known.rename_columns(["x_m", "y_m", "price"]), tmp_path / "more.parquet")
    assert fleet_table({"devices": str(tmp_path / "more.parquet")}).notes == (
        "fleet.options.devices: more.parquet: nothing uses the columns price",
    )
    parquet.write_table(pa.table({"x_m": [1.0, float("nan")], "y_m": [1.0, 2.0]}), tmp_path / "nan.parquet")
    with pytest.raises(ConfigError, match=r"nan.parquet, row 2, column x_m: got 'nan'"):
        fleet_table({"devices": str(tmp_path / "nan.parquet")})
    (tmp_path / "bad.parquet").write_bytes(b"PAR1 and no more")
    with pytest.raises(ConfigError, match=r"bad.parquet: is no Parquet file"):
        fleet_table({"devices": str(tmp_path / "bad.parquet")})


@pytest.mark.parametrize("size", ["area_km=6", "num_devices=99"])
def test_a_size_of_ones_own_is_refused_although_all_are_given(tmp_path, size) -> None:
    rows = "".join(f"d{n},{n % 4 / 10},{n // 4 / 10}\n" for n in range(12))
    (tmp_path / "devices.csv").write_text("device,latitude,longitude\n" + rows)
    (tmp_path / "edges.csv").write_text("edge,latitude,longitude\ne0,0,0.3\ne1,0.3,0\n")
    options = f"{{devices: {tmp_path / 'devices.csv'}, edges: {tmp_path / 'edges.csv'}}}"
    own = [f"fleet={{name: table, options: {options}}}", "scheduling.num_scheduled=4"]
    sizes = load_config(None, own).fleet
    given = {"num_devices": 12, "num_edges": 2, "area_km": sizes.area_km} | dict([size.split("=")])
    with pytest.raises(ConfigError, match=f"{size.partition('=')[0]}: got"):
        load_config(None, own + [f"fleet.{name}={value}" for name, value in given.items()])
