"""HTML reports: one self-contained page with a verdict, figures, tables and charts.

A job computes values; `Page` and the functions of `charts` show them. Nothing here reads a clock or
a file but the page's own template. Needs the extra `reports` (jinja2, matplotlib).
"""

from __future__ import annotations

from raylay.services.reports.page import Page

__all__ = ["Page"]
