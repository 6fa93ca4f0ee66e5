"""``cronstable simulate`` keeps the times that this backend keeps."""

from __future__ import annotations

import pytest
from cronstable_k8s.backend import timing_of
from cronstable_k8s.settings import KubernetesSettings

from cronstable.testing.sim import FLAVOURS


@pytest.mark.parametrize(("duration", "deadline", "retry"), [(15, 10.0, 2.0), (30, 12.0, 0.2)])
def test_a_simulation_elects_at_the_pace_of_the_configuration(duration: int, deadline: float, retry: float) -> None:
    settings = KubernetesSettings(duration=duration, renew_deadline=deadline, retry=retry)
    shipped, _ = timing_of(settings, 10.0)
    assert FLAVOURS["kubernetes"](float(duration), 10.0, deadline, retry).timing == shipped
    assert FLAVOURS["kubernetes"](15.0, 10.0, None, None).timing == timing_of(KubernetesSettings(), 10.0)[0]
