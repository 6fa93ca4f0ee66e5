"""The names that the documentation promises can be imported from where it says."""

from __future__ import annotations

import importlib

import pytest


@pytest.mark.parametrize(
    ("module", "name"),
    [
        *(("cronstable.cluster", name) for name in ("ClusterManager", "ClusterView", "elect_leader", "quorum_size")),
        *(
            ("cronstable.cluster", name)
            for name in ("UNKNOWN", "AGREED", "SYNCING", "DRIFTED", "UNREACHABLE", "UNTRUSTED", "SELF", "CONFLICT")
        ),
        ("cronstable.leadership", "LeaseBackend"),
        ("cronstable.leadership", "LeaseTiming"),
    ],
)
def test_a_promised_name_is_there(module: str, name: str) -> None:
    found = importlib.import_module(module)
    assert hasattr(found, name)
    assert name in found.__all__


def test_the_peer_status_constants_are_their_lower_case_names() -> None:
    cluster = importlib.import_module("cronstable.cluster")
    for status in cluster.PeerStatus:
        assert getattr(cluster, status.name) == status == status.name.lower()
