"""Connections to the hub: how ranks find the way to it, what they send, and how the end of one is noticed."""

import json
import socket
import threading
from collections.abc import Callable, Iterator

import pytest
from waiting import PATIENCE

from odb_stream.ranks.liveness import TAKEN, Liveness, dial, own_addresses
from odb_stream.ranks.peer_events import PeerEvent


def joined(hub: Liveness, other: Liveness, *invitations: str) -> list[bool]:
    """Whether each call to a hub that listens meanwhile succeeded; the last one does."""
    answering = threading.Thread(target=listen_until, args=(hub, lambda _: bool(hub._peers)))
    answering.start()
    connected = [other.connect(invitation) for invitation in invitations]
    answering.join()
    return connected


@pytest.fixture
def pair() -> Iterator[tuple[Liveness, Liveness]]:
    """The hub, and rank 1 connected to it."""
    hub, other = Liveness(0), Liveness(1)
    assert joined(hub, other, hub.invite(2)) == [True]
    yield hub, other
    for liveness in (hub, other):
        liveness.close_sockets()


@pytest.fixture
def called() -> Iterator[tuple[Liveness, socket.socket]]:
    """The hub, and a caller that has said nothing yet."""
    hub = Liveness(0)
    port = json.loads(hub.invite(2))[0]
    with socket.create_connection(("127.0.0.1", port)) as caller:
        yield hub, caller
    hub.close()


def listen_until(liveness: Liveness, done: Callable[[list[PeerEvent]], bool] = bool) -> list[PeerEvent]:
    heard: list[PeerEvent] = []
    for _ in range(600):
        heard += liveness.listen(0.1)
        if done(heard):
            break
    return heard


@pytest.mark.parametrize("ends", [0, 1])
def test_the_end_of_a_connection_is_a_death(pair: tuple[Liveness, Liveness], ends: int) -> None:
    pair[ends].close()
    assert listen_until(pair[1 - ends]) == [PeerEvent("died", (ends,))]


@pytest.mark.parametrize("ends", [0, 1])
def test_but_not_of_a_rank_that_has_said_that_it_leaves(pair: tuple[Liveness, Liveness], ends: int) -> None:
    event = PeerEvent("left", (ends,))
    pair[ends].send(PeerEvent("died", (7,)))
    pair[ends].send(event)
    pair[ends].close()
    other = pair[1 - ends]
    assert listen_until(other, lambda _: not other._peers) == [PeerEvent("died", (7,)), event]


def test_waking_ends_a_wait(pair: tuple[Liveness, Liveness]) -> None:
    pair[0].wake()
    assert pair[0].listen(PATIENCE) == []


def test_strangers_are_turned_away() -> None:
    hub, stranger = Liveness(0), Liveness(1)
    invitation = hub.invite(2)
    wrong = invitation.replace(hub._word.hex(), "00" * 16)
    assert joined(hub, stranger, wrong, invitation) == [False, True]
    assert list(hub._peers.values()) == [1]
    stranger.close()
    hub.close()


def test_a_hello_may_come_in_pieces(called: tuple[Liveness, socket.socket]) -> None:
    hub, caller = called
    hello = hub._word + bytes([0, 0, 0, 1])
    for length in range(1, len(hello) + 1):
        caller.sendall(hello[length - 1 : length])
        listen_until(hub, lambda _, said=hello[:length]: said in hub._callers.values())
    assert caller.recv(16) == hub._answer
    caller.sendall(TAKEN)
    listen_until(hub, lambda _: bool(hub._peers))
    caller.close()
    assert listen_until(hub) == [PeerEvent("died", (1,))]


def test_a_caller_that_hangs_up_before_it_keeps_the_connection_is_no_death(
    called: tuple[Liveness, socket.socket],
) -> None:
    """Fails when the hub takes one that it has answered for one that keeps the connection."""
    hub, caller = called
    caller.sendall(hub._word + bytes(4))
    listen_until(hub, lambda _: any(hub._callers.values()))
    caller.close()
    assert listen_until(hub, lambda _: not hub._callers) == []
    assert hub._peers == {}


def test_of_several_calls_one_is_kept() -> None:
    """The hub accepts late and finds them all; then it hears one rank, and no death.

    Fails when a caller says on each that it keeps it, or hangs up on the one that it keeps.
    """
    hub, other = Liveness(0), Liveness(1)
    port, _, *words = json.loads(hub.invite(9))
    connected: list[bool] = []
    calling = threading.Thread(
        target=lambda: connected.append(other.connect(json.dumps([port, ["127.0.0.1"] * 3, *words])))
    )
    calling.start()
    calling.join(0.3)  # if some calls are not there yet, the hub only finds fewer
    heard = listen_until(hub, lambda _: bool(hub._peers) and not hub._callers)
    calling.join()
    other.send(PeerEvent("left", (7,)))
    assert heard + listen_until(hub) == [PeerEvent("left", (7,))]
    assert (connected, list(hub._peers.values())) == ([True], [1])
    other.close()
    hub.close()


def converse(listener: socket.socket, answers: bytes | None) -> None:
    """Answer one caller: hang up for None, say nothing for b"", and stay until the caller is gone."""
    caller, _ = listener.accept()
    with caller:
        if answers is not None:
            if caller.recv(5) == b"hello":
                caller.sendall(answers)
            caller.recv(1)


@pytest.mark.parametrize("others", [[None, b"wrong!", b""], [b"an", None], []])
def test_the_first_address_that_answers_right_is_kept(others: list[bytes | None]) -> None:
    """Beside it, one hangs up, one says something else, one is silent, and one cannot be reached."""
    answers = [*others, b"answer"]
    names = [f"127.0.3.{number}" for number in range(1, len(answers) + 1)]
    listeners = [socket.create_server((names[0], 0))]
    port = listeners[0].getsockname()[1]
    listeners += [socket.create_server((name, port)) for name in names[1:]]
    threads = [threading.Thread(target=converse, args=pair) for pair in zip(listeners, answers, strict=True)]
    for thread in threads:
        thread.start()
    peer = dial(["127.0.3.99", *names], port, b"hello", b"answer")
    assert peer is not None
    assert peer.getpeername() == (names[-1], port)
    peer.close()
    for thread, listener in zip(threads, listeners, strict=True):
        thread.join(PATIENCE)
        listener.close()


def test_nobody_answers(caplog: pytest.LogCaptureFixture) -> None:
    liveness = Liveness(3)
    assert not liveness.connect('[9, ["127.0.0.1"], "00", "11"]')
    assert "rank 3 found no way to connect to rank 0, port 9 of 127.0.0.1" in caplog.text
    liveness.close()


def test_a_listener_that_never_answers_is_given_up() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        assert dial(["127.0.0.1"], port, b"hello", b"answer", answer_seconds=0.2) is None


def test_loopback_addresses_come_last() -> None:
    addresses = own_addresses()
    assert "127.0.0.1" in addresses
    ranks = [address.startswith("127.") or address == "::1" for address in addresses]
    assert ranks == sorted(ranks)
