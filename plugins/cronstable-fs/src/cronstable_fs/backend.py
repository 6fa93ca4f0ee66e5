"""The backend ``filesystem``: the probe first, then the host's lease driver over our store."""

from __future__ import annotations

import sys
from typing import Final

import anyio

from cronstable.api import (
    Capability,
    Claims,
    ClusterView,
    ElectionContext,
    Host,
    PluginError,
    Seconds,
    Started,
    StoreUnavailable,
)
from cronstable.leadership import LeaseBackend, LeaseTiming
from cronstable_fs.layout import Layout
from cronstable_fs.lease import LANE, FilesystemLeaseStore
from cronstable_fs.probe import Findings, examine
from cronstable_fs.settings import FilesystemSettings, Topology

CAPABILITIES = frozenset({Capability.LEASE, Capability.FENCED, Capability.REBOOT_MARKS, Capability.OCCURRENCE_CLAIMS})

OWN_SHARE = 0.9
"""Of the driver's deadline for one request: the store gives up first, since it can say what it was waiting for."""

RETIRE: Final[Seconds] = 1.0
"""How long an end waits to take the sign of life away: a disk that hangs has held up the release already."""


def make(context: ElectionContext, host: Host) -> FilesystemElection:
    """The factory of the descriptor. Touches no file: a mount that hangs must not hold up the start."""
    settings = context.settings
    if not isinstance(settings, FilesystemSettings):
        raise PluginError(f"cronstable-fs: cluster.filesystem was not parsed by this plugin: {settings!r}")
    return FilesystemElection(context, host, settings)


class FilesystemElection:
    """``Election``, ``RebootLedger`` and ``Claimant``: ``LeaseBackend``, only over a directory whose locks are real."""

    def __init__(
        self, context: ElectionContext, host: Host, settings: FilesystemSettings, platform: str = sys.platform
    ) -> None:
        self._settings = settings
        self._memory = context.memory
        self._platform = platform
        self._layout = Layout.of(settings.path, settings.deployment, settings.election)
        self._timing = LeaseTiming.for_ttl(settings.ttl, context.connect_timeout)
        self._store = FilesystemLeaseStore(
            host,
            self._layout,
            settings.election,
            ttl=settings.ttl,
            op_timeout=OWN_SHARE * self._timing.op_timeout,
            platform=platform,
            signs=settings.topology is not Topology.SHARED,
        )
        self._lease = LeaseBackend(
            self._store,
            context,
            host,
            timing=self._timing,
            capabilities=CAPABILITIES,
            lease_fields=(("path", settings.path), ("electionName", settings.election)),
            describe=self._describe,
        )

    def view(self) -> ClusterView:
        """See ``Election.view``."""
        return self._lease.view()

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

    @property
    def claims(self) -> Claims | None:
        """See ``Claimant.claims``."""
        return self._lease.claims

    async def run(self, host: Host, *, task_status: Started) -> None:
        """See ``Election.run``. Raises ``PluginError`` before it starts over locks that are fiction, or elsewhere."""
        findings = await self._examine(host)
        where = f"cluster.backend filesystem: {self._settings.path}"
        if findings.refusal is not None:
            raise PluginError(
                f"cluster.backend filesystem: refusing to elect over {self._settings.path}: {findings.refusal}"
            )
        if findings.identity is not None:
            self._memory[self._layout.root] = findings.identity
        for text in findings.warnings:
            host.log.warning("%s: %s", where, text)
        try:
            await self._lease.run(host, task_status=task_status)
        finally:
            with anyio.move_on_after(min(RETIRE, self._timing.op_timeout), shield=True):
                await self._retire(host)

    async def _retire(self, host: Host) -> None:
        try:
            await self._store.retire()
        except StoreUnavailable as error:
            host.log.debug("cluster: the sign of life stays until this process ends: %s", error)

    async def _examine(self, host: Host) -> Findings:
        unique, settings = host.ids.token(), self._settings
        known = self._memory.get(self._layout.root)
        try:
            return await host.threads.run(
                lambda: examine(host.fs, host.clock, self._layout, unique, settings.topology, self._platform, known),
                timeout=self._timing.round_deadline,
                lane=LANE,
            )
        except TimeoutError:
            silence = f"no answer within {self._timing.round_deadline:g} s"
            if known is not None:
                # Whatever answers later may be the directory below the share.
                return Findings(f"whether it is still the directory of this daemon cannot be told: {silence}")
            return Findings(warnings=(f"whether its locks work could not be tried: {silence}",))

    def _describe(self, identity: str) -> str:
        settings = self._settings
        return f"at {settings.path} (election={settings.election}, identity={identity}, ttl={settings.ttl:g})"
