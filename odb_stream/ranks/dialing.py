"""Finds the way to a listener that has several addresses: calls at all of them, and keeps the first that answers."""

import contextlib
import selectors
import socket
import time
from collections.abc import Sequence

CONNECT_SECONDS = 10.0
ANSWER_SECONDS = 60.0
"""How long to wait for the answer where a connection stands: the listener may be busy, or hang in a name server."""


def dial(
    addresses: Sequence[str],
    port: int,
    hello: bytes,
    answer: bytes,
    *,
    connect_seconds: float = CONNECT_SECONDS,
    answer_seconds: float = ANSWER_SECONDS,
) -> socket.socket | None:
    """A connection, not blocking, on which ``answer`` came back for ``hello``; None where no address gives one.

    Another machine may have the same private address, and anything may listen there: what answers otherwise, or not at
    all, is hung up on, as are all calls but the first that is answered.
    """
    began = time.monotonic()
    with contextlib.ExitStack() as calls, selectors.PollSelector() as poll:
        for address in addresses:
            family = socket.AF_INET6 if ":" in address else socket.AF_INET
            with contextlib.suppress(OSError):  # this machine may have no addresses of that family
                call = calls.enter_context(socket.socket(family, socket.SOCK_STREAM))
                call.setblocking(False)
                call.connect_ex((address, port))  # how it went is seen when the hello is sent
                poll.register(call, selectors.EVENT_WRITE, call)
        heard: dict[socket.socket, bytes] = {}
        while poll.get_map():
            left = began + (answer_seconds if heard else connect_seconds) - time.monotonic()
            ready = poll.select(max(0.0, left))
            if not ready and left <= 0:  # what came while this process was held up was looked at
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
