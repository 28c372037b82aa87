"""Raylay's errors in code that Spark calls."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from raylay.services.errors import RaylayError


@contextmanager
def plain_errors() -> Iterator[None]:
    """Makes Spark report an error of Raylay without the stack of its worker, so that the first line
    names the cause. For code that Spark calls in its workers, which end with the error."""
    try:
        yield
    except RaylayError:
        spec = getattr(sys.modules.get("__main__"), "__spec__", None)
        if spec is not None and spec.name.startswith("pyspark."):
            os.environ["SPARK_HIDE_TRACEBACK"] = "1"
        raise
