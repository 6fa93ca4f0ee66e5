"""Findings as text for people and as JSON for programs."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Literal

from cronstable.core.finding import Finding, Severity, key_path


def format_findings(findings: Iterable[Finding], fmt: Literal["text", "json"] = "text") -> str:
    """One line for each finding, or a JSON list of objects with the same facts. Ends without a newline."""
    if fmt == "json":
        return json.dumps([_as_json(finding) for finding in findings], indent=2, ensure_ascii=False)
    return "\n".join(_as_text(finding) for finding in findings)


def _as_text(finding: Finding) -> str:
    place = f"{finding.file}:{finding.line}:{finding.column}" if finding.line else finding.file
    parts = [place]
    if finding.path:
        parts.append(key_path(finding.path))
    message = finding.message
    if finding.severity is Severity.ADVISORY:
        message = f"advisory: {message}"
    if finding.allowed:
        message += f"; allowed: {', '.join(finding.allowed)}"
    if finding.hint:
        message += f"; {finding.hint}"
    return "  ".join([*parts, message, f"[{finding.owner}]"])


def _as_json(finding: Finding) -> dict[str, object]:
    return {
        "file": finding.file,
        "line": finding.line,
        "column": finding.column,
        "path": key_path(finding.path),
        "severity": finding.severity.value,
        "message": finding.message,
        "allowed": list(finding.allowed),
        "hint": finding.hint,
        "owner": finding.owner,
    }
