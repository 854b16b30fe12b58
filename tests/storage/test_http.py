"""Reading from HTTP servers that drop, refuse, ignore ranges and lie: identical bytes, or an error that says what."""

import random

import pytest
from http_server import Fault, FaultyServer
from storage_support import first_retry, nothing_fetches
from waiting import background_threads

from odb_stream import storage
from odb_stream.errors import ConfigError, ShardError
from odb_stream.storage.options import Storage

DATA = random.Random(5).randbytes(700_000)
QUICK = Storage(retry_seconds=0.3)
LASTING = Storage(retry_seconds=20)


@pytest.fixture
def address(http: FaultyServer) -> str:
    http.files["/a.tar"] = DATA
    return f"{http.url}/a.tar"


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("odb_stream.storage.retries.FIRST_PAUSE", 0.01)


def read(address: str, offset: int = 0, options: Storage = LASTING) -> bytes:
    with storage.open_stream(address, offset, options) as stream:
        return stream.read()


def test_one_request_from_the_offset_to_the_end(http: FaultyServer, address: str) -> None:
    assert read(address) == DATA
    assert read(address, 123_457) == DATA[123_457:]
    assert [(seen.method, seen.headers.get("range")) for seen in http.seen] == [("GET", None), ("GET", "bytes=123457-")]


def test_small_reads_and_lines(http: FaultyServer, address: str) -> None:
    with storage.open_stream(address, 5) as stream:
        pieces = [stream.read(size) for size in (1, 512, 10_240, 300_000)]
        assert b"".join(pieces) == DATA[5 : 5 + 1 + 512 + 10_240 + 300_000]
    http.files["/lines"] = b"one\ntwo\n" * 50_000
    with storage.open_stream(f"{http.url}/lines") as stream:
        assert list(stream) == [b"one\n", b"two\n"] * 50_000


@pytest.mark.parametrize("seed", range(4))
def test_a_dropped_connection_goes_on_at_the_byte(http: FaultyServer, address: str, seed: int) -> None:
    draw = random.Random(seed)
    http.faults.extend(Fault(drop_after=draw.choice([0, 1, 4_000, 90_000, 600_000])) for _ in range(6))
    offset = draw.choice([0, 1, 77_777])
    assert read(address, offset) == DATA[offset:]
    starts = [seen.start for seen in http.seen]
    assert starts == sorted(starts)
    assert len(starts) > 2
    # What came once is not asked for again, and later requests demand the object of the first.
    assert all("if-match" in seen.headers for seen in http.seen[1:] if seen.start > offset)


@pytest.mark.parametrize("status", [408, 429, 500, 502, 503, 504])
def test_a_busy_server_is_asked_again(http: FaultyServer, address: str, status: int) -> None:
    http.faults.extend([Fault(status=status), Fault(status=status), Fault(drop_after=10_000), Fault(status=status)])
    assert read(address) == DATA
    http.faults.append(Fault(status=status))
    assert storage.size(address, LASTING) == len(DATA)
    http.faults.append(Fault(status=status))
    assert storage.read_if_there(address, LASTING, length=30) == DATA[:30]


def test_a_server_that_stays_busy_is_an_error_within_the_limit(
    http: FaultyServer, address: str, caplog: pytest.LogCaptureFixture
) -> None:
    http.always = Fault(status=503)
    for request in (read, lambda *given: storage.size(given[0], given[2])):
        caplog.clear()
        with pytest.raises(ShardError, match=r"a\.tar cannot be read: the server answered 503 .* tried \d+ times"):
            request(address, 0, QUICK)
        assert len(caplog.messages) == 1
        assert f"{address}: the server answered 503 Service Unavailable; trying again" in caplog.messages[0]
    with pytest.raises(ShardError, match=r"503 .* tried once"):
        storage.size(address, Storage(retry_seconds=0))


@pytest.mark.parametrize("status", [400, 405, 501])
def test_what_will_not_change_is_not_asked_again(http: FaultyServer, address: str, status: int) -> None:
    http.always = Fault(status=status)
    with pytest.raises(ShardError, match=f"the server answered {status} .* tried once"):
        read(address)
    assert len(http.seen) == 1


def test_a_server_that_ignores_ranges(http: FaultyServer, address: str, caplog: pytest.LogCaptureFixture) -> None:
    http.always = Fault(whole=True)
    assert read(address) == DATA
    assert not caplog.messages
    assert read(address, 300_001) == DATA[300_001:]
    assert storage.read_if_there(address, LASTING, length=5) == DATA[:5]
    assert all("ignores byte ranges" in message and "byte 300001" in message for message in caplog.messages)
    http.seen.clear()
    http.faults.append(Fault(whole=True, drop_after=600_000))
    assert read(address) == DATA
    # The whole, the rest, which is ignored, and the whole again.
    assert [seen.headers.get("range", "")[:6] for seen in http.seen] == ["", "bytes=", ""]


@pytest.mark.parametrize("offset", [0, 200_000])
def test_a_body_that_is_always_too_short_is_measured_against_the_size(
    http: FaultyServer, address: str, offset: int
) -> None:
    http.always = Fault(length_off=1000)
    with (
        storage.open_stream(address, offset, QUICK) as stream,
        pytest.raises(ShardError, match=r"a\.tar, byte offset \d+: .*tried \d+ times"),
    ):
        stream.read()
    assert len(http.seen) > 2


def test_a_body_that_was_too_short_once(http: FaultyServer, address: str) -> None:
    http.faults.append(Fault(drop_after=len(DATA) - 1))
    assert read(address) == DATA


@pytest.mark.parametrize(
    ("tagged", "fault"),
    [
        (True, Fault(e_tag='"another"')),  # told by the demand
        (True, Fault(e_tag='W/"another"')),
        (False, Fault(length_off=-1)),  # told by the size
    ],
)
def test_an_object_replaced_while_it_is_read_is_an_error(
    http: FaultyServer, address: str, tagged: bool, fault: Fault
) -> None:
    http.tagged = tagged
    http.faults.extend([Fault(drop_after=100_000), fault])
    with pytest.raises(ShardError, match=r"a\.tar, byte offset \d+: it was replaced while it was read"):
        read(address)
    assert len(http.seen) == 2


def test_an_answer_that_ignores_the_demand_is_compared(http: FaultyServer, address: str) -> None:
    http.always = Fault(e_tag='W/"one"')
    assert read(address) == DATA
    http.faults.extend([Fault(drop_after=100_000, e_tag='W/"one"'), Fault(e_tag='W/"two"')])
    with pytest.raises(ShardError, match="replaced"):
        read(address)
    assert all("if-match" not in seen.headers for seen in http.seen)


def test_an_object_that_shrank(http: FaultyServer, address: str) -> None:
    http.tagged = False
    http.faults.append(Fault(drop_after=650_000, then_holds=DATA[:600_000]))
    with storage.open_stream(address, 0, LASTING) as stream:
        assert stream.read(10) == DATA[:10]
        with pytest.raises(ShardError, match="replaced"):
            stream.read()


def test_offsets_at_and_beyond_the_end(http: FaultyServer, address: str) -> None:
    assert read(address, len(DATA)) == b""
    with pytest.raises(ShardError, match=r"byte offset 700001 lies beyond the end: the size is 700000 bytes"):
        read(address, len(DATA) + 1)
    assert storage.read_if_there(address, length=len(DATA) + 5) == DATA
    http.files["/empty"] = b""
    assert read(f"{http.url}/empty") == b""
    assert storage.read_if_there(f"{http.url}/empty", length=10) == b""
    assert storage.size(f"{http.url}/empty") == 0


def test_missing_files(http: FaultyServer, address: str) -> None:
    missing = f"{http.url}/none.tar"
    for request in (read, storage.size, storage.expand):
        with pytest.raises(ShardError, match=r"none\.tar: the server has no such file; check the address"):
            request(missing)
    assert not storage.exists(missing)
    assert storage.read_if_there(missing) is None
    assert storage.exists(address)
    assert storage.read_if_there(address) == DATA


def test_a_server_that_refuses_head(http: FaultyServer, address: str) -> None:
    http.faults.append(Fault(status=405))
    assert storage.size(address) == len(DATA)
    http.faults.extend([Fault(status=403), Fault(whole=True)])
    assert storage.size(address) == len(DATA)


def test_a_server_that_does_not_state_the_length(http: FaultyServer, address: str) -> None:
    http.always = Fault(no_length=True)
    with pytest.raises(ShardError, match="does not say how long the file is"):
        read(address)


@pytest.mark.parametrize("target", ["/a%20b.tar", "/%C3%BC.tar", "/x%2Fy.tar", "/a//b.tar", "/%FF.tar", "/a+b~c.tar"])
def test_names_stand_on_the_wire_as_in_the_address(http: FaultyServer, target: str) -> None:
    http.files[target] = DATA[:1000]
    assert read(f"{http.url}{target}") == DATA[:1000]
    assert read(f"{http.url}{target}?sign=a%2Bb&c=1#part") == DATA[:1000]
    assert [seen.target for seen in http.seen] == [target, f"{target}?sign=a%2Bb&c=1"]


def test_no_globs_and_no_writing(http: FaultyServer, address: str) -> None:
    for pattern in (f"{http.url}/*.tar", f"{http.url}/a[0-9].tar?x=1", [f"{http.url}/{{a,b*}}.tar"]):
        with pytest.raises(ConfigError, match=r"no list of its files.*shard-\{000\.\.015\}\.tar"):
            storage.expand(pattern)
    assert storage.expand(f"{http.url}/a.tar?x=[*]") == (f"{http.url}/a.tar?x=[*]",)
    for write in (lambda at: storage.write_atomic(at, b"x"), storage.remove, storage.require_writable):
        with pytest.raises(ConfigError, match="can only be read"):
            write(address)
    assert {seen.method for seen in http.seen} == {"HEAD"}


def test_closing_early_ends_the_thread_at_once(http: FaultyServer) -> None:
    http.files["/big"] = bytes(30_000_000)
    options = Storage(read_ahead=100_000)
    nothing_fetches()  # threads of earlier tests may not be quite at their end
    with storage.open_stream(f"{http.url}/big", options=options) as stream:
        stream.read(10)
        assert len(background_threads("odb_stream-fetch")) == 1
    nothing_fetches()
    forgotten = storage.open_stream(f"{http.url}/big", options=options)
    del forgotten
    nothing_fetches()


def test_closing_ends_the_wait_for_the_next_try(http: FaultyServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("odb_stream.storage.retries.FIRST_PAUSE", 3600.0)
    monkeypatch.setattr("odb_stream.storage.retries.LONGEST_PAUSE", 3600.0)
    http.files["/a.tar"] = DATA
    http.faults.append(Fault(drop_after=200_000))
    with first_retry() as retrying, storage.open_stream(f"{http.url}/a.tar", options=Storage(retry_seconds=7200)):
        assert retrying.wait(60)
    nothing_fetches()


@pytest.mark.slow
def test_a_silent_server_is_an_error_within_the_limit(http: FaultyServer, address: str) -> None:
    http.always = Fault(stall=True)
    with pytest.raises(ShardError, match=r"a\.tar cannot be read: the server did not answer in time; tried once"):
        read(address, 0, Storage(retry_seconds=0))
