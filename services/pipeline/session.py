"""A Spark session that can run the pipeline, and the registration of its data source.

The session sets what Spark needs, so that a user does not have to: Java 17 or newer, this Python
for the workers (Spark starts `python3` from PATH), and the pushing of filters to Python sources.
"""

from __future__ import annotations

import atexit
import importlib.util
import logging
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from raylay.services.errors import ConfigurationError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

JAVA_VERSION_MIN = 17
JAVA_ANSWER_TIMEOUT_S = 60.0
SHUFFLE_PARTITIONS_A_CORE = 2
HASHED_GROUPS_MAX = 10_000
PYTHON_VARIABLE = "PYSPARK_PYTHON"
LOG_VARIABLE = "RAYLAY_SPARK_LOG"
QUERY_LOGGERS = ("DataFrameQueryContextLogger", "SQLQueryContextLogger")
WORKER_HELLO_S = 120
PUSHDOWN_SETTING = "spark.sql.python.filterPushdown.enabled"
UTF8_LOCALE = "C.UTF-8"
INSTALL_JAVA = "sudo apt-get install openjdk-17-jre-headless, or set JAVA_HOME"
INSTALL_SPARK = "pip install 'raylay[spark]'"

_VERSION = re.compile(r'version "(?:1\.)?(\d+)')
_OURS = re.compile(r"raylay\.services\.errors\.\w+: (.*)")
_STATE = re.compile(r"( SQLSTATE: \w+)+$")
_GREETINGS = re.compile(
    rb"WARNING: Using incubator modules"
    rb"|Using Spark's default log4j profile"
    rb"|Setting default log level to"
    rb"|Setting Spark log level to"
    rb"|To adjust logging level use"
    rb"|\S+ \S+ WARN NativeCodeLoader: "
)
"""Lines that Java and Spark print at every start."""


def check_java() -> int:
    """Returns the version of the Java that Spark will use.

    Raises:
        ConfigurationError: there is no Java, or it is too old; the error says what to install.
    """
    home = os.environ.get("JAVA_HOME", "")
    java = str(Path(home) / "bin" / "java") if home else shutil.which("java") or ""
    if not java or not os.access(java, os.X_OK):
        where = f"JAVA_HOME is {home}, which has no bin/java" if home else "PATH has no java"
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
        raise ConfigurationError(f"{java} does not report its version: {INSTALL_JAVA}")
    version = int(found[1])
    if version < JAVA_VERSION_MIN:
        raise ConfigurationError(
            f"Spark needs Java {JAVA_VERSION_MIN} or newer, but {java} has version {version}: "
            f"{INSTALL_JAVA}"
        )
    return version


def check_spark() -> None:
    """Checks that the packages of the extra `spark` are installed.

    Raises:
        ConfigurationError: one is missing; the error says what to install.
    """
    for name in ("pyspark", "pyarrow", "numpy", "pandas"):
        if importlib.util.find_spec(name) is None:
            raise ConfigurationError(f"the pipeline needs {name}: {INSTALL_SPARK}")


def session(
    master: str = "local[*]",
    app: str = "raylay",
    *,
    ui: bool = False,
    log_level: str = "",
    **settings: str,
) -> SparkSession:
    """Returns the Spark session of this process, which is created if there is none, with the source
    registered.

    Args:
        master: `local[N]`, or the URL of a cluster, whose workers need the wheel installed.
        app: the application's name.
        ui: whether Spark serves its web page.
        log_level: Spark's log level. From `ERROR` on, Spark prints the Java stack of a failure
            above the exception with the same text. Default: RAYLAY_SPARK_LOG, else `OFF`.
        settings: further Spark settings: pass a dict as `**{"spark.driver.memory": "4g"}`. They win
            over those set here.

    Raises:
        ConfigurationError: Java or a package is missing; the error says what to install.
    """
    check_spark()
    check_java()
    from pyspark.sql import SparkSession

    log_level = log_level_of(log_level)
    wanted = {
        "spark.ui.enabled": str(ui).lower(),
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": log_level,
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        PUSHDOWN_SETTING: "true",
        # On a busy machine a Python worker takes longer than Spark's 15 s to say hello.
        "spark.python.authenticate.socketTimeout": f"{WORKER_HELLO_S}s",
        # For `latency`, by link and window; Spark would sort all rows from 128 groups on.
        "spark.sql.objectHashAggregate.sortBased.fallbackThreshold": str(HASHED_GROUPS_MAX),
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
    os.environ.setdefault("SPARK_AUTH_SOCKET_TIMEOUT", str(WORKER_HELLO_S))
    builder = SparkSession.builder.master(master).appName(app)
    for name, value in (wanted | settings).items():
        builder = builder.config(name, value)
    with quiet_pandas(), without_greetings(), _own_python(master), java_locale():
        made = builder.getOrCreate()
    _set_query_loggers(log_level != "OFF")
    return register(made)


def _set_query_loggers(speak: bool) -> None:
    """Switches PySpark's query loggers. PySpark also logs the exception that it raises for a wrong
    expression or schema, with the Java stack, whatever Spark's log level is."""
    try:
        from pyspark.logger import PySparkLogger
    except ImportError:  # before Spark 4
        return
    before = logging.getLoggerClass()
    try:
        for name in QUERY_LOGGERS:
            PySparkLogger.getLogger(name).disabled = not speak
    finally:
        logging.setLoggerClass(before)  # it makes every later logger one of its own


def log_level_of(asked: str) -> str:
    """Returns Spark's log level: the one asked for, or that of RAYLAY_SPARK_LOG, else `OFF`,
    because failures are raised."""
    return asked or os.environ.get(LOG_VARIABLE, "") or "OFF"


@contextmanager
def _own_python(master: str) -> Iterator[None]:
    """Makes the Java that is started inside use this Python for the Python processes that it starts
    by itself."""
    if PYTHON_VARIABLE in os.environ or not master.startswith("local"):
        yield
        return
    os.environ[PYTHON_VARIABLE] = worker_python()
    try:
        yield
    finally:
        del os.environ[PYTHON_VARIABLE]


@contextmanager
def java_locale() -> Iterator[None]:
    """Makes the Java that is started inside name files in UTF-8, as this Python does. Java takes
    the encoding of its locale: with `LC_ALL=C` it cannot name a directory after a topic."""
    names = ("LC_ALL", "LC_CTYPE", "LANG")
    effective = next((os.environ[name] for name in names if os.environ.get(name)), "C")
    if re.search(r"utf-?8", effective, re.IGNORECASE) or sys.getfilesystemencoding() != "utf-8":
        yield
        return
    before = os.environ.get("LC_ALL")
    os.environ["LC_ALL"] = UTF8_LOCALE
    try:
        yield
    finally:
        if before is None:
            del os.environ["LC_ALL"]
        else:
            os.environ["LC_ALL"] = before


@contextmanager
def without_greetings() -> Iterator[None]:
    """Removes from the standard error the lines that Java and Spark print at every start, and
    nothing else.

    Processes that are started inside keep the pipe: a thread copies it for as long as one of them
    has it.
    """
    sys.stderr.flush()
    try:
        kept = os.dup(2)
    except OSError:  # there is no standard error
        yield
        return
    reader, writer = os.pipe()
    os.dup2(writer, 2)
    os.close(writer)
    threading.Thread(target=_copy, args=(reader, kept), name="spark-stderr", daemon=True).start()
    try:
        yield
    finally:
        sys.stderr.flush()
        os.dup2(kept, 2)


def _copy(reader: int, target: int) -> None:
    with open(reader, "rb") as lines, open(target, "wb", buffering=0) as out:
        for line in lines:
            if not _GREETINGS.match(line):
                out.write(line)


def spark_path(path: Path) -> str:
    """Returns a path of this host as Spark takes it, whatever its default file system is. Spark
    takes the percent signs of a URI for themselves, so `Path.as_uri` would name another place."""
    return f"file:{path}"


def one_line(error: BaseException | str) -> str:
    """Returns the line of Spark's report that names the cause: that of Raylay's error, or the
    first."""
    text = str(error).strip()
    ours = _OURS.findall(text)
    if ours:
        return _STATE.sub("", ours[-1].strip())
    lines = [line for line in text.splitlines() if line.strip()]
    return _STATE.sub("", lines[0].strip()) if lines else "Spark failed without giving a reason"


@contextmanager
def quiet_pandas() -> Iterator[None]:
    """Silences PySpark's warnings about a pandas version, which nothing here uses."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*pandas", category=FutureWarning)
        yield


_WORKER_PYTHON = """\
#!/bin/sh
rest=
IFS=:
for each in $PYTHONPATH; do
    case $each in
        {home}/python/lib/*.zip) ;;
        *) rest="$rest:$each" ;;
    esac
done
PYTHONPATH="${{rest#:}}"
export PYTHONPATH
case "$1 $2 $3" in
    *lookup_data_sources) ;;
    "-m pyspark.daemon "*)
        shift 2
        exec {python} -m raylay.services.pipeline.spark_worker "$@"
        ;;
esac
exec {python} "$@"
"""


@lru_cache(maxsize=1)
def worker_python() -> str:
    """Returns the program that Spark starts as its workers' Python: this one, with PySpark as it is
    installed, and with the source loaded before the workers are forked (spark_worker.py).

    Spark puts a zipped PySpark first in their path, which each daemon compiles anew; with the
    loading of the source that is two seconds of a core at each daemon, several times in each query.
    """
    import pyspark

    home = Path(pyspark.__file__).parent
    if os.environ.get("SPARK_HOME", str(home)) != str(home):
        return sys.executable  # another Spark's, which comes with a PySpark of its own
    directory = Path(tempfile.mkdtemp(prefix="raylay-spark-"))
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    path = directory / "python"
    path.write_text(
        _WORKER_PYTHON.format(home=shlex.quote(str(home)), python=shlex.quote(sys.executable))
    )
    path.chmod(0o700)
    # Where nothing can be executed in the temporary directory, it goes without.
    return str(path) if os.access(path, os.X_OK) else sys.executable


def is_remote(spark: SparkSession) -> bool:
    """Returns whether a session is one of Spark Connect, whose Spark runs in a server."""
    return type(spark).__module__.startswith("pyspark.sql.connect")


def register(spark: SparkSession) -> SparkSession:
    """Registers the format `raylay` with a session, for reading and writing, batch and stream.

    Returns the session. Calling it again does no harm.

    Raises:
        ConfigurationError: a package is missing; the error says what to install.
    """
    check_spark()
    from raylay.services.pipeline.tables.source import RaylaySource

    if not is_remote(spark) and PYTHON_VARIABLE not in os.environ:
        context = spark.sparkContext
        if (context.master or "").startswith("local"):
            # Spark would start whatever `python3` in PATH is. On a cluster its administrator
            # decides, and for a session of Spark Connect that of the server.
            context.pythonExec = worker_python()
    spark.conf.set(PUSHDOWN_SETTING, "true")
    spark.dataSource.register(RaylaySource)
    return spark
