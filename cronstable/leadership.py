"""What a lease backend is built from: the driver and its timing. Re-exports only."""

from cronstable.core.lease_values import LeaseTiming
from cronstable.runtime.lease_driver import LeaseBackend

__all__ = ["LeaseBackend", "LeaseTiming"]
