"""Runs a command in a child process that may not take more than some memory and time, and says how it ended.

The child is forked, so that a thousand of them import the package once.
"""

import os
import re
import resource
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Sequence
from dataclasses import dataclass

MEMORY = 4 * 2**30
"""Bytes of address space, as `ulimit -v` bounds it."""
SECONDS = 20.0


@dataclass(frozen=True)
class Outcome:
    """How a command ended: `status` as a shell would give it, -9 where it took too long."""

    status: int
    said: str
    seconds: float

    @property
    def complaint(self) -> str | None:
        """Returns what is wrong with it; None where it did its work, or ended in a sentence and exit status 2."""
        if self.status < 0:
            return f"ended by {signal.Signals(-self.status).name} after {self.seconds:.1f} s"
        if "Traceback" in self.said or self.status not in (0, 2):
            return f"exit status {self.status}"
        if self.status == 2 and not re.search(r"^vitrail: .{10,}", self.said, re.MULTILINE):
            return "exit status 2 without a sentence"
        return None


def run_command(arguments: Sequence[str], memory: int = MEMORY, seconds: float = SECONDS) -> Outcome:
    """Runs `vitrail ARGUMENTS`, in a child with these limits."""
    with tempfile.TemporaryFile() as output:
        began = time.monotonic()
        child = os.fork()
        if not child:
            _run_child(arguments, memory, output.fileno())
        status = None
        while status is None and time.monotonic() - began < seconds:
            done, raw = os.waitpid(child, os.WNOHANG)
            status = os.waitstatus_to_exitcode(raw) if done else time.sleep(0.002)
        if status is None:
            os.kill(child, signal.SIGKILL)
            status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        output.seek(0)
        return Outcome(status, output.read().decode("utf-8", "replace"), time.monotonic() - began)


def _run_child(arguments: Sequence[str], memory: int, output: int) -> None:
    status = 1
    try:
        os.dup2(output, 1)
        os.dup2(output, 2)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
        from vitrail.cli import main

        main(list(arguments))
        status = 0
    except SystemExit as error:
        status = error.code if isinstance(error.code, int) else 1
    except BaseException:
        traceback.print_exc()
    finally:
        try:
            sys.stdout.flush()
            sys.stderr.flush()
        finally:
            os._exit(status)
