"""Finds the way to a listener on another machine: the addresses to announce, and a call to all of them at once."""

import contextlib
import fcntl
import ipaddress
import selectors
import socket
import struct
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

ASK_ADDRESS = 0x8915  # SIOCGIFADDR of Linux: the address of an interface
CONNECT_SECONDS = 10.0
ANSWER_SECONDS = 60.0
"""How long to wait for the answer once a call is connected: the listener may be busy, or hang in a name server."""


def own_addresses() -> list[str]:
    """The addresses of all interfaces, loopback last; if none is known, those that the host's name resolves to."""
    found = dict.fromkeys([*_version_4(), *_version_6()]) or dict.fromkeys(_of_the_name())
    return sorted(found, key=lambda address: ipaddress.ip_address(address).is_loopback)


def _version_4() -> Iterator[str]:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, interface in socket.if_nameindex():
            try:
                answer = fcntl.ioctl(probe, ASK_ADDRESS, struct.pack("256s", interface.encode()[:15]))
            except OSError:  # the interface has no address
                continue
            yield socket.inet_ntoa(answer[20:24])


def _version_6() -> Iterator[str]:
    listing = Path("/proc/net/if_inet6")
    if listing.exists():
        for line in listing.read_text().splitlines():
            address = ipaddress.IPv6Address(bytes.fromhex(line.split()[0]))
            if not address.is_link_local:  # needs a scope, which differs from host to host
                yield str(address)


def _of_the_name() -> list[str]:
    try:
        return [str(entry[4][0]) for entry in socket.getaddrinfo(socket.gethostname(), None)]
    except socket.gaierror:
        return []


def dial(
    addresses: Sequence[str],
    port: int,
    hello: bytes,
    answer: bytes,
    *,
    connect_seconds: float = CONNECT_SECONDS,
    answer_seconds: float = ANSWER_SECONDS,
) -> socket.socket | None:
    """A non-blocking connection on which ``answer`` was received for ``hello``; None if no address gives one.

    Another machine may have the same private address, and anything may listen there. So a call that gets another
    answer or none is closed, and so is every call but the first that gets the right one.
    """
    began = time.monotonic()
    with contextlib.ExitStack() as calls, selectors.PollSelector() as poll:
        for address in addresses:
            family = socket.AF_INET6 if ":" in address else socket.AF_INET
            with contextlib.suppress(OSError):  # this machine may have no addresses of that family
                call = calls.enter_context(socket.socket(family, socket.SOCK_STREAM))
                call.setblocking(False)
                call.connect_ex((address, port))  # whether it succeeded shows when the hello is sent
                poll.register(call, selectors.EVENT_WRITE, call)
        heard: dict[socket.socket, bytes] = {}
        while poll.get_map():
            left = began + (answer_seconds if heard else connect_seconds) - time.monotonic()
            ready = poll.select(max(0.0, left))
            # Give up only after one look past the deadline: what arrived while this process was held up counts.
            if not ready and left <= 0:
                return None
            for key, _ in ready:
                call = key.data
                try:
                    if call not in heard:
                        call.sendall(hello)  # a few bytes always fit
                        heard[call] = b""
                        poll.modify(call, selectors.EVENT_READ, call)
                        continue
                    more = call.recv(len(answer) - len(heard[call]))
                except OSError:
                    more = b""
                said = heard.pop(call, b"") + more
                if not more or not answer.startswith(said):
                    poll.unregister(call)
                    call.close()
                elif said != answer:
                    heard[call] = said
                else:
                    return socket.socket(fileno=call.detach())
        return None
