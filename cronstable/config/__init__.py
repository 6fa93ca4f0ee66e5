"""The configuration: YAML with positions, one schema put together from fragments, findings, and the model."""

from cronstable.config.loader import load
from cronstable.config.model import ClusterConfig, Config, LoadResult
from cronstable.config.report import format_findings
from cronstable.config.schema import compose_schema
from cronstable.config.starter import write_starter

__all__ = [
    "ClusterConfig",
    "Config",
    "LoadResult",
    "compose_schema",
    "format_findings",
    "load",
    "write_starter",
]
