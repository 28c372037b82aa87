"""The branch coverage of the pure rooms by seeds and unit tests together: one figure.

`python -m sim.pure_coverage --seeds N [--base B]` prints it. What neither a seed nor a unit test
runs, nothing has shown to be right; `--missing` lists those lines by file.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from support.pure_rooms import ROOT, pure_files

UNIT_TESTS = ("tests/unit", "tests/golden")


def measure(seeds: int, base: int, data: Path) -> dict[str, dict[str, float]]:
    """Runs the seeds and the unit tests, each in a process of its own, under coverage.

    Returns:
        For each pure file, by its path from the root, coverage's summary of it
        (`num_statements`, `num_branches`, `covered_lines`, `covered_branches`, …).

    Raises:
        RuntimeError: a seed or a test failed; the message has the end of its output.
    """
    configuration = data / "coveragerc"
    included = "\n  ".join(str(path) for path in pure_files())
    configuration.write_text(
        "[run]\nbranch = true\nparallel = true\nsigterm = true\n"
        "concurrency = multiprocessing,thread\n"
        f"data_file = {data / 'coverage'}\n"
        f"include =\n  {included}\n"
    )
    coverage = (sys.executable, "-m", "coverage")
    rc = f"--rcfile={configuration}"
    runs = (
        ("sim.run", "--seeds", str(seeds), "--base", str(base)),
        ("pytest", "-q", "-p", "no:cacheprovider", "-m", "not slow", *UNIT_TESTS),
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "tests")}
    for run in runs:
        _call((*coverage, "run", rc, "-m", *run), environment)
    _call((*coverage, "combine", rc), environment)
    report = data / "coverage.json"
    _call((*coverage, "json", rc, "-o", str(report)), environment)
    files = json.loads(report.read_text())["files"]
    return {
        str(Path(name).resolve().relative_to(ROOT)): of["summary"] for name, of in files.items()
    }


def _call(command: tuple[str, ...], environment: dict[str, str]) -> None:
    done = subprocess.run(
        command, env=environment, cwd=ROOT, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise RuntimeError(
            f"{' '.join(command)} failed:\n{done.stdout[-8_000:]}{done.stderr[-4_000:]}"
        )


def percent(files: dict[str, dict[str, float]]) -> float:
    """The share of lines and branches that ran, over all files."""
    ran = sum(each["covered_lines"] + each["covered_branches"] for each in files.values())
    there = sum(each["num_statements"] + each["num_branches"] for each in files.values())
    return 100 * ran / there


def main(arguments: list[str] | None = None) -> int:
    """Runs the command and prints one JSON line."""
    parser = argparse.ArgumentParser(prog="sim.pure_coverage", description=__doc__)
    parser.add_argument("--seeds", type=int, default=200, help="how many seeds to run")
    parser.add_argument("--base", type=int, default=1_000_000, help="the first seed")
    parser.add_argument("--missing", action="store_true", help="list the files below 100 %%")
    options = parser.parse_args(arguments)
    started_s = time.perf_counter()
    with tempfile.TemporaryDirectory() as data:
        files = measure(options.seeds, options.base, Path(data))
    if options.missing:
        for name, each in sorted(files.items(), key=lambda item: item[1]["percent_covered"]):
            if each["percent_covered"] < 100:
                print(f"{each['percent_covered']:6.1f} %  {name}")
    figure = {
        "figure": "pure_coverage",
        "percent": round(percent(files), 2),
        "files": len(files),
        "seeds": options.seeds,
        "seconds": round(time.perf_counter() - started_s, 1),
    }
    print(json.dumps(figure))
    return 0


if __name__ == "__main__":
    sys.exit(main())
