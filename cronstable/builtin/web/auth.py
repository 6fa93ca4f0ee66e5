"""Who asks, and may they: bearer tokens with scopes, and the rule against requests sent by other sites' pages."""

from __future__ import annotations

import hashlib
import hmac
import logging
from collections.abc import Iterable
from dataclasses import dataclass, field

from cronstable.api import Clock, Seconds
from cronstable.builtin.web.settings import ALL_SCOPES, ANONYMOUS, CONTROL, VIEW, Token, normal_origin

READING = frozenset({"GET", "HEAD", "OPTIONS"})
"""Methods that change nothing: scope ``view``, and never refused for their origin."""

QUIET: Seconds = 60.0
"""Wrong tokens are logged at most once in this many seconds."""


@dataclass(frozen=True, slots=True)
class Caller:
    """Who sent a request. ``authenticated``: a token proved it; ``secret`` are its bytes."""

    label: str
    scopes: frozenset[str]
    authenticated: bool = False
    secret: bytes = field(default=b"", repr=False, compare=False)


@dataclass(frozen=True, slots=True)
class Unauthorized:
    """No token, or a wrong one, where one is needed (401); the answer never says which."""


@dataclass(frozen=True, slots=True)
class Forbidden:
    """The caller is known and may not do this (403)."""

    reason: str


class Guard:
    """The tokens of the API, and what may be done with and without them."""

    def __init__(self, tokens: Iterable[Token], anonymous: frozenset[str], clock: Clock, log: logging.Logger) -> None:
        self._clock = clock
        self._log = log
        self._anonymous = anonymous
        # Digests are compared, not the tokens: compare_digest tells the length of what it compares.
        self._tokens = tuple((hashlib.sha256(token.secret).digest(), token) for token in tokens)
        self._quiet_until = float("-inf")
        self._unlogged = 0

    def identify(self, authorization: str | None, peer: str) -> Caller | Unauthorized:
        """Who sent a request with this ``Authorization`` header (None: without one). ``peer`` is for the log."""
        if not self._tokens:
            return Caller(ANONYMOUS, ALL_SCOPES)
        if authorization is None:
            return Caller(ANONYMOUS, self._anonymous) if self._anonymous else Unauthorized()
        scheme, _, credentials = authorization.strip().partition(" ")
        if scheme.lower() == "bearer":
            given = hashlib.sha256(credentials.strip().encode("utf-8", "surrogateescape")).digest()
            found = None
            for digest, token in self._tokens:  # all of them, so that the time says nothing about which one matched
                if hmac.compare_digest(digest, given):
                    found = token
            if found is not None:
                return Caller(found.label, found.scopes, authenticated=True, secret=found.secret)
        self._note_wrong_token(peer)
        return Unauthorized()

    def permit(self, caller: Caller, method: str, *, token_needed: bool) -> Unauthorized | Forbidden | None:
        """None when ``caller`` may use ``method``. ``token_needed``: even where no tokens are configured."""
        if token_needed and not self._tokens:
            return Forbidden("this needs a token, and web.authToken and web.authTokens are not set")
        scope = VIEW if method in READING else CONTROL
        if not caller.authenticated and (token_needed or scope not in caller.scopes):
            return Unauthorized()
        if scope not in caller.scopes:
            return Forbidden(f"token {caller.label!r} lacks the scope {scope!r} that this needs")
        return None

    def _note_wrong_token(self, peer: str) -> None:
        """Log a wrong token without the token; a flood of them becomes one line a minute with a count."""
        now = self._clock.now().boot
        if now < self._quiet_until:
            self._unlogged += 1
            return
        self._log.warning(
            "web: refused a request from %s with a wrong token (%d more since the last such line)", peer, self._unlogged
        )
        self._unlogged = 0
        self._quiet_until = now + QUIET


def foreign_origin(method: str, origin: str | None, host: str | None, allowed: frozenset[str]) -> bool:
    """True for a request that a page of another site made a browser send and that could change something.

    ``origin``, ``host``: the headers. A request without ``Origin`` comes from no page. The scheme of an equal host is
    not compared: behind a proxy that ends TLS the page says https and the request arrives as http.
    """
    if method in READING or origin is None or "*" in allowed:
        return False
    normal = normal_origin(origin)
    if normal is None:
        return True
    scheme = normal.partition("://")[0]
    return normal not in allowed and (host is None or normal_origin(f"{scheme}://{host}") != normal)
