"""A program with a session of Spark Connect, whose server is a Spark of its own.

    python connect_child.py JOURNAL ADDRESS DIRECTORY

Prints what it found as JSON in the last line.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from raylay.services.pipeline import register


def main() -> None:
    """The command."""
    journal, address, place = sys.argv[1], sys.argv[2], Path(sys.argv[3])
    builder = SparkSession.builder.remote("local[2]")
    spark = register(builder.config("spark.sql.warehouse.dir", str(place / "w")).getOrCreate())
    read = spark.read.format("raylay").option("columns", "txid").load(journal)
    query = (
        spark.readStream.format("raylay")
        .option("columns", "txid")
        .load(journal)
        .writeStream.format("parquet")
        .option("path", str(place / "followed"))
        .option("checkpointLocation", str(place / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    spark.sql(f"CREATE TABLE journal USING raylay OPTIONS (path '{journal}', columns 'txid')")
    rows = spark.sql("SELECT * FROM VALUES ('x'), ('y') AS rows (body)").coalesce(1)
    rows.write.format("raylay").mode("append").options(servers=address, topic="connect/out").save()
    error = ""
    try:
        spark.read.format("raylay").option("bogus", "1").load(journal).count()
    except PySparkException as raised:
        error = str(raised)
    found = {
        "read": read.count(),
        "followed": spark.read.parquet(str(place / "followed")).count(),
        "table": spark.table("journal").count(),
        "error": error,
    }
    spark.stop()
    print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
