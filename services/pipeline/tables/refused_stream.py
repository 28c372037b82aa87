"""The reader of a stream whose options, or whose schema, are refused."""

from __future__ import annotations

from typing import Any, NoReturn

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, SupportsTriggerAvailableNow

from raylay.services.pipeline.worker_errors import plain_errors


class RefusedStream(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Raises the error of a refused stream at every use.

    PySpark 4.3 ends a stream's reader in a `finally` that also runs where the source raised an
    error instead of returning a reader. So it reports that it has no reader, and the error itself
    is lost.
    """

    def __init__(self, error: Exception) -> None:
        self._error = error

    def _refuse(self) -> NoReturn:
        with plain_errors():
            raise self._error

    def initialOffset(self) -> dict[str, Any]:
        self._refuse()

    def getDefaultReadLimit(self) -> ReadLimit:
        self._refuse()

    def prepareForTriggerAvailableNow(self) -> None:
        self._refuse()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        self._refuse()

    def reportLatestOffset(self) -> dict[str, Any] | None:
        self._refuse()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        self._refuse()

    def read(self, partition: InputPartition) -> Any:
        self._refuse()
