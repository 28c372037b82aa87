"""The rules of Prometheus' linter, which `promtool check metrics` applies to a scrape.

They are those of github.com/prometheus/client_golang, prometheus/testutil/promlint, written anew:
promtool is in Debian's package `prometheus`, and not on every machine of the tests.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

BASE_UNITS = frozenset(
    ("amperes", "bytes", "celsius", "grams", "joules", "kelvin", "meters", "metres", "seconds")
) | {"volts"}
OTHER_UNITS = frozenset(
    ("minutes", "hours", "days", "weeks", "kelvins", "fahrenheit", "rankine", "inches", "yards")
) | {"miles", "bits", "calories", "pounds", "ounces"}
PREFIXES = (
    *("pico", "nano", "micro", "milli", "centi", "deci", "deca", "hecto"),
    *("kilo", "kibi", "mega", "mibi", "giga", "gibi", "tera", "tebi", "peta", "pebi"),
)
ABBREVIATIONS = frozenset(
    ("s", "ms", "us", "ns", "sec", "b", "kb", "mb", "gb", "tb", "pb", "m", "h", "d")
)
TYPES = ("counter", "gauge", "histogram", "summary", "untyped")
_CAMEL = re.compile(r"[a-z][A-Z]")


def problems(text: str) -> list[str]:
    """Returns what the linter says of a scrape in the text format."""
    from prometheus_client.parser import text_string_to_metric_families

    helped = set(re.findall(r"^# HELP (\S+) \S", text, re.MULTILINE))
    found = []
    for family in text_string_to_metric_families(text):
        # The parser takes the ending off a counter's name.
        name = family.name + "_total" if family.type == "counter" else family.name
        if family.type == "counter" and f"# TYPE {name} " not in text:
            name = family.name
        labels = {label for sample in family.samples for label in sample.labels}
        if name not in helped:
            found.append(f"{name}: no help text")
        found += [f"{name}: {problem}" for problem in _of_name(name, family.type)]
        found += [f"{name}: {problem}" for problem in _of_labels(labels, family.type)]
    return found


def _of_name(name: str, kind: str) -> Iterator[str]:
    words = name.split("_")
    for word in words:
        bare = next((word[len(p) :] for p in PREFIXES if word.startswith(p)), word)
        if word in OTHER_UNITS or (bare != word and bare in BASE_UNITS | OTHER_UNITS):
            yield f"its unit {word} is no base unit"
        if word in ABBREVIATIONS:
            yield f"abbreviates a unit: {word}"
        if word in TYPES:
            yield f"has a type in its name: {word}"
    if (kind == "counter") != name.endswith("_total"):
        yield "counters end with _total, and nothing else does"
    if kind != "histogram" and name.endswith("_bucket"):
        yield "only histograms have names that end with _bucket"
    if kind not in ("histogram", "summary") and name.endswith(("_count", "_sum")):
        yield "only histograms and summaries have names that end with _count or _sum"
    if ":" in name:
        yield "a colon is reserved for recording rules"
    if _CAMEL.search(name):
        yield "is not in snake_case"


def _of_labels(labels: set[str], kind: str) -> Iterator[str]:
    for label in labels:
        if _CAMEL.search(label):
            yield f"label {label} is not in snake_case"
        if (label == "le" and kind != "histogram") or (label == "quantile" and kind != "summary"):
            yield f"label {label} is reserved"
