"""Functions of a group of messages. Only views and aggregated subscriptions have groups, so a
filter that names one is refused with that reason."""

from __future__ import annotations

from raylay.services.expressions.functions.registry import Function, FunctionGroup, signature
from raylay.services.expressions.values import Value

AGGREGATES = FunctionGroup()


def _of_a_group(*_: Value) -> Value:
    raise NotImplementedError


for _name, _takes in {
    "SUM": "value",
    "AVG": "value",
    "COUNT": "value",
    "MIN": "value",
    "MAX": "value",
    "ANY": "value",
    "COUNT_DISTINCT": "value",
    "GROUP_CONCAT": "value [text",
    "STDDEV_POP": "value",
    "STDDEV_SAMP": "value",
    "UNIQUE": "value",
}.items():
    _kinds, _least, _repeats = signature(_takes)
    AGGREGATES[_name] = Function(_name, _of_a_group, _kinds, _least, _repeats, is_aggregate=True)
