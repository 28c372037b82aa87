"""A Spark session that can run the pipeline, and the registration of its data source.

Spark needs Java 17 or newer, starts `python3` from PATH as its workers' Python unless told
otherwise, and pushes filters to Python sources only when asked to: a user does not have to know.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from raylay.services.errors import ConfigurationError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

JAVA_VERSION_MIN = 17
JAVA_ANSWER_TIMEOUT_S = 60.0
SHUFFLE_PARTITIONS_A_CORE = 2
BITMAP_GROUPS_MAX = 10_000
PUSHDOWN_SETTING = "spark.sql.python.filterPushdown.enabled"
INSTALL_JAVA = "sudo apt-get install openjdk-17-jre-headless, or set JAVA_HOME"
INSTALL_SPARK = "pip install 'raylay[spark]'"

_VERSION = re.compile(r'version "(?:1\.)?(\d+)')


def check_java() -> int:
    """The version of the Java that Spark will use.

    Raises:
        ConfigurationError: there is none, or it is too old; says what to install.
    """
    home = os.environ.get("JAVA_HOME", "")
    java = str(Path(home) / "bin" / "java") if home else shutil.which("java") or ""
    if not java or not os.access(java, os.X_OK):
        where = f"JAVA_HOME is {home}, which has no bin/java" if home else "no java is in PATH"
        raise ConfigurationError(
            f"Spark needs Java {JAVA_VERSION_MIN} or newer and {where}: {INSTALL_JAVA}"
        )
    try:
        answer = subprocess.run(
            [java, "-version"],
            capture_output=True,
            text=True,
            timeout=JAVA_ANSWER_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ConfigurationError(f"{java} cannot be run: {error}: {INSTALL_JAVA}") from None
    found = _VERSION.search(answer.stderr + answer.stdout)
    if found is None:
        raise ConfigurationError(f"{java} does not tell its version: {INSTALL_JAVA}")
    version = int(found[1])
    if version < JAVA_VERSION_MIN:
        raise ConfigurationError(
            f"Spark needs Java {JAVA_VERSION_MIN} or newer, {java} is {version}: {INSTALL_JAVA}"
        )
    return version


def check_spark() -> None:
    """Refuses where the packages of the extra `spark` are missing.

    Raises:
        ConfigurationError: one is missing; says what to install.
    """
    for name in ("pyspark", "pyarrow", "numpy", "pandas"):
        if importlib.util.find_spec(name) is None:
            raise ConfigurationError(f"the pipeline needs {name}: {INSTALL_SPARK}")


def session(
    master: str = "local[*]",
    app: str = "raylay",
    *,
    ui: bool = False,
    log_level: str = "ERROR",
    **settings: str,
) -> SparkSession:
    """The Spark session of this process, made where there is none, with the source registered.

    Args:
        master: `local[N]`, or the URL of a cluster, whose workers need the wheel installed.
        app: the application's name.
        ui: whether Spark serves its web page.
        log_level: of Spark itself.
        settings: further Spark settings, with `_` for `.` left to the caller: pass a dict as
            `**{"spark.driver.memory": "4g"}`. They win over those set here.

    Raises:
        ConfigurationError: Java or a package is missing; one line that says what to install.
    """
    check_spark()
    check_java()
    from pyspark.sql import SparkSession

    wanted = {
        "spark.ui.enabled": str(ui).lower(),
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": log_level,
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        PUSHDOWN_SETTING: "true",
        # The audit's bitmaps are 4 KiB a group; Spark would sort all rows from 128 groups on.
        "spark.sql.objectHashAggregate.sortBased.fallbackThreshold": str(BITMAP_GROUPS_MAX),
    }
    if master.startswith("local"):
        wanted |= {
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.driver.host": "127.0.0.1",
            "spark.sql.shuffle.partitions": str(
                SHUFFLE_PARTITIONS_A_CORE * len(os.sched_getaffinity(0))
            ),
        }
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    builder = SparkSession.builder.master(master).appName(app)
    for name, value in (wanted | settings).items():
        builder = builder.config(name, value)
    with quiet_pandas():
        made = builder.getOrCreate()
    return register(made)


@contextmanager
def quiet_pandas() -> Iterator[None]:
    """Silences what PySpark says of a pandas that it asks for and that nothing here uses."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*pandas", category=FutureWarning)
        yield


def register(spark: SparkSession) -> SparkSession:
    """Makes the format `raylay` known to a session, for reading and writing, batch and stream.

    Returns the session. Calling it again does no harm.

    Raises:
        ConfigurationError: a package is missing; says what to install.
    """
    check_spark()
    from raylay.services.pipeline.source import RaylaySource

    context = spark.sparkContext
    if (context.master or "").startswith("local") and "PYSPARK_PYTHON" not in os.environ:
        # Spark would start whatever `python3` in PATH is. On a cluster its administrator decides.
        context.pythonExec = sys.executable
    spark.conf.set(PUSHDOWN_SETTING, "true")
    spark.dataSource.register(RaylaySource)
    return spark
