"""Printing of the rows that `raylay journal`, `dump` and `find` read from files."""

from __future__ import annotations

from typing import Any

from raylay.services.commands.shared.printing import echo, echo_json

BODY_SHOWN_CHARACTERS = 120
Row = dict[str, Any]


def print_row(row: Row, as_json: bool, line: str) -> None:
    """Prints a row as JSON, or as the line that stands for it."""
    if as_json:
        echo_json(row, ascii_only=False)
    else:
        echo(line)


def record_line(row: Row) -> str:
    """Returns the line of a record or a note of a journal."""
    if "note" in row:
        return f"{row['txid']:>12}  {row['receive_time']}  note {row['note']}, {row['bytes']} bytes"
    command = "" if row["command"] == "publish" else f"  {row['command']}"
    return (
        f"{row['txid']:>12}  {row['receive_time']}  {row['bookmark']}  {row['topic']}"
        f"{command}  {shown_body(row)}".rstrip()
    )


def shown_body(row: Row) -> str:
    """Returns the beginning of a row's body."""
    body = str(row.get("body", row.get("body_base64", "")))
    if len(body) > BODY_SHOWN_CHARACTERS:
        body = f"{body[:BODY_SHOWN_CHARACTERS]}… ({len(body)})"
    return body


def segment_line(row: Row) -> str:
    """Returns the line of a segment."""
    where = " archived" if row["archived"] else ""
    return (
        f"{row['segment']}  {row['state']}{where}  {row['first_txid']} to {row['last_txid']}  "
        f"{row['records']} records  {row['bytes_on_disk']} bytes  "
        f"{row['first_time']} to {row['last_time']}"
    )
