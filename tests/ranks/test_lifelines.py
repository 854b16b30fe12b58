"""Lifelines: how ranks find the way to the hub, what they say, and how the end of a line is heard."""

import json
import socket
import threading
from collections.abc import Callable, Iterator

import pytest
from waiting import PATIENCE

from odb_stream.ranks.addresses import own_addresses
from odb_stream.ranks.dialing import dial
from odb_stream.ranks.liveness import TAKEN, Lifelines
from odb_stream.ranks.peer_events import News


@pytest.fixture
def pair() -> Iterator[tuple[Lifelines, Lifelines]]:
    """The hub, and rank 1 connected to it."""
    hub, other = Lifelines(0), Lifelines(1)
    invitation = hub.invite(2)
    answering = threading.Thread(target=listen_until, args=(hub, lambda _: bool(hub._lines)))
    answering.start()
    assert other.connect(invitation)
    answering.join()
    yield hub, other
    for lifelines in (hub, other):
        lifelines.close_sockets()


@pytest.fixture
def called() -> Iterator[tuple[Lifelines, socket.socket]]:
    """The hub, and a caller that has said nothing yet."""
    hub = Lifelines(0)
    port = json.loads(hub.invite(2))[0]
    with socket.create_connection(("127.0.0.1", port)) as caller:
        yield hub, caller
    hub.close()


def listen_until(lifelines: Lifelines, done: Callable[[list[News]], bool]) -> list[News]:
    heard: list[News] = []
    for _ in range(600):
        heard += lifelines.listen(0.1)
        if done(heard):
            break
    return heard


def heard_by(lifelines: Lifelines) -> list[News]:
    return listen_until(lifelines, bool)


@pytest.mark.parametrize("ends", [0, 1])
def test_the_end_of_a_line_is_a_death(pair: tuple[Lifelines, Lifelines], ends: int) -> None:
    pair[ends].close()
    assert heard_by(pair[1 - ends]) == [News("died", (ends,))]


@pytest.mark.parametrize("ends", [0, 1])
def test_but_not_of_a_rank_that_has_said_that_it_leaves(pair: tuple[Lifelines, Lifelines], ends: int) -> None:
    news = News("left", (ends,))
    pair[ends].say(News("died", (7,)))
    pair[ends].say(news)
    pair[ends].close()
    other = pair[1 - ends]
    assert listen_until(other, lambda _: not other._lines) == [News("died", (7,)), news]


def test_waking_ends_a_wait(pair: tuple[Lifelines, Lifelines]) -> None:
    pair[0].wake()
    assert pair[0].listen(PATIENCE) == []


def test_strangers_are_turned_away() -> None:
    hub, stranger = Lifelines(0), Lifelines(1)
    invitation = hub.invite(2)
    answering = threading.Thread(target=listen_until, args=(hub, lambda _: bool(hub._lines)))
    answering.start()
    wrong = invitation.replace(hub._word.hex(), "00" * 16)
    assert not stranger.connect(wrong)
    assert stranger.connect(invitation)
    answering.join()
    assert list(hub._lines.values()) == [1]
    stranger.close()
    hub.close()


def test_a_hello_may_come_in_pieces(called: tuple[Lifelines, socket.socket]) -> None:
    hub, caller = called
    hello = hub._word + bytes([0, 0, 0, 1])
    for length in range(1, len(hello) + 1):
        caller.sendall(hello[length - 1 : length])
        listen_until(hub, lambda _, said=hello[:length]: said in hub._callers.values())
    assert caller.recv(16) == hub._answer
    caller.sendall(TAKEN)
    listen_until(hub, lambda _: bool(hub._lines))
    caller.close()
    assert heard_by(hub) == [News("died", (1,))]


def test_a_caller_that_hangs_up_before_it_keeps_the_line_is_no_death(called: tuple[Lifelines, socket.socket]) -> None:
    """Fails when the hub takes one that it has answered for one that keeps the line."""
    hub, caller = called
    caller.sendall(hub._word + bytes(4))
    listen_until(hub, lambda _: any(hub._callers.values()))
    caller.close()
    assert listen_until(hub, lambda _: not hub._callers) == []
    assert hub._lines == {}


def test_of_several_calls_one_is_kept() -> None:
    """The hub comes to them late and finds them all; then it hears one rank, and no death.

    Fails when a caller says that it keeps a line on each, or hangs up on the one that it keeps.
    """
    hub, other = Lifelines(0), Lifelines(1)
    port, _, *words = json.loads(hub.invite(9))
    connected: list[bool] = []
    calling = threading.Thread(
        target=lambda: connected.append(other.connect(json.dumps([port, ["127.0.0.1"] * 3, *words])))
    )
    calling.start()
    calling.join(0.3)  # were the calls not there yet, the hub would only find fewer
    heard = listen_until(hub, lambda _: bool(hub._lines) and not hub._callers)
    calling.join()
    other.say(News("left", (7,)))
    assert heard + heard_by(hub) == [News("left", (7,))]
    assert (connected, list(hub._lines.values())) == ([True], [1])
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
    line = dial(["127.0.3.99", *names], port, b"hello", b"answer")
    assert line is not None
    assert line.getpeername() == (names[-1], port)
    line.close()
    for thread, listener in zip(threads, listeners, strict=True):
        thread.join(PATIENCE)
        listener.close()


def test_nobody_answers(caplog: pytest.LogCaptureFixture) -> None:
    lifelines = Lifelines(3)
    assert not lifelines.connect('[9, ["127.0.0.1"], "00", "11"]')
    assert "rank 3 found no way to connect to rank 0, port 9 of 127.0.0.1" in caplog.text
    lifelines.close()


def test_a_listener_that_never_answers_is_given_up() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        assert dial(["127.0.0.1"], port, b"hello", b"answer", answer_seconds=0.2) is None


def test_loopback_addresses_come_last() -> None:
    addresses = own_addresses()
    assert "127.0.0.1" in addresses
    ranks = [address.startswith("127.") or address == "::1" for address in addresses]
    assert ranks == sorted(ranks)
