"""Map-style datasets as a source: dealt to ranks, fetched in the workers, restarted at any record."""

import pickle
from collections.abc import Iterator
from typing import Any

import pytest
import torch.utils.data
from hypothesis import given
from hypothesis import strategies as st
from remaining_support import check_cuts

from odb_stream.config import World
from odb_stream.errors import ConfigError, ShardError, StageError
from odb_stream.sample import SampleRef
from odb_stream.sources.dataset import FromDataset
from odb_stream.sources.source import Reading, Source


def squares(length: int) -> list[dict[str, int]]:
    return [{"square": index * index} for index in range(length)]


@given(length=st.integers(0, 50), ranks=st.integers(1, 8), shuffle=st.booleans(), epoch=st.integers(0, 2))
def test_each_index_falls_to_one_rank_and_reading_goes_on_from_every_cut_point(
    length: int, ranks: int, shuffle: bool, epoch: int
) -> None:
    source = FromDataset(squares(length), shuffle=shuffle)
    seen: list[int] = []
    for rank in range(ranks):
        reading = source.reading(World(rank, ranks), seed=4, epoch=epoch)
        records = check_cuts(reading)
        assert len(records) == reading.samples
        assert all(record.ref == SampleRef(0, rank, record.ref.index, -1) for record in records)
        assert all(type(record.ref.index) is int for record in records)  # datasets may refuse numpy's integers
        seen.extend(record.ref.index for record in records)
        held = [(record.ref, 7) for record in records][::-1]
        assert [(record.ref, record.epoch) for record in reading.fetch_all(held)] == held
    assert sorted(seen) == list(range(length))


def test_the_order_is_drawn_from_seed_and_epoch() -> None:
    def order(seed: int, epoch: int, shuffle: bool = True) -> list[int]:
        reading = FromDataset(squares(30), shuffle=shuffle).reading(World(), seed=seed, epoch=epoch)
        return [record.ref.index for record in reading.records()]

    assert len({tuple(order(seed, epoch)) for seed in (0, 1) for epoch in (0, 1)}) == 4
    assert order(0, 0) == order(0, 0)
    assert order(0, 1, shuffle=False) == list(range(30))


def test_a_sharded_dataset_is_all_of_the_ranks_own() -> None:
    for rank, length in enumerate((3, 5)):
        reading = FromDataset(squares(length), sharded=True).reading(World(rank, 2), seed=0, epoch=0)
        records = list(reading.records())
        assert sorted(record.ref for record in records) == [SampleRef(0, rank, index, -1) for index in range(length)]


def test_the_opener_fetches_items_and_travels() -> None:
    source: Source = FromDataset(squares(9))
    reading: Reading = source.reading(World(), seed=0, epoch=0)
    opener = pickle.loads(pickle.dumps(source.opener()))
    assert reading.plan == ()
    assert all(opener(record) == {"square": record.ref.index**2} for record in reading.records())


class Broken(list[int]):
    def __getitem__(self, index: Any) -> Any:
        if index == 0:
            raise KeyError("gone")
        return [index]


def test_items_that_fail_name_dataset_index_and_cause() -> None:
    source = FromDataset(Broken([0, 1]), shuffle=False)
    reading, opener = source.reading(World(), seed=0, epoch=0), source.opener()
    failing, no_mapping = reading.records()
    with pytest.raises(StageError, match=r"dataset Broken: item 0 cannot be fetched \(KeyError: 'gone'\)"):
        opener(failing)
    with pytest.raises(StageError, match="dataset Broken: item 1 is not a dict but list; return a dict"):
        opener(no_mapping)
    assert failing.where == "dataset Broken, key '0' (sample 0)"
    with pytest.raises(ShardError, match="2 items, so none of index 2"):
        reading.fetch_all([(failing.ref, 0), (failing.ref._replace(index=2), 0)])


class Stream(torch.utils.data.IterableDataset[dict[str, int]]):
    def __len__(self) -> int:
        return 3

    def __iter__(self) -> Iterator[dict[str, int]]:
        return iter(())


class NoLength:
    def __getitem__(self, index: int) -> dict[str, int]:
        return {}


class BadLength(NoLength):
    def __len__(self) -> int:
        raise NotImplementedError("no length")


@pytest.mark.parametrize("dataset", [Stream(), NoLength(), BadLength(), iter([]), {"a": 1}, "text", 3, {1, 2}])
def test_what_is_not_map_style_is_refused(dataset: object) -> None:
    with pytest.raises(ConfigError, match="FromDataset needs a"):
        FromDataset(dataset)


def test_a_torch_dataset_and_a_list_are_map_style() -> None:
    subset = torch.utils.data.Subset(squares(5), [1, 3])  # type: ignore[arg-type]
    assert FromDataset(subset).reading(World(), seed=0, epoch=0).samples == 2
    assert FromDataset([{}]).reading(World(), seed=0, epoch=0).samples == 1
