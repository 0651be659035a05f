"""Entry point: registers the commands, maps exceptions to messages and exit codes.

Command modules import torch and plotting inside the commands only, so that help and completion respond at once.
"""

from __future__ import annotations

import contextlib
import errno
import signal
import sys
import warnings
from collections.abc import Iterable
from io import TextIOWrapper
from typing import Any, NoReturn, TextIO

import click

from fedrecall.cli.calibrate import calibrate
from fedrecall.cli.compare import compare
from fedrecall.cli.data import data
from fedrecall.cli.demo import demo
from fedrecall.cli.diagnose import diagnose
from fedrecall.cli.flower import flower
from fedrecall.cli.options import print_escaped
from fedrecall.cli.partition import partition
from fedrecall.cli.recipes import recipes
from fedrecall.cli.replay import replay
from fedrecall.cli.report import report
from fedrecall.cli.reproduce import reproduce
from fedrecall.cli.resume import resume
from fedrecall.cli.run import run
from fedrecall.cli.sweep import sweep
from fedrecall.display import printable
from fedrecall.errors import ClientError, DivergedError, InputError, Interrupted, Note, nearest
from fedrecall.user_code import has_their_lines, their_traceback
from fedrecall.version import __version__

LONGEST = 2000  # characters of an error message


class Commands(click.Group):
    """Group that reports a broken pipe in user code, which click would take for a closed stdout."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except BrokenPipeError as error:
            if has_their_lines(error):
                fail_with_traceback(error)
            raise


@click.group(cls=Commands, epilog="Start with: fedrecall demo")
@click.version_option(__version__, message="%(prog)s %(version)s")
def fedrecall() -> None:
    """Federated learning on clients whose labels differ, without the forgetting."""


for command in (
    demo,
    run,
    resume,
    sweep,
    reproduce,
    compare,
    report,
    diagnose,
    calibrate,
    replay,
    partition,
    recipes,
    data,
    flower,
):
    fedrecall.add_command(command)


def fail(message: str, notes: Iterable[str] = ()) -> NoReturn:
    """Print the message on one line and the notes below it, with control characters escaped; exit with code 2."""
    shown = printable(" ".join(message.split()))
    if len(shown) > LONGEST:
        shown = f"{shown[: LONGEST // 2]} .. {shown[-LONGEST // 2 :]}"
    print_escaped(f"fedrecall: error: {shown}", err=True)
    for note in notes:
        print_escaped(note, err=True)
    raise SystemExit(2)


def usage_sentence(error: click.UsageError) -> str:
    """Return click's message, with the nearest valid name for an unknown option or command."""
    command = error.ctx.command if error.ctx else fedrecall
    if isinstance(error, click.NoSuchOption):
        known = [word for parameter in command.params for word in parameter.opts if word.startswith("-")]
        return f"there is no option {error.option_name!r}; {nearest(error.option_name, known)}"
    words = error.format_message()
    if isinstance(command, click.Group) and words.startswith("No such command"):
        wrong = words.split("'")[1]
        return f"there is no command {wrong!r}; {nearest(wrong, command.commands)}"
    where = error.ctx.command_path if error.ctx else "fedrecall"
    return f"{words} See: {where} --help"


class NoteLines:
    """Prints the notes of a command as lines, equal ones once and with their number at the end."""

    def __init__(self) -> None:
        self._times: dict[str, int] = {}

    def show(
        self,
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        file: TextIO | None = None,
        line: str | None = None,
    ) -> None:
        """Print a `Note` as one line, and other warnings in Python's format."""
        if not issubclass(category, Note):
            print_escaped(warnings.formatwarning(message, category, filename, lineno, line).rstrip("\n"), err=True)
            return
        text = str(message)
        self._times[text] = self._times.get(text, 0) + 1
        if self._times[text] == 1:
            print_escaped(f"note: {text}", err=True)

    def show_counts(self) -> None:
        """Print how often each repeated note came."""
        for text, times in self._times.items():
            if times > 1:
                print_escaped(f"note: {times} times: {text}", err=True)


def main() -> None:
    """Run the command line; exit with the code of the error, if any."""
    with contextlib.suppress(ValueError):  # only the main thread may set a handler
        signal.signal(signal.SIGTERM, signal.default_int_handler)  # like Ctrl-C: write a checkpoint, then stop
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # for characters that a terminal cannot encode
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("always", Note)
            notes = NoteLines()
            warnings.showwarning = notes.show
            try:
                fedrecall.main(prog_name="fedrecall", standalone_mode=False)
            finally:
                notes.show_counts()
    except InputError as error:
        fail(str(error), notes=getattr(error, "__notes__", ()))
    except DivergedError as error:
        print_escaped(f"fedrecall: diverged: {error}", err=True)
        raise SystemExit(3) from None
    except ClientError as error:
        print_escaped("\n".join([f"fedrecall: {error}", *getattr(error, "__notes__", ())]), err=True)
        raise SystemExit(1) from None
    except click.UsageError as error:
        if isinstance(error, click.exceptions.NoArgsIsHelpError):
            error.show()
            raise SystemExit(2) from None
        fail(usage_sentence(error))
    except SystemExit as stop:
        if has_their_lines(stop):  # user code that would end this process silently
            fail_with_traceback(stop)
        raise
    except (KeyboardInterrupt, click.Abort) as stop:
        reason = stop.__cause__ if isinstance(stop, click.Abort) else stop  # click raises Abort in its place
        if isinstance(reason, EOFError):
            fail_with_traceback(reason)
        print_escaped(f"fedrecall: {reason if isinstance(reason, Interrupted) else 'stopped'}", err=True)
        raise SystemExit(130) from None
    except Exception as error:
        fail_by_system(error)
        fail_with_traceback(error)


def fail_with_traceback(error: BaseException) -> NoReturn:
    """Print the user's part of the traceback and exit with code 1."""
    print_escaped(their_traceback(error).rstrip("\n"), err=True)
    raise SystemExit(1) from None


def fail_by_system(error: Exception) -> None:
    """Fail with a message on a full disk, and on OS or memory errors outside user code; else return."""
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        fail(f"the disk is full: {error}")  # the user can fix this wherever it was raised
    if has_their_lines(error):
        return
    if isinstance(error, OSError):
        about = f"{error.filename!r} cannot be used" if error.filename else "the system refused a file or a folder"
        fail(f"{about}: {error.strerror or error}")
    if isinstance(error, MemoryError) or "can't allocate memory" in str(error):
        fail(f"there is not enough memory: {error}")


if __name__ == "__main__":
    if not sys.flags.safe_path:  # `python -m` puts the working folder first, where it would shadow libraries
        del sys.path[0]
    main()
