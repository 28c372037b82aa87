"""The plan of a query: which records must be read for its filter, all or those that an index finds.

Only required equalities are looked up: `/symbol = 'IBM'`, alone or joined by AND, `IN` with literal
values, and `SOW_KEY() = '…'`. The found records are still judged by the filter.
"""

from __future__ import annotations

from xxhash import xxh3_64_intdigest as checksum64

from raylay.services.expressions import tree
from raylay.services.expressions.expression import Expression, ExpressionUse
from raylay.services.expressions.functions.registry import EvalContext
from raylay.services.expressions.values import Steps, Value
from raylay.services.sow.indexes import SowIndexes
from raylay.services.sow.records import SowRecord

QUERY = ExpressionUse(
    "the filter of a query", frozenset(("message", "client", "instance", "state", "clock"))
)
FOLLOWING = ExpressionUse(
    "the filter of a subscription that follows records",
    frozenset(("message", "client", "instance", "state")),
    deterministic=True,
)

Wanted = dict[Steps, tuple[Value, ...]]


def equalities(node: tree.ExpressionNode) -> tuple[Wanted, tuple[Value, ...] | None]:
    """Returns the equalities that must hold for a filter to be true: values by field, and SOW keys
    (None: any).

    Of two conditions on one field, the one with fewer values is used: both must be true.
    """
    wanted: Wanted = {}
    keys: tuple[Value, ...] | None = None
    waiting = [node]
    while waiting:
        each = waiting.pop()
        if isinstance(each, tree.Logical) and each.operator == "AND":
            waiting += each.operands
            continue
        found = _equality(each)
        if found is None:
            continue
        asked, given = found
        if isinstance(asked, tree.Identifier):
            before = wanted.get(asked.steps)
            if before is None or len(given) < len(before):
                wanted[asked.steps] = given
        elif keys is None or len(given) < len(keys):
            keys = given
    return wanted, keys


def _equality(node: tree.ExpressionNode) -> tuple[tree.ExpressionNode, tuple[Value, ...]] | None:
    match node:
        case tree.Comparison(operator="=", left=asked, right=tree.Literal() as given) if _is(asked):
            return asked, (given.value,)
        case tree.Comparison(operator="=", left=tree.Literal() as given, right=asked) if _is(asked):
            return asked, (given.value,)
        case tree.In(operand=asked) if _is(asked):
            options = [option.value for option in node.options if isinstance(option, tree.Literal)]
            if len(options) == len(node.options):
                return asked, tuple(options)
    return None


def around_record(
    record: SowRecord, name: bytes, instance: str, group: str, now_us: int = 0
) -> EvalContext:
    """Returns the context that a filter can read besides the body of a record.

    Args:
        name: logical topic of the record.
        instance, group: name of the instance and of its group.
        now_us: current time; 0: the filter must not read the time.
    """
    return EvalContext(
        topic=name.decode("utf-8", "surrogateescape"),
        size_bytes=len(record.body or b""),
        bookmark=f"{record.publisher}|{record.sequence}|",
        last_updated=record.updated_us / 1e6,
        sow_key=record.key.decode("utf-8", "surrogateescape"),
        sow_key_hash=checksum64(record.key),
        instance=instance,
        group=group,
        now_s=now_us / 1e6 if now_us else None,
    )


def _is(node: tree.ExpressionNode) -> bool:
    return isinstance(node, tree.Identifier) or (
        isinstance(node, tree.Call) and node.function.name == "SOW_KEY"
    )


def keys_to_look_at(
    filter_: Expression | None, keys: frozenset[bytes] | None, indexes: SowIndexes | None
) -> frozenset[bytes] | None:
    """Returns the keys of the records that a query must look at; None: all.

    Args:
        filter_: filter of the query; None: it has none.
        keys: keys that the query names; None: none.
        indexes: indexes of the topic; None: it has none.
    """
    if filter_ is None:
        return keys
    wanted, named = equalities(filter_.tree)
    found = keys
    if named is not None and all(isinstance(each, str) for each in named):
        # Keys are texts: a text equals only the same text, while a number may equal several.
        said = frozenset(
            str(each).encode("utf-8", "surrogateescape") for each in named if each not in (None, "")
        )
        found = said if found is None else found & said
    if wanted and indexes is not None:
        by_index = indexes.candidates(wanted)
        if by_index is not None:
            found = frozenset(by_index) if found is None else found & by_index
    return found
