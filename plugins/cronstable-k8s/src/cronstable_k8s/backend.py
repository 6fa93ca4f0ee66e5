"""The backend ``kubernetes``: the host's lease driver over our store, and the credentials that go with it."""

from __future__ import annotations

from dataclasses import replace

import anyio

from cronstable.api import Claims, ClusterView, ElectionContext, Host, PluginError, Seconds, Started
from cronstable.leadership import LeaseBackend, LeaseTiming
from cronstable_k8s import CAPABILITIES, library
from cronstable_k8s.access import Access, Surroundings
from cronstable_k8s.leases import Leases
from cronstable_k8s.settings import ClientLibrary, KubernetesSettings
from cronstable_k8s.store import KubernetesLeaseStore
from cronstable_k8s.transport import HttpTransport, Transport

REQUESTS_PER_ROUND = 4
"""A renewal is one request, three after a conflict; the rest is for one that is not answered (reference 3.5)."""

LOOK_AGAIN: Seconds = 0.3
"""After an answer that came at once, where the store itself keeps the pace."""


def make(context: ElectionContext, host: Host) -> KubernetesElection:
    """The factory of the descriptor. Touches neither files nor the network."""
    settings = context.settings
    if not isinstance(settings, KubernetesSettings):
        raise PluginError(
            f"cronstable-k8s: cluster.kubernetes was not parsed by this plugin: {type(settings).__name__}"
        )
    return KubernetesElection(context, host, settings)


def timing_of(settings: KubernetesSettings, connect_timeout: Seconds) -> tuple[LeaseTiming, Seconds]:
    """Cadence and deadlines, and the seconds that one request may take.

    A call may use the whole round, since it is several requests.
    """
    timing = LeaseTiming(
        ttl=float(settings.duration),
        renew_every=settings.retry,
        round_deadline=settings.renew_deadline,
        op_timeout=settings.renew_deadline,
        poll=min(LOOK_AGAIN, settings.retry),
        # Two renewals fit in: while the holder lives, each of them ends the wait.
        watch=min(2 * settings.retry + 1, settings.renew_deadline),
    )
    return timing, min(connect_timeout, settings.renew_deadline / REQUESTS_PER_ROUND)


class KubernetesElection:
    """An ``Election``, ``RebootLedger`` and ``Claimant``: ``LeaseBackend`` with credentials that may rotate."""

    def __init__(
        self,
        context: ElectionContext,
        host: Host,
        settings: KubernetesSettings,
        around: Surroundings | None = None,
    ) -> None:
        self._settings = settings
        self._host = host
        timing, timeout = timing_of(settings, context.connect_timeout)
        self._access = Access(settings, host, around)
        self._leases = Leases(host, settings.name, timeout=timeout)
        self._store = KubernetesLeaseStore(host, self._leases, ttl=timing.ttl, pace=settings.retry, watch=timing.watch)
        self._identity = settings.identity or context.node_name
        self._lease = LeaseBackend(
            self._store,
            context,
            host,
            timing=timing,
            capabilities=CAPABILITIES,
            identity=settings.identity,
            describe=self._describe,
        )

    def view(self) -> ClusterView:
        """See ``Election.view``. The lease block has the entries of reference 3.5."""
        view = self._lease.view()
        if view.lease is None:
            return view
        fields = (("name", self._settings.name), ("namespace", self._leases.namespace or None))
        expiry = view.lease.expiry if view.is_leader else None
        return replace(
            view, lease=replace(view.lease, identity=self._identity, expiry=expiry, fence=None, fields=fields)
        )

    async def wait_change(self) -> None:
        """See ``LeaseBackend.wait_change``."""
        await self._lease.wait_change()

    def reboot_ran(self, job: str) -> bool | None:
        """See ``RebootLedger.reboot_ran``."""
        return self._lease.reboot_ran(job)

    async def mark_reboot_ran(self, job: str) -> bool:
        """See ``RebootLedger.mark_reboot_ran``."""
        return await self._lease.mark_reboot_ran(job)

    def hurry(self) -> None:
        """See ``Hasty.hurry``."""
        self._lease.hurry()

    async def rehearse(self) -> None:
        """See ``Rehearsable.rehearse``: the credentials."""
        await self._connect()

    @property
    def claims(self) -> Claims | None:
        """See ``Claimant.claims``."""
        return self._lease.claims

    async def run(self, host: Host, *, task_status: Started) -> None:
        """See ``Election.run``. Raises ``PluginError`` before it starts with credentials that do not load."""
        transport = await self._connect()
        self._leases.connect(transport, await self._access.namespace())
        async with anyio.create_task_group() as tasks:
            keep = transport.keep if isinstance(transport, library.LibraryTransport) else self._access.keep
            tasks.start_soon(keep)
            await self._lease.run(host, task_status=task_status)
            tasks.cancel_scope.cancel()

    async def _connect(self) -> Transport:
        settings, access = self._settings, self._access
        wanted = settings.client_library
        if wanted is ClientLibrary.LIBRARY or (wanted is ClientLibrary.AUTO and library.is_installed()):
            await access.load(credentials=False)
            return await library.connect(self._host, settings)
        await access.load()
        if access.needs_library is not None:
            raise PluginError(
                f"cluster.kubernetes.kubeconfig: {settings.kubeconfig}: {access.needs_library} needs Kubernetes' own "
                f"client: {library.INSTALL}, and clientLibrary: auto or library"
            )
        if access.insecure:
            self._host.log.warning(
                "cluster: insecure-skip-tls-verify is set in %s: whoever can answer in the apiserver's place can make "
                "every node a leader",
                settings.kubeconfig,
            )
        return HttpTransport(self._host, access)

    def _describe(self, identity: str) -> str:
        settings = self._settings
        where = f"{self._leases.namespace}/{settings.name}"
        return f"at Lease {where} (identity={identity}, leaseDuration={settings.duration}, retry={settings.retry:g})"
