"""Sources of secrets as plugins use them: read when needed, off the loop, and never shown."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import field

from cronstable.core.clock import Seconds
from cronstable.core.finding import Problem
from cronstable.core.job import Json
from cronstable.core.values import dataclass
from cronstable.plugin.errors import InvalidSettings
from cronstable.plugin.protocols import Host

READ_TIMEOUT: Seconds = 10.0


@dataclass(frozen=True, slots=True)
class SecretSource:
    """``{value | fromFile | fromEnvVar}``, the first that is given counts (reference 1). No ``repr`` shows a value."""

    value: str | None = field(default=None, repr=False)
    from_file: str | None = None
    from_env_var: str | None = None

    @classmethod
    def of(cls, source: Json) -> SecretSource | None:
        """The source in a section; None when none is configured. Plain text is the secret itself."""
        if isinstance(source, str):
            return cls(value=source)
        if not isinstance(source, dict):
            return None
        texts = [v if isinstance(v := source.get(key), str) else None for key in ("value", "fromFile", "fromEnvVar")]
        return cls(*texts) if any(text is not None for text in texts) else None

    async def reveal(self, host: Host) -> str:
        """The secret as it is now: a file is read each time, so that a rotated one counts at once.

        Raises ``InvalidSettings`` when there is none, without a word of what was read.
        """
        if self.value is not None:
            return self._proven(self.value, "value")
        try:
            return await host.threads.run(self._read, timeout=READ_TIMEOUT, lane="secrets")
        except TimeoutError:
            raise InvalidSettings([Problem(("fromFile",), f"reading it took longer than {READ_TIMEOUT:g} s")]) from None

    def _read(self, environ: Mapping[str, str] = os.environ) -> str:
        if self.from_file is None:
            name = self.from_env_var or ""
            return self._proven(environ.get(name, ""), "fromEnvVar")
        try:
            with open(self.from_file, encoding="utf-8-sig") as file:
                return self._proven(file.read().strip(), "fromFile")
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) and error.strerror else "not a file of UTF-8 text"
            raise InvalidSettings([Problem(("fromFile",), f"the secret cannot be read: {reason}")]) from None

    def _proven(self, text: str, key: str) -> str:
        if not text:
            raise InvalidSettings([Problem((key,), "the secret is empty")])
        return text
