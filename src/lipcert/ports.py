"""Ports of this machine that a page or a service listens on."""

import errno
import os
import socket

from lipcert.errors import ArgumentError

LOCAL = ("127.0.0.1", "localhost", "::1")
"""Hosts that other machines cannot reach."""


def bind_port(host: str, port: int) -> socket.socket:
    """A socket that is bound to the port, so that no other process can take it. Port 0 is any free one.

    Raises:
        ArgumentError: the port is in use or not allowed, or the host is not an address of this machine.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        bound = socket.socket(family, kind, protocol)
        try:
            if os.name == "posix":
                # On POSIX this allows a port with closing connections, but not one that is listened on.
                bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            bound.bind(address)
        except OSError:
            bound.close()
            raise
        return bound
    except socket.gaierror as error:
        raise ArgumentError(f"host: expected a name or address of this machine, got {host!r}") from error
    except PermissionError as error:
        raise ArgumentError(f"port: {port} is not allowed here; choose one above 1023") from error
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise ArgumentError(
                f"port: {port} is in use on {host}; stop what uses it, or choose another, such as "
                f"--port {port + 1 if port < 65535 else 7860}"
            ) from error
        raise ArgumentError(f"host: cannot serve on {host}, port {port}: {error.strerror}") from error
