"""``--validate-config`` and ``--job-set-id``: read all, start nothing. No asyncio, click or rich behind these."""

from __future__ import annotations

from cronstable.cli.loading import loader, plugins_with_warnings, print_findings, warn


def validate(path: str, form: str) -> int:
    """Report every finding of every file; 0 when there is no error."""
    result = loader(path, plugins_with_warnings(warn))()
    print_findings(result, form)
    if result.config is None:
        return 1
    if form == "text":
        print(f"{path}: valid, {len(result.config.jobs)} jobs")
    return 0


def job_set_id(path: str, form: str) -> int:
    """Print the job-set ID of the configuration."""
    result = loader(path, plugins_with_warnings(warn))()
    if result.config is None:
        print_findings(result, form)
        return 1
    print(result.config.job_set_id)
    return 0
