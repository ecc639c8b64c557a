"""The checkpoint report: its schema, one writer, and renderers that read nothing but its JSON."""

from ssd_infer.report.rows import exit_code
from ssd_infer.report.schema import SCHEMA_VERSION, ReportError, validate
from ssd_infer.report.write import read_report, write_report

__all__ = ["SCHEMA_VERSION", "ReportError", "exit_code", "read_report", "validate", "write_report"]
