"""The event bus: what happened, to whoever listens, without ever making the sender wait."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import AsyncIterator, Callable

import anyio

from cronstable.core.events import Event

BACKLOG = 1_000


class _Subscriber:
    def __init__(self, kinds: tuple[type[Event], ...]) -> None:
        self.kinds = kinds
        self.queue: deque[Event] = deque()
        self.wake = anyio.Event()
        self.dropped = 0

    def offer(self, event: Event) -> None:
        if len(self.queue) >= BACKLOG:
            self.queue.popleft()
            self.dropped += 1
        if not self.queue:
            self.wake.set()
        self.queue.append(event)


class EventBus:
    """Fans events out to subscribers; a slow one loses its oldest events, which is logged."""

    def __init__(self, log: logging.Logger) -> None:
        self._log = log
        self._subscribers: list[_Subscriber] = []
        self._interested: dict[type[Event], tuple[_Subscriber, ...]] = {}
        self.counts: Callable[[Event], None] | None = None
        """Hears of every event at once, and must neither wait nor raise: a queue can drop what has to be counted."""

    def emit(self, event: Event) -> None:
        """Hand ``event`` to every subscriber; never waits, never raises."""
        if self.counts is not None:
            self.counts(event)
        kind = type(event)
        interested = self._interested.get(kind)
        if interested is None:
            # Found out once: most subscribers wait for what is rare, and each run is three events.
            interested = tuple(s for s in self._subscribers if not s.kinds or issubclass(kind, s.kinds))
            self._interested[kind] = interested
        for subscriber in interested:
            subscriber.offer(event)

    async def subscribe(self, *kinds: type[Event]) -> AsyncIterator[Event]:
        """Events of ``kinds`` (none named: all) from now on."""
        subscriber = _Subscriber(kinds)
        self._subscribers.append(subscriber)
        self._interested.clear()
        try:
            while True:
                while subscriber.queue:
                    yield subscriber.queue.popleft()
                if subscriber.dropped:
                    self._log.warning("an event listener is too slow: %d events dropped", subscriber.dropped)
                    subscriber.dropped = 0
                subscriber.wake = anyio.Event()
                if not subscriber.queue:
                    await subscriber.wake.wait()
        finally:
            self._subscribers.remove(subscriber)
            self._interested.clear()
