"""``cluster.observability`` beside another backend: the same exchange, which elects nobody and gates nothing."""

from __future__ import annotations

from types import MappingProxyType
from typing import Final

from cronstable.api import ElectionContext, Host, Seconds, Started
from cronstable_gossip.backend import GossipElection
from cronstable_gossip.network import Bounds, TlsNetwork
from cronstable_gossip.settings import MeshSettings, normalise
from cronstable_gossip.wire import Transport

NAME = "observability"
SECTION: Final = f"cluster.{NAME}"
AGAIN_AFTER: Final[Seconds] = 60.0
"""Between two attempts to start, as between two passes over the configuration."""


def make(settings: MeshSettings, host: Host) -> Mesh:
    """The factory of the service."""
    return Mesh(settings, host)


class Mesh:
    """Implements ``Service``. Its view of the cluster is shown as the fleet and asked by nobody."""

    def __init__(self, settings: MeshSettings, host: Host) -> None:
        self._settings = settings
        self._host = host

    async def run(self, host: Host, *, task_status: Started) -> None:
        """Answer and ask until cancelled. The jobs do not wait for the first round, whose peers may be down.

        A port that is taken and a certificate that does not load are said once and tried again.
        """
        task_status.started()
        said: str | None = None
        while True:
            try:
                await self._mesh(host).run(host, task_status=_Nobody())
            except OSError as error:
                if str(error) != said:
                    said = str(error)
                    host.log.error("%s: cannot start, is tried again each minute; no job waits: %s", NAME, error)
            await host.clock.sleep(AGAIN_AFTER)

    def _mesh(self, host: Host) -> GossipElection:
        """A new one for each attempt: to its peers it is another process."""
        section, name = self._settings.exchange, self._settings.node_name or host.snapshot().node_name
        bounds = Bounds(self._settings.connect_timeout, section.interval * 2 + self._settings.connect_timeout)
        peers = normalise(section.listen, section.peers, name)

        def network(instance_id: str) -> Transport:
            return TlsNetwork(host, section.listen, peers, section.tls, instance_id, bounds, section=SECTION)

        context = ElectionContext(
            backend=NAME,
            node_name=name,
            settings=None,
            cluster=MappingProxyType({}),
            job_set_id=lambda: host.snapshot().job_set_id,
            connect_timeout=self._settings.connect_timeout,
            elect_leader=False,
            beside=MappingProxyType({NAME: {"shareNodeStats": self._settings.share_node_stats}}),
        )
        return GossipElection(context, host, section, network, what=NAME)


class _Nobody:
    """Nobody waits for the first round."""

    def started(self, value: None = None) -> None:
        """It is over."""
