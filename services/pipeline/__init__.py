"""The data pipeline on Spark: journals as tables and streams, tables published to a fabric.

    from raylay.services.pipeline import register, session

    spark = session()                                  # or: register(an existing session)
    flights = spark.read.format("raylay").load("data/flights")
    flights.groupBy("instance", "topic").count().show()

Nothing here is imported by a broker. PySpark, pyarrow and numpy come with the extra `spark`.
"""

from __future__ import annotations

from raylay.services.pipeline.session import check_java, register, session

__all__ = ["check_java", "register", "session"]
