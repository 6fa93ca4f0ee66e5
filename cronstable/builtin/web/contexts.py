"""The certificate that new connections are made under, and which connections are older than it."""

from __future__ import annotations

import asyncio
import ssl


class Contexts:
    """Which certificate connections are made under now. Those of an earlier one end: their clients come back.

    The files may have been replaced because the old key was lost, or a client's authority is not to be trusted any
    more: who is connected already must not go on for good.
    """

    def __init__(self) -> None:
        self.now: ssl.SSLContext | None = None

    def outdated(self, transport: asyncio.BaseTransport | None) -> bool:
        """True for a connection under a certificate that was replaced."""
        context = None if transport is None else transport.get_extra_info("sslcontext")
        return context is not None and context is not self.now
