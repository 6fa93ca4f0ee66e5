"""What every test has: the asyncio backend, time limits on properties, and files of the suite by name."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# A slow machine is not a failing property: no deadline per example, and the same examples on every run, so that a red
# suite is red again for whoever looks at it.
settings.register_profile(
    "cronstable", deadline=None, derandomize=True, database=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("cronstable")


def pytest_configure() -> None:
    """Put SIGINT back: a shell that starts the suite with "&" has it ignored, and so would every process of a test."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def anyio_backend() -> str:
    """The backend that the daemon runs on; aiohttp needs it."""
    return "asyncio"


@pytest.fixture(scope="session")
def repo() -> Path:
    """The checkout."""
    return Path(__file__).resolve().parent.parent
