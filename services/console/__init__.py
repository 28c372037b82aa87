"""The console: one page for the whole fabric, as files that a browser reads without a build step.

`static/` has the page; services/processes/admin/console_routes.py serves it.
"""
