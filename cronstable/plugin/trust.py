"""Whom to trust, read when it is asked: libraries load the system's trust store while they are imported.

aiohttp makes two TLS contexts for connections that nobody here ever opens with them. The store behind each is parsed
in full: 3 MiB, and a tenth of the time that a daemon takes to start.
"""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_load = ssl.SSLContext.set_default_verify_paths
"""Found before it is ever replaced: a context may be used while another import goes on."""


class _LoadsLater(ssl.SSLContext):
    """A context whose trust store is loaded for the first connection."""

    def wrap_bio(self, *args: Any, **options: Any) -> ssl.SSLObject:
        """What asyncio calls."""
        return _loaded(self).wrap_bio(*args, **options)

    def wrap_socket(self, *args: Any, **options: Any) -> ssl.SSLSocket:
        """What everybody else calls."""
        return _loaded(self).wrap_socket(*args, **options)


def _loaded(context: ssl.SSLContext) -> ssl.SSLContext:
    # In this order: what another thread takes for a usual context has to know whom to trust.
    _load(context)
    context.__class__ = ssl.SSLContext
    return context


@contextmanager
def trust_store_on_demand() -> Iterator[None]:
    """Around imports: a context that is made in here and asks for the system's trust store gets it when it is used.

    A context of a class of its own is left alone.
    """
    if "set_default_verify_paths" in vars(ssl.SSLContext):
        # An import that leads to another one; the outer one puts it back.
        yield
        return

    def deferred(self: ssl.SSLContext) -> None:
        if type(self) is ssl.SSLContext:
            self.__class__ = _LoadsLater
        else:
            _load(self)

    ssl.SSLContext.set_default_verify_paths = deferred  # type: ignore[method-assign]  # put back below
    try:
        yield
    finally:
        # It is inherited from the C type, so nothing of ours may stay behind.
        del ssl.SSLContext.set_default_verify_paths
