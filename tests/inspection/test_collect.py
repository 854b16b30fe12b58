"""What an inspection reads, and what it makes of it: the loader's order, drops, mixes, damage, nothing at all."""

import json
from pathlib import Path

import pytest
from http_server import FaultyServer
from inspection_data import drop_all, drop_fifth, fail_at_seven, pipeline, some_lengths

import odb_stream as odb
from odb_stream.inspection import inspect
from odb_stream.inspection.collect import collect
from odb_stream.shards.index import write_index
from odb_stream.shards.reader import build_index
from odb_stream.shards.writer import write_shards


def gathered(given: odb.Pipeline, samples: int | None = None):
    return collect(given, samples=samples, seed=5, workers=0, report_progress=None)[0]


@pytest.mark.parametrize("samples", [1, 31, 32, 33, 99, 100, 101, None])
def test_it_reads_the_first_records_of_a_ranks_order(samples):
    lengths = some_lengths(100)
    given = pipeline(lengths)
    reading = given.source.open().reading(odb.World(), seed=5, epoch=0)
    order = [lengths[record.ref.index] for record in reading.records()]
    found = gathered(given, samples)
    assert found.lengths == order[:samples]
    assert (found.records, found.epoch) == (len(found.lengths), 100)
    assert found.ended == (samples is None or samples >= 100)


def test_drops_are_counted_with_the_first_of_each_reason():
    found = gathered(pipeline(some_lengths(100), drop_fifth, shuffle=False), 50)
    assert (found.records, len(found.lengths), dict(found.reasons)) == (50, 40, {"fifth": 10})
    assert found.examples == {"fifth": "number 4"}
    assert found.epoch_samples == 80
    assert found.held_bytes == [length * 4 * 2 for length in found.lengths], "rows of ids and labels, 4 bytes each"


def test_the_sources_of_a_mix_are_shown_by_name():
    parts = {"short": (pipeline((3,) * 40), 1), "long": (pipeline((50,) * 40, drop_fifth), 3)}
    found = inspect(odb.Pipeline(odb.Mix(parts), drop_fifth), samples=40, window=8, lookahead=8)
    by_source = {part.name: (part.lengths.min, part.lengths.max) for part in found.histogram.by_source}
    assert by_source == {"short": (3, 3), "long": (50, 50)}
    times = [(row.source, row.stage) for row in found.times]
    assert times == [
        ("", "read"),
        ("short", "open (DatasetOpener)"), ("short", "drop_fifth"), ("short", "checks"),
        ("long", "open (DatasetOpener)"), ("long", "drop_fifth"), ("long", "drop_fifth"), ("long", "checks"),
    ]  # fmt: skip
    assert sum(row.samples for row in found.times if row.stage.startswith("open")) == 40
    assert sum(row.share for row in found.times) == pytest.approx(1)


def test_workers_change_nothing_but_the_times():
    given = pipeline(some_lengths(80), drop_fifth)
    here, there = (inspect(given, samples=70, workers=count, window=16).plain() for count in (0, 1))
    times = [found.pop("times") for found in (here, there)]
    assert here == there
    assert [[row["samples"] for row in rows] for rows in times] == [[70, 70, 70, 70]] * 2


def test_nothing_to_measure_is_an_error_with_its_cause():
    with pytest.raises(odb.StageError, match=r"all 12 samples .*unwanted: 12, first: number \d+"):
        gathered(pipeline(some_lengths(12), drop_all))
    with pytest.raises(odb.ConfigError, match="the epoch of dataset contains no sample"):
        gathered(pipeline(()))
    with pytest.raises(odb.StageError, match="fail_at_seven raised ValueError"):
        gathered(pipeline(some_lengths(12), fail_at_seven))


def test_samples_over_the_budget_are_counted_even_if_all_are():
    found = inspect(pipeline((50,) * 30), budget=40, window=8)
    assert (found.samples.kept, found.samples.oversize) == (30, 30)
    assert {(row.steps, row.dropped) for row in found.policies.figures} == {(0, 30)}


def shards_of(folder: Path, counts: list[int], *, indexed: bool) -> None:
    """Shards of token ids with these numbers of samples."""
    for shard, count in enumerate(counts):
        samples = (
            (f"{shard}-{number}", {"json": json.dumps({"input_ids": [1] * (2 + number)}).encode()})
            for number in range(count)
        )
        (written,) = write_shards(samples, str(folder / f"{shard}"), samples_per_shard=count)
        if indexed:
            write_index(written.address, build_index(written.address))


def ids_of(sample):
    return {"input_ids": sample["input_ids"]}


@pytest.mark.parametrize("indexed", [True, False])
def test_shards_with_and_without_indexes(tmp_path, indexed):
    shards_of(tmp_path, [20, 30], indexed=indexed)
    given = odb.Pipeline(odb.Shards(f"{tmp_path}/*/shard-*.tar"), ids_of)
    part, whole = gathered(given, 40), gathered(given)
    assert part.epoch == (50 if indexed else None)
    assert part.epoch_samples == (50 if indexed else None)
    assert sorted(whole.lengths) == sorted([*range(2, 22), *range(2, 32)])
    assert (whole.ended, whole.epoch_samples) == (True, 50)


def test_damage_is_an_error_or_drops_as_in_a_run(tmp_path):
    shards_of(tmp_path, [20], indexed=True)
    (shard,) = tmp_path.glob("0/*.tar")
    shard.write_bytes(shard.read_bytes()[: shard.stat().st_size // 2])
    with pytest.raises(odb.ShardError, match="shard-000000"):
        gathered(odb.Pipeline(odb.Shards(str(shard)), ids_of))
    found = gathered(odb.Pipeline(odb.Shards(str(shard), on_damage="drop"), ids_of))
    assert found.records == 20
    assert 0 < len(found.lengths) < 20
    assert found.reasons.total() + len(found.lengths) == 20


def test_shards_behind_a_server(tmp_path):
    shards_of(tmp_path, [20], indexed=True)
    with FaultyServer() as server:
        for path in (tmp_path / "0").iterdir():
            server.files[f"/data/{path.name}"] = path.read_bytes()
        found = gathered(odb.Pipeline(odb.Shards(f"{server.url}/data/shard-000000.tar"), ids_of), 10)
    assert (len(found.lengths), found.epoch) == (10, 20)


def test_progress_is_reported():
    calls = []
    inspect(pipeline(some_lengths(70)), samples=50, window=8, progress=lambda *what: calls.append(what))
    assert [what for what in calls if what[0].startswith("reading")] == [
        ("reading and preparing", 32, 50),
        ("reading and preparing", 50, 50),
    ]
    simulated = [what for what in calls if what[0].startswith("simulating")]
    assert [done for _, done, _ in simulated] == list(range(1, simulated[0][2] + 1))
