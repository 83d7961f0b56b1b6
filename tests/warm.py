"""Runs commands and blocks of Python in processes forked from one that has imported torch already.

A command of this package takes two seconds to import what it needs, and the pages of docs show more than a hundred of
them. Each still runs in a process of its own, from its arguments to its exit status; only the imports are shared.
"""

import fcntl
import importlib
import io
import multiprocessing
import os
import pty
import re
import select
import shlex
import struct
import subprocess
import sys
import tempfile
import termios
import threading
import time
import traceback
from multiprocessing.connection import Connection
from pathlib import Path

_FORKED = multiprocessing.get_context("forkserver")
_FORKED.set_forkserver_preload(["tests.preloaded"])
SHELL = set("|&;<>$`*?(){}")
"""What only a shell understands; a line with any of it is given to one."""


def run(*arguments: str, cwd: Path | str | None = None, timeout: float = 300) -> subprocess.CompletedProcess[str]:
    """`vitrail ARGUMENTS` in a process of its own: its exit status, and what it wrote to both streams."""
    with tempfile.TemporaryDirectory() as folder:
        streams = Path(folder) / "stdout", Path(folder) / "stderr"
        process = _started(Path(cwd or Path.cwd()), streams, list(arguments))
        process.join(timeout)
        if process.exitcode is None:
            process.kill()
            raise subprocess.TimeoutExpired(arguments, timeout)
        out, err = (stream.read_text(encoding="utf-8", errors="replace") for stream in streams)
        return subprocess.CompletedProcess(arguments, process.exitcode, out, err)


class Terminal:
    """`vitrail ARGUMENTS` on a terminal of its own, a pseudo-terminal; `shown` is what it has shown so far, colours and
    moves of the cursor included."""

    def __init__(self, *arguments: str, cwd: Path | str, columns: int = 100):
        self.shown = ""
        self._master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
        environment = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "NO_COLOR")}
        self.process = _FORKED.Process(
            target=_command, args=(Path(cwd), os.ttyname(slave), list(arguments), {**environment, "TERM": "xterm"})
        )
        self.process.start()
        self._reader = threading.Thread(target=self._read, args=(slave,), daemon=True)
        self._reader.start()

    def _read(self, slave: int) -> None:
        ours: int | None = slave  # kept until the process has it open: a terminal nobody has open is gone
        while True:
            try:
                ready = select.select([self._master], [], [], 0.05)[0]
                self.shown += os.read(self._master, 1 << 16).decode(errors="replace") if ready else ""
            except (OSError, ValueError):  # the process has ended, or we have hung up
                return
            if ours is not None and (self.shown or self.process.exitcode is not None):
                os.close(ours)
                ours = None

    def wait_for(self, pattern: str, timeout: float = 120) -> re.Match[str]:
        """Wait until something is shown that matches."""
        until = time.monotonic() + timeout
        while time.monotonic() < until:
            ended = self.process.exitcode is not None and not self._reader.is_alive()
            if found := re.search(pattern, self.shown):
                return found
            if ended:
                break
            time.sleep(0.01)
        raise AssertionError(f"{pattern!r} was not shown: {self.shown[-2000:]!r}")

    def press(self, keys: bytes) -> None:
        os.write(self._master, keys)

    def hang_up(self) -> None:
        """Close the terminal, as a window is closed or a connection is lost."""
        master, self._master = self._master, -1
        os.close(master)

    def end(self, timeout: float = 120) -> int:
        """Wait for the exit status."""
        self.process.join(timeout)
        if self.process.exitcode is None:
            self.process.kill()
            raise AssertionError(f"it did not end: {self.shown[-2000:]!r}")
        if self._master >= 0:
            self._reader.join(5)
            os.close(self._master)
        return self.process.exitcode


class Page:
    """A folder in which blocks run one after the other. Python blocks share their names, as for a reader who types
    them in; `log` is what was printed so far."""

    def __init__(self, folder: Path):
        self.folder, self.log = folder, folder.parent / f"{folder.name}.log"
        self.log.touch()
        self._python: tuple[multiprocessing.Process, Connection] | None = None

    def command(self, line: str) -> int:
        """Run `vitrail ...`; its exit status."""
        line = line.partition(" #")[0]
        if SHELL & set(line):
            environment = {**os.environ, "PATH": _path()}
            with self.log.open("a") as log:
                command = ["bash", "-c", line]
                return subprocess.run(command, cwd=self.folder, env=environment, stdout=log, stderr=log).returncode
        process = _started(self.folder, (self.log, self.log), shlex.split(line)[1:])
        process.join()
        return process.exitcode or 0

    def python(self, text: str) -> int:
        """Run a block of Python; 0 if nothing was raised."""
        if self._python is None:
            ours, theirs = _FORKED.Pipe()
            process = _FORKED.Process(
                target=_blocks, args=(self.folder, (self.log, self.log), theirs, dict(os.environ))
            )
            process.start()
            theirs.close()
            self._python = process, ours
        process, pipe = self._python
        pipe.send(text)
        try:
            return pipe.recv()
        except EOFError:
            process.join()
            return process.exitcode or 1

    def close(self) -> None:
        if self._python is not None:
            process, pipe = self._python
            pipe.close()
            process.join(60)


def _started(folder: Path, streams: tuple[Path, Path], arguments: list[str]) -> multiprocessing.Process:
    process = _FORKED.Process(target=_command, args=(folder, streams, arguments, dict(os.environ)))
    process.start()
    return process  # pyright: ignore[reportReturnType]


def _path() -> str:
    """Where `vitrail` is found, whoever runs the tests."""
    return f"{Path(sys.executable).parent}:{os.environ['PATH']}"


def _settle(folder: Path, streams: tuple[Path, Path] | str, environment: dict[str, str]) -> None:
    """In the process's folder, with its environment, and its streams in files, or all on the terminal of that name."""
    os.environ.clear()
    os.environ.update(environment)
    if constants := sys.modules.get("huggingface_hub.constants"):
        importlib.reload(constants)  # it reads the environment when it is imported
    os.chdir(folder)
    os.environ["PATH"] = _path()
    if isinstance(streams, str):
        os.setsid()
        terminal = os.open(streams, os.O_RDWR)  # the first that is opened controls the session
        for number in (0, 1, 2):
            os.dup2(terminal, number)
        streams = (Path(streams), Path(streams))
    for number, path in enumerate(streams, start=1):
        os.dup2(os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT), number)
    sys.stdin = io.StringIO()
    sys.stdout, sys.stderr = (os.fdopen(number, "w", closefd=False) for number in (1, 2))


def _command(folder: Path, streams: tuple[Path, Path] | str, arguments: list[str], environment: dict[str, str]) -> None:
    from vitrail.cli import main

    _settle(folder, streams, environment)
    main(arguments)


def _blocks(folder: Path, streams: tuple[Path, Path], pipe: Connection, environment: dict[str, str]) -> None:
    _settle(folder, streams, environment)
    names: dict[str, object] = {"__name__": "__main__"}
    while True:
        try:
            text = pipe.recv()
        except EOFError:
            return
        try:
            exec(compile(text, "<page>", "exec"), names)
            pipe.send(0)
        except BaseException:
            traceback.print_exc()
            sys.stderr.flush()
            pipe.send(1)
