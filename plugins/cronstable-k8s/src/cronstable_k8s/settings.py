"""The section ``cluster.kubernetes`` as a value (reference 3.5, kubernetes table)."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from cronstable.api import InvalidSettings, Json, Problem, Seconds, Section, Severity
from cronstable_k8s.kubeconfig import redacted, wrong_with

DEFAULT_NAME: Final = "cronstable-leader"
DURATION: Final = 15
RENEW_DEADLINE: Final = 10.0
RETRY: Final = 2.0

SHORTEST_DURATION: Final = 3
"""Seconds. A holder acts until its duration - 1 s: less leaves no room for a renewal."""

QUICK_RETRY: Final = 0.5
"""Seconds. Below it each waiting node asks the apiserver more than twice a second."""

_LABEL: Final = r"[a-z0-9](?:[-a-z0-9]*[a-z0-9])?"
_IS_LABEL: Final = re.compile(_LABEL)
_IS_SUBDOMAIN: Final = re.compile(rf"{_LABEL}(?:\.{_LABEL})*")


class ClientLibrary(StrEnum):
    """Who speaks to the apiserver. AUTO: Kubernetes' own client where it is installed, else HTTP."""

    AUTO = "auto"
    HTTP = "http"
    LIBRARY = "library"


@dataclass(frozen=True, slots=True)
class KubernetesSettings:
    """``duration`` (whole), ``renew_deadline`` and ``retry`` in seconds. None: see the key's default."""

    name: str = DEFAULT_NAME
    namespace: str | None = None
    duration: int = DURATION
    renew_deadline: Seconds = RENEW_DEADLINE
    retry: Seconds = RETRY
    identity: str | None = None
    kubeconfig: str | None = None
    api_server: str | None = None
    client_library: ClientLibrary = ClientLibrary.AUTO


def parse(section: Section) -> KubernetesSettings:
    """Check what JSON Schema cannot say. Raises ``InvalidSettings`` with every mistake at once."""
    problems: list[Problem] = []
    name = _name(problems, "leaseName", section.get("leaseName", DEFAULT_NAME), _IS_SUBDOMAIN, 253)
    namespace = section.get("leaseNamespace")
    if namespace is not None:
        namespace = _name(problems, "leaseNamespace", namespace, _IS_LABEL, 63)
    duration, renew_deadline, retry = _times(problems, section)
    settings = KubernetesSettings(
        name=name or DEFAULT_NAME,
        namespace=namespace,
        duration=duration,
        renew_deadline=renew_deadline,
        retry=retry,
        identity=_filled(problems, "identity", section.get("identity")),
        kubeconfig=_filled(problems, "kubeconfig", section.get("kubeconfig")),
        api_server=_api_server(problems, section.get("apiServer")),
        client_library=_library(problems, section.get("clientLibrary", "auto")),
    )
    if problems:
        raise InvalidSettings(problems)
    return settings


def advisories(section: Section) -> Iterator[Problem]:
    """What is usable and yet worth a word."""
    retry = section.get("retryPeriodSeconds")
    if isinstance(retry, int | float) and not isinstance(retry, bool) and 0 < retry < QUICK_RETRY:
        yield Problem(
            ("retryPeriodSeconds",),
            f"retryPeriodSeconds {retry:g} makes each node ask the apiserver {1 / retry:.0f} times a second",
            severity=Severity.ADVISORY,
            hint="2 is enough: where a watch is allowed, a release is seen at once all the same",
        )


def _name(problems: list[Problem], key: str, value: Json, pattern: re.Pattern[str], longest: int) -> str | None:
    if isinstance(value, str) and len(value) <= longest and pattern.fullmatch(value):
        return value
    kind = "subdomain: labels with dots between them" if longest > 63 else "label"
    problems.append(
        Problem(
            (key,),
            f"{key} {value!r:.80} is not a name of Kubernetes",
            allowed=(f"an RFC 1123 {kind}, at most {longest} characters",),
            hint="lower-case letters, digits and '-', beginning and ending with a letter or digit",
        )
    )
    return None


def _times(problems: list[Problem], section: Section) -> tuple[int, Seconds, Seconds]:
    before = len(problems)
    duration = section.get("leaseDurationSeconds", DURATION)
    if not isinstance(duration, int) or isinstance(duration, bool) or duration < SHORTEST_DURATION:
        allowed = (f"a whole number of seconds >= {SHORTEST_DURATION}",)
        message = f"leaseDurationSeconds {duration!r:.40} is not usable"
        problems.append(Problem(("leaseDurationSeconds",), message, allowed=allowed, hint=f"use {DURATION}"))
        duration = DURATION
    deadline = _seconds(problems, "renewDeadlineSeconds", section.get("renewDeadlineSeconds", RENEW_DEADLINE))
    retry = _seconds(problems, "retryPeriodSeconds", section.get("retryPeriodSeconds", RETRY))
    if len(problems) > before:
        return DURATION, RENEW_DEADLINE, RETRY
    if retry >= deadline:
        message = f"retryPeriodSeconds {retry:g} must be less than renewDeadlineSeconds {deadline:g}"
        problems.append(Problem(("retryPeriodSeconds",), message, hint="a renewal needs more than one try"))
    if deadline >= duration:
        message = f"leaseDurationSeconds {duration} must be more than renewDeadlineSeconds {deadline:g}"
        problems.append(Problem(("leaseDurationSeconds",), message, hint="or the lease ends while it is renewed"))
    elif retry < deadline and deadline + retry >= duration:
        message = f"renewDeadlineSeconds {deadline:g} + retryPeriodSeconds {retry:g} must be less than {duration}"
        hint = "a holder that begins to renew a retry period late must be done before leaseDurationSeconds is over"
        problems.append(Problem(("renewDeadlineSeconds",), message, hint=hint))
    return duration, deadline, retry


def _seconds(problems: list[Problem], key: str, value: Json) -> Seconds:
    # NaN passes every comparison that asks "is it too small?", and infinity would never end.
    if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) and value > 0:
        return float(value)
    problems.append(Problem((key,), f"{key} {value!r:.40} is not usable", allowed=("a number of seconds > 0",)))
    return RENEW_DEADLINE


def _filled(problems: list[Problem], key: str, value: Json) -> str | None:
    if value is None:
        return None
    if isinstance(value, str) and value.strip() and "\0" not in value:
        return value
    problems.append(Problem((key,), f"{key} must not be blank", hint="leave the key out"))
    return None


def _api_server(problems: list[Problem], value: Json) -> str | None:
    if value is None:
        return None
    url = value.strip() if isinstance(value, str) else ""
    wrong = wrong_with(url, ("https",))
    if wrong is None:
        return url.rstrip("/")
    message = f"apiServer {redacted(url)!r:.200} is not usable: {wrong}"
    problems.append(Problem(("apiServer",), message, hint="write https://HOST:PORT"))
    return None


def _library(problems: list[Problem], value: Json) -> ClientLibrary:
    try:
        return ClientLibrary(str(value))
    except ValueError:
        allowed = tuple(library.value for library in ClientLibrary)
        problems.append(Problem(("clientLibrary",), f"clientLibrary {value!r:.40} is not known", allowed=allowed))
        return ClientLibrary.AUTO
