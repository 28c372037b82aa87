"""The entry point of the `raylay` program: imports the command line where Ctrl-C does no harm, and
makes SIGTERM do what Ctrl-C does."""

from __future__ import annotations

import signal


def main() -> None:
    """Runs the command. While it is imported, and when it has ended, Ctrl-C ends the process
    without a word: nothing has begun, or all is said."""
    ignored = signal.getsignal(signal.SIGINT) is signal.SIG_IGN  # as behind nohup
    if not ignored:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from raylay.services import cli

    if not ignored:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    # `timeout`, service managers and `kill` send SIGTERM. A command stops, cleans up and reports
    # after it as it does after Ctrl-C.
    terminable = signal.getsignal(signal.SIGTERM) is not signal.SIG_IGN
    if terminable:
        signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        cli.main()
    finally:
        if not ignored:
            signal.signal(signal.SIGINT, signal.SIG_DFL)
        if terminable:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)


if __name__ == "__main__":
    main()
