"""The report page: one file that works offline."""

from __future__ import annotations

from fedrecall.report.page.page import write_page, write_report_page

__all__ = ["write_page", "write_report_page"]
