"""The address at which the server listens. Nothing large is imported here: it is checked before models are loaded."""

import ipaddress
import socket

from vitrail.errors import UserError


def open_listener(host: str, port: int, *, open_to_all: bool) -> socket.socket:
    """Returns a listening socket, or raises a UserError that names the flag to change.

    Beyond this machine it listens only if `open_to_all`: if keys are asked for, or --insecure is given.
    """
    if not 0 <= port <= 65_535:
        raise UserError(f"--port {port}: must be from 0 to 65535")
    try:
        family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[
            0
        ]
    except (OSError, OverflowError) as error:
        raise UserError(f"--host {host} --port {port}: there is no such address ({error})") from error
    if not open_to_all and not ipaddress.ip_address(str(address[0]).partition("%")[0]).is_loopback:
        raise UserError(
            f"--host {host}: everyone who reaches this machine could use the server; "
            "ask for a key with --api-key-file FILE, or give --insecure"
        )
    # With the protocol named, asyncio knows that this is TCP, and does not let the end of every answer wait 40 ms until
    # the client has acknowledged its beginning.
    listener = socket.socket(family, kind, socket.IPPROTO_TCP)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(512)
    except (OSError, OverflowError) as error:
        listener.close()
        reason = getattr(error, "strerror", None) or error
        raise UserError(f"--host {host} --port {port}: cannot be bound: {reason}; choose another --port") from error
    return listener
