"""The sockets that a service listens on, opened before anything is loaded: a taken port is found at once."""

import errno
import socket
import sys
from typing import Any

from speedyfeed.errors import InputError

BACKLOG = 2048
"""Connections that may wait to be accepted."""


def allow_files(number: int) -> None:
    """Raise the number of files and connections this process may have open to `number`, if that is allowed."""
    if sys.platform == "win32":
        return
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = number if hard == resource.RLIM_INFINITY else min(number, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def open_listeners(host: str, port: int) -> list[socket.socket]:
    """Listen on every address of `host`; port 0 takes a free one, the same for all."""
    if not host.strip():  # to the system that would be all addresses, where nobody chose them
        raise InputError(f"host {host!r}: is empty; give --host 127.0.0.1 for this machine alone, 0.0.0.0 for all")
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError) as error:
        raise InputError(f"host {host!r}: no such address; give --host an address of this machine") from error
    listeners: list[socket.socket] = []
    try:
        for family, _, _, _, address in dict.fromkeys(found):
            port = listeners[0].getsockname()[1] if listeners else port
            listeners.append(_listen(family, (address[0], port, *address[2:])))
    except OSError as error:
        for listener in listeners:
            listener.close()
        raise InputError(_cannot_listen(host, port, error)) from error
    return listeners


def _listen(family: int, address: tuple[Any, ...]) -> socket.socket:
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        if sys.platform != "win32":  # there it would let two programs share the port
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        listener.bind(address)
        listener.listen(BACKLOG)
    except OSError:
        listener.close()
        raise
    return listener


def _cannot_listen(host: str, port: int, error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return f"port {port}: another program listens on it; stop that program, or give another --port"
    if error.errno == errno.EADDRNOTAVAIL:
        return f"host {host!r}: is no address of this machine; give --host one of its own, such as 127.0.0.1"
    if error.errno == errno.EACCES:
        return f"port {port}: this user may not listen on it; give a --port from 1024 on"
    return f"{host}, port {port}: cannot be listened on ({error.strerror}); give another --host or --port"
