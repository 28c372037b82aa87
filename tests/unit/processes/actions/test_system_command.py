"""services/processes/actions/system_command.py: commands of actions, and their end."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from raylay.services.actions.variables import expand_command, lookup
from raylay.services.processes.actions.system_command import (
    OUTPUT_BYTES_MAX,
    CommandOutcome,
    SystemCommands,
)

pytestmark = pytest.mark.covers("Actions", "Run a System Command")


def is_alive(pid: int) -> bool:
    """Returns whether a process runs."""
    try:
        return " Z " not in Path(f"/proc/{pid}/stat").read_text("utf-8")
    except OSError:
        return False


def test_a_command_tells_its_code_and_its_output(tmp_path: Path) -> None:
    commands = SystemCommands(tmp_path)
    assert commands.run("pwd; echo no >&2") == CommandOutcome(
        0, f"{tmp_path}\nno\n".encode(), False
    )
    assert commands.run("exit 3").code == 3
    assert commands.run("kill -9 $$").code == -9


@pytest.mark.parametrize(
    "template",
    [
        *("printf %s {{A}}", "printf %s '{{A}}'", 'printf %s "{{A}}"'),
        *('printf %s "$(printf %s "{{A}}")"', "printf %s \"`printf %s '{{A}}'`\""),
        *("it=\\'; printf %s {{A}}", "# it's\nprintf %s {{A}} # '{{A}}"),
    ],
)
def test_a_shell_never_reads_a_variable_as_a_command(tmp_path: Path, template: str) -> None:
    text = "a'b\"; touch hit; $(touch hit) `touch hit` \\\n touch hit #\udcff"
    command, parameters = expand_command(template, lookup({"A": text}, "", 0))
    outcome = SystemCommands(tmp_path).run(command, parameters)
    assert not list(tmp_path.iterdir())
    if "`" not in template:  # in backquotes a shell does not know our quotes: no command either
        assert (outcome.code, outcome.output.startswith(b"a'b")) == (0, True)


def test_what_a_command_leaves_behind_ends_with_it(tmp_path: Path) -> None:
    outcome = SystemCommands(tmp_path).run("sleep 600 & echo $!")
    assert (outcome.code, outcome.is_late) == (0, False)
    left = int(outcome.output)
    while is_alive(left):
        time.sleep(0.01)


def test_a_command_reads_nothing(tmp_path: Path) -> None:
    assert SystemCommands(tmp_path).run("cat").output == b""


def test_a_command_that_hangs_is_killed(tmp_path: Path) -> None:
    outcome = SystemCommands(tmp_path, seconds_max=0.2).run("sleep 600")
    assert outcome == CommandOutcome(-9, b"", True)


def test_what_a_command_leaves_behind_holds_up_nothing(tmp_path: Path) -> None:
    outcome = SystemCommands(tmp_path, seconds_max=60.0).run("sleep 5 & echo done")
    assert (outcome.code, outcome.output, outcome.is_late) == (0, b"done\n", False)


def test_a_command_that_closes_its_output_is_waited_for(tmp_path: Path) -> None:
    outcome = SystemCommands(tmp_path).run("exec >&- 2>&-; sleep 0.1; exit 4")
    assert (outcome.code, outcome.is_late) == (4, False)


def test_only_the_beginning_of_a_long_output_is_kept(tmp_path: Path) -> None:
    outcome = SystemCommands(tmp_path).run("head -c 1000000 /dev/zero")
    assert outcome == CommandOutcome(0, bytes(OUTPUT_BYTES_MAX), False)


def test_the_end_of_the_actions_kills_what_still_runs_with_all_that_it_started(
    tmp_path: Path,
) -> None:
    commands = SystemCommands(tmp_path, seconds_max=600.0)
    found: list[CommandOutcome] = []
    command = "sleep 600 & echo $! > half; mv half begun; wait"
    thread = threading.Thread(target=lambda: found.append(commands.run(command)))
    thread.start()
    while not (tmp_path / "begun").exists():
        time.sleep(0.01)
    commands.close()
    thread.join()
    assert found == [CommandOutcome(-9, b"", False)]
    while is_alive(int((tmp_path / "begun").read_text("ascii"))):
        time.sleep(0.01)
    with pytest.raises(OSError, match="the actions end"):
        commands.run("true")
