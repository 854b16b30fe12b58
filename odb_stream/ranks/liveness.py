"""Connections that mostly carry their end: the kernel closes a dead rank's, and so tells a death from a pause.

Rank 0 listens, every other rank holds one connection to it. Besides, news is said over them, above all that a rank
leaves, so that its end is not taken for a death. A cut network closes nothing: that is for the heartbeat to notice.
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

from odb_stream.ranks.addresses import own_addresses
from odb_stream.ranks.dialing import dial
from odb_stream.ranks.peer_events import News

HUB = 0
LINE_KEY = "lifeline"
WORD_BYTES = 16
HELLO_BYTES = WORD_BYTES + 4
TAKEN = b"!"
"""Said by a caller that keeps the line: it calls at several addresses, and hanging up on the others is no death."""
KEEP_ALIVE_SECONDS = 60  # so that a firewall does not forget an idle connection

logger = logging.getLogger(__name__)

_open: "weakref.WeakSet[Lifelines]" = weakref.WeakSet()


class Lifelines:
    """One rank's connections. One thread listens; ``wake`` and ``say`` may be called from any."""

    def __init__(self, rank: int) -> None:
        self._rank = rank
        self._word = self._answer = b""
        self._waker, self._wakened = socket.socketpair()
        self._listener: socket.socket | None = None
        self._callers: dict[socket.socket, bytes] = {}
        self._lines: dict[socket.socket, int] = {}
        self._said: dict[socket.socket, bytes] = {}
        self._left: set[int] = set()
        # Not epoll: a forked child would share it with this process.
        self._poll = selectors.PollSelector()
        self._watch(self._wakened, self._calm)
        _open.add(self)

    def invite(self, ranks: int) -> str:
        """On the hub: start to listen; returns where, for :meth:`connect` on the other ranks."""
        if socket.has_dualstack_ipv6():
            family, dual = socket.AF_INET6, True
        else:
            family, dual = socket.AF_INET, False
        self._listener = socket.create_server(("", 0), family=family, backlog=ranks, dualstack_ipv6=dual)
        self._watch(self._listener, self._accept)
        self._word, self._answer = secrets.token_bytes(WORD_BYTES), secrets.token_bytes(WORD_BYTES)
        words = [self._word.hex(), self._answer.hex()]
        return json.dumps([self._listener.getsockname()[1], own_addresses(), *words])

    def connect(self, invitation: str | bytes) -> bool:
        """On another rank: connect to the hub, which must be listening; a warning and False when it cannot be reached.

        Then only the heartbeat is left.
        """
        port, addresses, word, answer = json.loads(invitation)
        hello = bytes.fromhex(word) + self._rank.to_bytes(4, "big")
        line = dial(addresses, port, hello, bytes.fromhex(answer))
        if line is not None:
            with contextlib.suppress(OSError):  # its end is heard when this rank listens
                line.send(TAKEN)
            self._adopt(line, HUB)
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

    def listen(self, seconds: float) -> list[News]:
        """Wait for up to ``seconds`` and return what was said, and who died; an empty list also when woken."""
        return [news for key, _ in self._poll.select(max(0.0, seconds)) for news in key.data(key.fileobj)]

    def wake(self) -> None:
        """Let ``listen`` return now."""
        with contextlib.suppress(OSError):  # full: it is awake; closed: nobody listens
            self._waker.send(b"!")

    def say(self, news: News) -> None:
        """Tell the other ends: rank 0 so tells everybody, another rank rank 0. Returns at once."""
        for line in list(self._lines):
            with contextlib.suppress(OSError):  # the other end is gone, or does not read
                line.send(news.encode().encode() + b"\n")

    def close(self) -> None:
        """Close every connection. May be called again."""
        self._poll.close()
        self.close_sockets()

    def close_sockets(self) -> None:
        """Close them in this process alone; for a forked child, which would keep them open for its dead parent."""
        ours = [self._waker, self._wakened, *self._callers, *self._lines]
        for one in ours if self._listener is None else [*ours, self._listener]:
            one.close()

    def _watch(self, one: socket.socket, react: Callable[[socket.socket], Sequence[News]]) -> None:
        one.setblocking(False)
        self._poll.register(one, selectors.EVENT_READ, react)

    def _drop(self, one: socket.socket) -> None:
        self._poll.unregister(one)
        one.close()

    def _calm(self, wakened: socket.socket) -> Sequence[News]:
        wakened.recv(4096)
        return ()

    def _accept(self, listener: socket.socket) -> Sequence[News]:
        with contextlib.suppress(OSError):  # gone again before we came to it
            caller, _ = listener.accept()
            self._callers[caller] = b""
            self._watch(caller, self._introduce)
        return ()

    def _introduce(self, caller: socket.socket) -> Sequence[News]:
        """Take what a caller says until it has said who it is, was answered, and keeps the line; hang up on others."""
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

    def _adopt(self, line: socket.socket, rank: int) -> None:
        line.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        if hasattr(socket, "TCP_KEEPIDLE"):
            line.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, KEEP_ALIVE_SECONDS)
        self._lines[line], self._said[line] = rank, b""
        self._watch(line, self._hear)

    def _hear(self, line: socket.socket) -> Sequence[News]:
        rank = self._lines[line]
        try:
            more = line.recv(65536)
        except BlockingIOError:
            return ()
        except (ConnectionResetError, BrokenPipeError):
            more = b""
        except OSError:  # no answer to a keep-alive, no route: the network, not the rank; the heartbeat decides
            self._forget(line)
            return ()
        if not more:
            self._forget(line)
            return () if rank in self._left else (News("died", (rank,)),)
        *whole, self._said[line] = (self._said[line] + more).split(b"\n")
        heard = [News.decode(text) for text in whole]
        self._left.update(*(news.ranks for news in heard if news.kind == "left"))
        return heard

    def _forget(self, line: socket.socket) -> None:
        del self._lines[line], self._said[line]
        self._drop(line)


def _close_in_child() -> None:
    for lifelines in list(_open):
        lifelines.close_sockets()


os.register_at_fork(after_in_child=_close_in_child)
