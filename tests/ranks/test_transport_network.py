"""A network that is cut, between two network namespaces that a pair of virtual interfaces joins."""

import json
import os
import selectors
import shutil
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from waiting import PATIENCE

SCRIPT = Path(__file__).parents[1] / "support" / "rank_in_namespace.py"
HERE, THERE = "10.213.0.1", "10.213.0.2"
TIMEOUT = 10.0


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, timeout=PATIENCE)


def set_up(site: str, address: str) -> None:
    """A namespace has one interface, named after it."""
    for words in (("addr", "add", f"{address}/24", "dev", f"{site}v"), ("link", "set", f"{site}v", "up")):
        ip("-n", site, *words)
    ip("-n", site, "link", "set", "lo", "up")


def start(site: str, rank: int) -> "subprocess.Popen[bytes]":
    # Gloo's own setting: the name of this host means nothing in a namespace.
    environment = {**os.environ, "GLOO_SOCKET_IFNAME": f"{site}v", "RES_OPTIONS": "timeout:1 attempts:1"}
    program = [sys.executable, SCRIPT, rank, 3, HERE, 29500, TIMEOUT]
    return subprocess.Popen(
        ["ip", "netns", "exec", site, *map(str, program)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        bufsize=0,  # so that everything unread stays in the pipe, where `select` sees it
        env=environment,
    )


@pytest.fixture
def sites() -> Iterator[tuple[str, str]]:
    if shutil.which("ip") is None or os.geteuid() != 0:
        pytest.skip("needs root and iproute2 for network namespaces")
    mark = uuid.uuid4().hex[:6]
    here, there = f"odb{mark}a", f"odb{mark}b"
    with ExitStack() as undo:
        for site in (here, there):
            try:
                ip("netns", "add", site)
            except subprocess.CalledProcessError as error:
                pytest.skip(f"cannot make a network namespace here: {error.stderr.decode().strip()}")
            undo.callback(ip, "netns", "del", site)
        peer = ("peer", "name", f"{there}v", "netns", there)
        ip("link", "add", f"{here}v", "netns", here, "type", "veth", *peer)
        set_up(here, HERE)
        set_up(there, THERE)
        yield here, there


@pytest.fixture
def ranks(sites: tuple[str, str]) -> Iterator[list["subprocess.Popen[bytes]"]]:
    """Ranks 0 and 1 on the side of the store, rank 2 on the other; all know each other by 10.x addresses."""
    processes = []
    with ExitStack() as ends:
        for rank, site in enumerate((sites[0], *sites)):
            processes.append(start(site, rank))
            ends.callback(processes[-1].communicate)
            ends.callback(processes[-1].kill)
        for process in processes:
            assert read_line(process) == "ready"
        yield processes


def read_line(process: "subprocess.Popen[bytes]") -> str:
    """The next line that a rank prints; fails the test when there is none in time."""
    assert process.stdout is not None
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        assert selector.select(PATIENCE), f"nothing within {PATIENCE} s"
    return process.stdout.readline().decode().strip()


@pytest.mark.slow
def test_a_cut_network_fails_on_both_sides_within_the_timeout(
    sites: tuple[str, str], ranks: list["subprocess.Popen[bytes]"]
) -> None:
    ip("-n", sites[1], "link", "set", f"{sites[1]}v", "down")
    assert ranks[2].stdin is not None
    ranks[2].stdin.write(b"\n")
    said = [json.loads(read_line(process)) for process in ranks]
    assert [kind for kind, _ in said] == ["AlignmentTimeout"] * 3
    for _, message in said[:2]:
        assert message.startswith("rank 2 gave no sign of life for ")
    assert said[2][1].startswith("ranks 0, 1 cannot be reached: ")
    for process in ranks:
        assert read_line(process) == "closed"
    for process in ranks:
        assert process.wait(PATIENCE) == 0


@pytest.mark.slow
def test_a_rank_killed_on_another_host_is_named_at_once(ranks: list["subprocess.Popen[bytes]"]) -> None:
    """The hosts know each other by one address. If only the timeout were left, it would be an AlignmentTimeout."""
    ranks[2].kill()
    for process in ranks[:2]:
        kind, message = json.loads(read_line(process))
        assert (kind, message[:11]) == ("PeerError", "rank 2 died")
