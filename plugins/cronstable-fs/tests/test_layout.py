"""Names on disk: injective, also where a file system folds case, and never too long."""

from __future__ import annotations

import re

from cronstable_fs.layout import Layout, decode_name, encode_name
from hypothesis import given
from hypothesis import strategies as st

ODD = ["", ".", "..", "A", "a", "a/b", "x" * 181, "é" * 100, "\ud800", "\udc80"]
NAMES = st.text(max_size=120) | st.sampled_from(ODD)


@given(NAMES, NAMES)
def test_two_names_never_share_a_file_even_when_case_is_folded(one: str, other: str) -> None:
    if one != other:
        assert encode_name(one).lower() != encode_name(other).lower()


@given(NAMES)
def test_an_encoded_name_is_safe_short_and_can_be_read_back(name: str) -> None:
    encoded = encode_name(name)
    assert re.fullmatch(r"[a-z0-9_%A-F-]{0,180}(\.[0-9a-f]{64})?", encoded)
    assert len(encoded) <= 180
    assert decode_name(encoded) == (name if "." not in encoded else None)


def test_the_documented_examples() -> None:
    assert encode_name("cluster/leader") == "cluster%2Fleader"
    assert encode_name("Prod.1") == "%50rod%2E1"


def test_what_is_no_encoded_name_has_no_name() -> None:
    assert decode_name(".probe-1") is None
    assert decode_name("%2f") is None
    assert decode_name("%FF") is None


def test_a_deployment_cannot_leave_the_directory() -> None:
    layout = Layout.of("/mnt/share", "../../etc", "x")
    assert layout.root == "/mnt/share/%2E%2E%2F%2E%2E%2Fetc"


def test_a_relative_path_is_made_absolute_once() -> None:
    assert Layout.of("share", "default", "x").lease.startswith("/")
