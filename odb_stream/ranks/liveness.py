"""Connections whose end means a death: the kernel closes those of a dead process, but not those of a paused one.

Rank 0 listens, and every other rank holds one connection to it. Ranks also send each other peer events over them, above
all that a rank leaves, so that the end of its connection is not taken for a death. A cut network closes nothing:
noticing that is the heartbeat's part.
"""

import contextlib
import fcntl
import ipaddress
import json
import logging
import os
import secrets
import selectors
import socket
import struct
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from odb_stream.ranks.peer_events import PeerEvent

HUB = 0
INVITATION_KEY = "liveness"
WORD_BYTES = 16
HELLO_BYTES = WORD_BYTES + 4
TAKEN = b"!"
"""Sent by a caller that keeps the connection: it calls several addresses, and drops the other calls without dying."""
KEEP_ALIVE_SECONDS = 60  # so that a firewall does not forget an idle connection
ASK_ADDRESS = 0x8915  # SIOCGIFADDR of Linux: the address of an interface
CONNECT_SECONDS = 10.0
ANSWER_SECONDS = 60.0
"""How long to wait for the answer once a call is connected: the listener may be busy, or hang in a name server."""

logger = logging.getLogger(__name__)

_open: "weakref.WeakSet[Liveness]" = weakref.WeakSet()


class Liveness:
    """One rank's connections. One thread listens; ``wake`` and ``send`` may be called from any thread."""

    def __init__(self, rank: int) -> None:
        self._rank = rank
        self._word = self._answer = b""
        self._waker, self._wakened = socket.socketpair()
        self._listener: socket.socket | None = None
        self._callers: dict[socket.socket, bytes] = {}
        self._peers: dict[socket.socket, int] = {}
        self._received: dict[socket.socket, bytes] = {}
        self._left: set[int] = set()
        # Not epoll: a forked child would share it with this process.
        self._poll = selectors.PollSelector()
        self._watch(self._wakened, self._drain_waker)
        _open.add(self)

    def invite(self, ranks: int) -> str:
        """On the hub: start to listen; returns the invitation that :meth:`connect` needs on the other ranks."""
        if socket.has_dualstack_ipv6():
            family, dual = socket.AF_INET6, True
        else:
            family, dual = socket.AF_INET, False
        # All ranks call at about the same time, before the hub's thread accepts the first.
        self._listener = socket.create_server(("", 0), family=family, backlog=ranks, dualstack_ipv6=dual)
        self._watch(self._listener, self._accept)
        self._word, self._answer = secrets.token_bytes(WORD_BYTES), secrets.token_bytes(WORD_BYTES)
        words = [self._word.hex(), self._answer.hex()]
        return json.dumps([self._listener.getsockname()[1], own_addresses(), *words])

    def connect(self, invitation: str | bytes) -> bool:
        """On another rank: connect to the hub, which must be listening.

        If the hub cannot be reached, warns and returns False; then only the heartbeat notices a death.
        """
        port, addresses, word, answer = json.loads(invitation)
        hello = bytes.fromhex(word) + self._rank.to_bytes(4, "big")
        peer = dial(addresses, port, hello, bytes.fromhex(answer))
        if peer is not None:
            with contextlib.suppress(OSError):  # if it has closed, this rank learns so when it listens
                peer.send(TAKEN)
            self._adopt(peer, HUB)
            return True
        logger.warning(
            "rank %d found no way to connect to rank %d, port %d of %s: if a rank is killed, the others only notice "
            "after the timeout",
            self._rank,
            HUB,
            port,
            ", ".join(addresses),
        )
        return False

    def listen(self, seconds: float) -> list[PeerEvent]:
        """Wait for up to ``seconds`` and return the events received, deaths included; also returns when woken."""
        return [event for key, _ in self._poll.select(max(0.0, seconds)) for event in key.data(key.fileobj)]

    def wake(self) -> None:
        """Let ``listen`` return now."""
        with contextlib.suppress(OSError):  # full: it is awake; closed: nobody listens
            self._waker.send(b"!")

    def send(self, event: PeerEvent) -> None:
        """Send an event over all connections: rank 0 to everybody, another rank to rank 0. Returns at once."""
        for peer in list(self._peers):
            with contextlib.suppress(OSError):  # the peer is gone, or does not read
                peer.send(event.encode().encode() + b"\n")

    def close(self) -> None:
        """Close every connection. May be called again."""
        self._poll.close()
        self.close_sockets()

    def close_sockets(self) -> None:
        """Close them in this process alone; for a forked child, which would keep them open for its dead parent."""
        ours = [self._waker, self._wakened, *self._callers, *self._peers]
        for one in ours if self._listener is None else [*ours, self._listener]:
            one.close()

    def _watch(self, one: socket.socket, react: Callable[[socket.socket], Sequence[PeerEvent]]) -> None:
        one.setblocking(False)
        self._poll.register(one, selectors.EVENT_READ, react)

    def _drop(self, one: socket.socket) -> None:
        self._poll.unregister(one)
        one.close()

    def _drain_waker(self, wakened: socket.socket) -> Sequence[PeerEvent]:
        wakened.recv(4096)
        return ()

    def _accept(self, listener: socket.socket) -> Sequence[PeerEvent]:
        with contextlib.suppress(OSError):  # the caller hung up before it was accepted
            caller, _ = listener.accept()
            self._callers[caller] = b""
            self._watch(caller, self._introduce)
        return ()

    def _introduce(self, caller: socket.socket) -> Sequence[PeerEvent]:
        """Read until a caller has named itself, was answered and keeps the connection; close it on anything else."""
        said = self._callers.pop(caller)
        try:
            more = caller.recv((HELLO_BYTES if len(said) < HELLO_BYTES else HELLO_BYTES + len(TAKEN)) - len(said))
            said += more
            if len(said) == HELLO_BYTES and said.startswith(self._word):
                caller.send(self._answer)
        except OSError:
            more = b""
        if not more or not self._word.startswith(said[:WORD_BYTES]):
            self._drop(caller)
        elif len(said) <= HELLO_BYTES:
            self._callers[caller] = said
        else:
            self._poll.unregister(caller)
            self._adopt(caller, int.from_bytes(said[WORD_BYTES:HELLO_BYTES], "big"))
        return ()

    def _adopt(self, peer: socket.socket, rank: int) -> None:
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        if hasattr(socket, "TCP_KEEPIDLE"):
            peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, KEEP_ALIVE_SECONDS)
        self._peers[peer], self._received[peer] = rank, b""
        self._watch(peer, self._hear)

    def _hear(self, peer: socket.socket) -> Sequence[PeerEvent]:
        rank = self._peers[peer]
        try:
            more = peer.recv(65536)
        except BlockingIOError:
            return ()
        except (ConnectionResetError, BrokenPipeError):
            more = b""
        except OSError:  # no answer to a keep-alive, no route: the network, not the rank; the heartbeat decides
            self._forget(peer)
            return ()
        if not more:
            self._forget(peer)
            return () if rank in self._left else (PeerEvent("died", (rank,)),)
        *whole, self._received[peer] = (self._received[peer] + more).split(b"\n")
        heard = [PeerEvent.decode(text) for text in whole]
        self._left.update(*(event.ranks for event in heard if event.kind == "left"))
        return heard

    def _forget(self, peer: socket.socket) -> None:
        del self._peers[peer], self._received[peer]
        self._drop(peer)


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
    addresses: Sequence[str], port: int, hello: bytes, answer: bytes, *, answer_seconds: float = ANSWER_SECONDS
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
            left = began + (answer_seconds if heard else CONNECT_SECONDS) - time.monotonic()
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


def _close_in_child() -> None:
    for liveness in list(_open):
        liveness.close_sockets()


os.register_at_fork(after_in_child=_close_in_child)
