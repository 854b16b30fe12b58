"""Connections whose end means a death: the kernel closes those of a dead process, but not those of a paused one.

Rank 0 listens, and every other rank holds one connection to it. Ranks also send each other peer events over them, above
all that a rank leaves, so that the end of its connection is not taken for a death. A cut network closes nothing:
noticing that is the heartbeat's part.
"""

import contextlib
import json
import logging
import os
import secrets
import selectors
import socket
import weakref
from collections.abc import Callable, Sequence

from odb_stream.ranks.dialing import dial, own_addresses
from odb_stream.ranks.peer_events import PeerEvent

HUB = 0
INVITATION_KEY = "liveness"
WORD_BYTES = 16
HELLO_BYTES = WORD_BYTES + 4
TAKEN = b"!"
"""Sent by a caller that keeps the connection: it calls several addresses, and dropping the other calls is no death."""
KEEP_ALIVE_SECONDS = 60  # so that a firewall does not forget an idle connection

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


def _close_in_child() -> None:
    for liveness in list(_open):
        liveness.close_sockets()


os.register_at_fork(after_in_child=_close_in_child)
