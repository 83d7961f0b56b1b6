"""Runs `vitrail` commands where every address that is looked up or connected to is recorded, natively or by Python.

    unshare --user --map-root-user --net -- python -m tests.recorded_network FILE < commands, one JSON list a line

It needs a network namespace of its own (Linux, `unshare` of util-linux). Its only interface is the loopback, and a
route sends everything there, so a raw socket sees each packet that any library or child process sends. What goes to
another host than this one, and every question to a name server, is written to FILE beside its command. Not seen is a
connection to an IPv6 address that is given in numbers; the look-up of a name is, whatever its answer would be.
"""

import contextlib
import ctypes
import fcntl
import ipaddress
import json
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
import traceback
import urllib.request
from pathlib import Path

_SIOCSIFFLAGS, _SIOCADDRT, _UP_AND_RUNNING, _ROUTE_UP = 0x8914, 0x890B, 0x41, 0x1
_ALL_PROTOCOLS, _IPV4, _NAME_SERVER = 0x0003, 0x0800, 53


def route_everything_to_loopback() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        fcntl.ioctl(control, _SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", _UP_AND_RUNNING))
        anywhere = struct.pack("HH4s8x", socket.AF_INET, 0, b"\0" * 4)
        device = ctypes.create_string_buffer(b"lo")
        # struct rtentry: destination, gateway, mask, flags, metric, and the device's name.
        place = ctypes.addressof(device)
        route = struct.pack("@L16s16s16sHhLPhPLLH", 0, *[anywhere] * 3, _ROUTE_UP, 0, 0, 0, 0, place, 0, 0, 0)
        fcntl.ioctl(control, _SIOCADDRT, route)


def destination(packet: bytes, protocol: int) -> str | None:
    """Returns where a packet goes, if that is another host or a name server; a question to the latter as its name."""
    if protocol != _IPV4:
        return None
    start, kind, address = (packet[0] & 15) * 4, packet[9], ipaddress.ip_address(packet[16:20])
    if kind not in (socket.IPPROTO_TCP, socket.IPPROTO_UDP):
        return None  # what the system itself says, such as that a host cannot be reached
    (port,) = struct.unpack_from("!H", packet, start + 2)
    if port == _NAME_SERVER and kind == socket.IPPROTO_UDP:
        return f"look-up of {name_asked(packet[start + 8 + 12 :])}"
    return None if address.is_loopback else f"{address} port {port}"


def name_asked(question: bytes) -> str:
    parts = []
    while question and question[0]:
        parts.append(question[1 : 1 + question[0]].decode("ascii", "replace"))
        question = question[1 + question[0] :]
    return ".".join(parts)


def run_command(command: list[str]) -> str | None:
    """Runs one command in this process and returns what was wrong with it. A server is a process, asked and ended."""
    if command[0] == "serve":
        return run_server(command)
    if command[0] == "python":
        return subprocess.run([sys.executable, "-c", command[1]], capture_output=True, text=True).stderr or None
    from vitrail.cli import main

    try:
        with contextlib.redirect_stdout(open(os.devnull, "w")):  # noqa: PTH123
            main(command)
    except SystemExit as ended:
        return None if not ended.code else f"ended with {ended.code}"
    except Exception:
        return traceback.format_exc()
    return None


def run_server(command: list[str]) -> str | None:
    arguments = [sys.executable, "-m", "vitrail", *command, "--port", "0", "--json"]
    server = subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    text = ""
    while not text.rstrip().endswith("}") and (line := server.stdout.readline()):
        text += line
    if not text:
        return "did not start"
    with contextlib.suppress(OSError):
        urllib.request.urlopen(json.loads(text)["url"] + "/model", timeout=60).read()
    server.send_signal(signal.SIGTERM)
    return None if server.wait(60) == 0 else f"ended with {server.returncode}"


def main() -> None:
    route_everything_to_loopback()
    network = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(_ALL_PROTOCOLS))
    current, found = ["the start"], []

    def listen() -> None:
        while True:
            packet, (_, protocol, *_) = network.recvfrom(65_535)
            if (said := destination(packet, protocol)) is not None:
                found.append((current[0], said))

    threading.Thread(target=listen, daemon=True).start()
    failures = []
    for line in sys.stdin:
        command = json.loads(line)
        current[0] = " ".join(command)
        if (failure := run_command(command)) is not None:
            failures.append((current[0], failure))
    time.sleep(1)  # for what is sent by other threads and processes
    Path(sys.argv[1]).write_text(json.dumps({"found": found, "failures": failures}))


if __name__ == "__main__":
    main()
