"""Zones by name, and the zone of the host for ``utc: false``."""

from __future__ import annotations

from datetime import UTC, datetime
from importlib.resources import files
from pathlib import Path

import pytest

from cronstable.config.zones import local_zone, named_zone


@pytest.mark.parametrize("name", ["", "Mars/Base", "Europe", "/etc/passwd", "../x", "a\0b", "x" * 400, "Europe/Berlín"])
def test_a_name_that_is_no_zone_is_none(name: str) -> None:
    assert named_zone(name) is None


@pytest.mark.parametrize("name", ["Asia/Tokyo", ":Asia/Tokyo"])
def test_tz_names_the_local_zone(name: str, tmp_path: Path) -> None:
    assert str(local_zone({"TZ": name}, str(tmp_path / "absent"))) == "Asia/Tokyo"


def test_without_tz_the_link_names_the_local_zone(tmp_path: Path) -> None:
    link = tmp_path / "localtime"
    # A target that does not exist: a system may have made one zone a link to another.
    link.symlink_to(tmp_path / "zoneinfo" / "Europe" / "Oslo")
    assert str(local_zone({}, str(link))) == "Europe/Oslo"


def test_a_copied_zone_file_is_read(tmp_path: Path) -> None:
    copy = tmp_path / "localtime"
    copy.write_bytes(files("tzdata").joinpath("zoneinfo", "Asia", "Tokyo").read_bytes())
    offset = datetime(2030, 1, 1, tzinfo=local_zone({"TZ": "nonsense"}, str(copy))).utcoffset()
    assert offset is not None
    assert offset.total_seconds() == 9 * 3600


def test_a_host_without_a_zone_is_on_utc(tmp_path: Path) -> None:
    garbage = tmp_path / "localtime"
    garbage.write_bytes(b"not a zone file")
    assert local_zone({}, str(tmp_path / "absent")) is UTC
    assert local_zone({}, str(garbage)) is UTC
