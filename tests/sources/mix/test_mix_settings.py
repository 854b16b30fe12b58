"""What a Mix refuses, by name, and what it declares: names, stages and openers."""

import pickle

import pytest
from mix_data import Tokens, add_thousand, double, mark_negative, numbered

import odb_stream as odb
from odb_stream.prepare.records import prepare_for
from odb_stream.sample import Record, SampleRef
from odb_stream.seeds import BLOCK_ORDER, DATASET_ORDER, SHARD_ORDER, of_source

A, B = numbered(3), numbered(4)
WHOLE = odb.Mix({"a": (A, 1), "b": (B, 1)})

REFUSED = {
    "no dict": ([A, B], {}, r"needs a dict of sources, not \["),
    "nothing": ({}, {}, "at least two sources, but there is none"),
    "one source": ({"a": (A, 1)}, {}, "at least two sources, but there is 'a': give its Pipeline to the Loader"),
    "a name that is no string": ({1: (A, 1), "b": (B, 1)}, {}, "name of a source of a Mix must be a string, not 1"),
    "no name": ({"": (A, 1), "b": (B, 1)}, {}, "must be a string, not ''"),
    "no weight": ({"a": A, "b": (B, 1)}, {}, r"source 'a' of the Mix must be a pair \(pipeline, weight\)"),
    "too much": ({"a": (A, 1, 2), "b": (B, 1)}, {}, "source 'a' of the Mix must be a pair"),
    "a source without a pipeline": ({"a": (A.source, 1), "b": (B, 1)}, {}, r"'a' of the Mix must be a Pipeline, not"),
    "a class": ({"a": (A, 1), "b": (odb.Pipeline, 1)}, {}, "source 'b' of the Mix must be a Pipeline, not"),
    "a mix": ({"a": (WHOLE, 1), "b": (B, 1)}, {}, "source 'a' of the Mix must be a Pipeline"),
    "a mix in a pipeline": ({"a": (odb.Pipeline(WHOLE), 1), "b": (B, 1)}, {}, "source 'a' of the Mix is itself a Mix"),
    "zero": ({"a": (A, 1), "b": (B, 0)}, {}, "weight of source 'b' of the Mix is 0, but must be finite and above 0"),
    "below zero": ({"a": (A, -0.5), "b": (B, 1)}, {}, "weight of source 'a' of the Mix is -0.5"),
    "not a number": ({"a": (A, float("nan")), "b": (B, 1)}, {}, "weight of source 'a' of the Mix is nan"),
    "infinite": ({"a": (A, float("inf")), "b": (B, 1)}, {}, "weight of source 'a' of the Mix is inf"),
    "a bool": ({"a": (A, True), "b": (B, 1)}, {}, "weight of source 'a' of the Mix must be a number, not True"),
    "a word": ({"a": (A, "1"), "b": (B, 1)}, {}, "weight of source 'a' of the Mix must be a number, not '1'"),
    "half a pass": ({"a": (A, 1.5), "b": (B, 1)}, {"mode": "once"}, r"source 'a' .* must be an integer, not 1\.5"),
    "no pass": ({"a": (A, 1), "b": (B, 0)}, {"mode": "once"}, r"source 'b' .* is 0, but must be at least 1"),
    "a bool of passes": ({"a": (A, True), "b": (B, 1)}, {"mode": "once"}, "source 'a' .* integer, not True"),
    "another mode": ({"a": (A, 1), "b": (B, 1)}, {"mode": "twice"}, "mode of a Mix is 'twice', but must be one of"),
}  # fmt: skip


@pytest.mark.parametrize(("sources", "settings", "message"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_work_is_refused_by_name(sources, settings, message):
    with pytest.raises(odb.ConfigError, match=message):
        odb.Mix(sources, **settings)


def test_a_loader_takes_a_pipeline_of_a_mix_and_not_the_mix():
    with pytest.raises(odb.ConfigError, match="must be a Pipeline"):
        odb.Loader(WHOLE, budget=odb.Budget(tokens=64))


def test_a_pipeline_knows_the_stages_of_all_sources():
    own, plain = odb.Pipeline(odb.FromDataset(Tokens(3)), mark_negative), odb.Pipeline(odb.FromDataset(Tokens(2, 50)))
    source = odb.Mix({"own": (own, 1), "plain": (plain, 2)})
    pipeline = odb.Pipeline(source, double, add_thousand)
    assert pipeline.all_stages == (mark_negative, double, add_thousand)
    sources = prepare_for(pipeline, 0).sources
    assert [part.stages for part in sources] == [(mark_negative, double, add_thousand), (double, add_thousand)]
    assert own.all_stages == own.stages
    assert [part.stages for part in prepare_for(own, 0).sources] == [(mark_negative,)]
    assert source.open().names == ("own", "plain")
    assert own.source.open().names == ("dataset",)
    opener = pickle.loads(pickle.dumps(source)).opener()
    assert opener(Record(SampleRef(1, 0, 1, -1), "1", "")).get("input_ids")[0] == 51
    prepared = prepare_for(pipeline, 0).record(Record(SampleRef(0, 0, 2, -1), "2", ""))
    assert prepared.input_ids.tolist() == [1004] * 4
    assert prepared.labels.tolist() == [-100, 2, 2, -100]


def test_the_fingerprint_tells_mixes_apart_and_proportions_count_as_such():
    def of(*weights, **settings):
        return odb.Mix({"a": (A, weights[0]), "b": (B, weights[1])}, **settings).open().fingerprint

    assert of(2, 1) == "mix by weights: a (2): dataset Tokens of 3 items; b (1): dataset Tokens of 4 items"
    assert of(2, 1) == of(0.5, 0.25)
    other_names = odb.Mix({"c": (A, 2), "b": (B, 1)}).open().fingerprint
    other_order = odb.Mix({"b": (B, 1), "a": (A, 2)}).open().fingerprint
    assert len({of(2, 1), of(1, 1), of(2, 1, mode="once"), other_names, other_order}) == 5


def test_draws_of_sources_differ_and_those_of_the_first_are_the_plain_ones():
    purposes = (SHARD_ORDER, BLOCK_ORDER, DATASET_ORDER)
    assert [of_source(purpose, 0) for purpose in purposes] == list(purposes)
    assert len({of_source(purpose, source) for purpose in range(256) for source in range(50)}) == 256 * 50
