"""Spark's daemon with the source loaded: `python -m raylay.services.pipeline.spark_worker MODULE`.

Spark forks a process for each planning, each commit and each task from a daemon that has loaded
PySpark and nothing else. What a source needs besides, Arrow and numpy, takes longer to load than
most plans take, so it is loaded before the forks.
"""

from __future__ import annotations

import contextlib
import os
import runpy
import sys
import traceback
from typing import Any


def print_errors_but_closed_pipes() -> None:
    """Makes the processes of the daemon print no error that says only that Spark closed their
    pipe: it does so with each task whose rows are no longer needed, as those of a LIMIT."""
    printed = traceback.print_exc

    def print_exc(*args: Any, **keywords: Any) -> None:
        if not isinstance(sys.exc_info()[1], BrokenPipeError | ConnectionResetError):
            printed(*args, **keywords)

    vars(traceback).update(print_exc=print_exc)  # by which PySpark's daemon prints them


if __name__ == "__main__":
    # Its threads would not survive the fork.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    print_errors_but_closed_pipes()
    with contextlib.suppress(ImportError):  # who needs it says what is missing
        import raylay.services.pipeline.tables.source  # noqa: F401
    runpy.run_module("pyspark.daemon", run_name="__main__", alter_sys=True)
