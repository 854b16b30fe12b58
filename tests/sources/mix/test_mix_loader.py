"""A mix as a training loop meets it: stages of each source, counts, epochs and worker counts, in both layouts."""

import json
from collections import Counter
from itertools import pairwise

import pytest
from mix_data import Tokens, add_thousand, double, drawn, drop_odd, mark_negative

import odb_stream as odb

SETTINGS = {"budget": odb.Budget(tokens=64), "window": 16, "lookahead": 4, "seed": 5}


def pipeline(mode="weights", weights=(2, 1), common=(add_thousand,)):
    """Source "even" is doubled, source "marked" has a label less; then the stages for all."""
    even = odb.Pipeline(odb.FromDataset(Tokens(30)), drop_odd, double)
    marked = odb.Pipeline(odb.FromDataset(Tokens(20, first=500)), mark_negative)
    sources = {"even": (even, weights[0]), "marked": (marked, weights[1])}
    return odb.Pipeline(odb.Mix(sources, mode=mode), *common)


def rows(batch, step, layout):
    """The ids and labels of each sample of a batch."""
    if layout == "packed":
        spans = pairwise(batch["cu_seq_lens_q"].tolist())
        pairs = [(batch["input_ids"][0, start:end], batch["labels"][0, start:end]) for start, end in spans]
    else:
        lengths = batch["attention_mask"].sum(1).tolist()
        pairs = [(batch["input_ids"][i, :n], batch["labels"][i, :n]) for i, n in enumerate(lengths)]
    return zip(step.refs, [(ids.tolist(), labels.tolist()) for ids, labels in pairs], strict=True)


def epoch(loader, layout):
    """One epoch: each sample's reference and content, in order."""
    found = []
    for batch in loader:
        step = odb.pop_step(batch)
        found += rows(batch, step, layout)
    return found


@pytest.mark.parametrize("layout", ["padded", "packed"])
@pytest.mark.parametrize("mode", ["weights", "once"])
def test_each_source_passes_its_own_stages_then_those_for_all(layout, mode):
    with odb.Loader(pipeline(mode), layout=layout, **SETTINGS) as loader:
        samples = epoch(loader, layout)
        report = loader.report()
    for ref, (ids, labels) in samples:
        size = 2 + ref.index * 5 % 8
        if ref.source == 0:
            assert ref.index % 2 == 0
            assert ids == [1000 + 2 * ref.index] * size
            assert labels == [-100, *ids[1:]]
        else:
            assert ids == [1500 + ref.index] * size
            assert labels == [-100, *[500 + ref.index] * (size - 2), -100]
    counts = Counter(ref.source for ref, _ in samples)
    if mode == "once":
        assert Counter(ref[::2] for ref, _ in samples) == Counter(
            {(0, i): 2 for i in range(0, 30, 2)} | {(1, i): 1 for i in range(20) if (2 + i * 5 % 8) > 2}
        )
    else:
        records = loader.samples
        assert abs(counts[1] + report["dropped"].get("nothing_supervised", 0) - records / 3) <= 0.5
    assert report["emitted"] == len(samples)
    assert report["emitted"] + sum(report["dropped"].values()) == loader.samples
    assert report["sources"]["even"]["emitted"] == counts[0]
    assert report["sources"]["even"]["dropped"] == report["dropped"]["odd"]
    assert report["sources"]["marked"]["emitted"] == counts[1]


def test_epochs_differ_and_a_repeated_sample_is_drawn_anew():
    with odb.Loader(pipeline(weights=(1, 4), common=(drawn,)), **SETTINGS) as loader:
        first, second = epoch(loader, "padded"), epoch(loader, "padded")
    for samples in (first, second):
        repeated = [ref for ref, times in Counter(ref for ref, _ in samples).items() if times > 1]
        assert {ref.source for ref in repeated} == {1}
        for ref in repeated:
            contents = [tuple(ids) for other, (ids, _) in samples if other == ref]
            assert len(set(contents)) == len(contents) > 2
    assert [ref for ref, _ in first] != [ref for ref, _ in second]
    assert not {tuple(ids) for _, (ids, _) in first} & {tuple(ids) for _, (ids, _) in second}


def test_a_quota_goes_on_over_the_ends_of_the_mix():
    with odb.Loader(pipeline(), closure="quota", quota=70, **SETTINGS) as loader:
        epochs = [epoch(loader, "padded") for _ in range(3)]
    assert all(len(samples) >= 70 for samples in epochs)
    shares = Counter(ref.source for samples in epochs for ref, _ in samples)
    assert shares[0] > 60
    assert shares[1] > 60


@pytest.mark.parametrize("layout", ["padded", "packed"])
def test_the_worker_count_changes_no_batch(layout):
    def run(workers):
        with odb.Loader(pipeline(common=(drawn,)), layout=layout, workers=workers, **SETTINGS) as loader:
            return epoch(loader, layout) + epoch(loader, layout)

    assert run(2) == run(0)


@pytest.mark.parametrize("mode", ["weights", "once"])
def test_a_run_goes_on_from_any_step_of_a_mix(mode):
    declared = pipeline(mode, common=(drawn,))
    small = {**SETTINGS, "budget": odb.Budget(tokens=24), "window": 4, "lookahead": 2}
    whole, states = [], []
    with odb.Loader(declared, **small) as loader:
        for batch in loader:
            whole.append(list(rows(batch, odb.pop_step(batch), "padded")))
            states.append(json.dumps(loader.state_dict()))
    assert len(whole) > 10
    for cut, state in enumerate(states[:-1], start=1):
        with odb.Loader(declared, **small) as loader:
            loader.load_state_dict(json.loads(state))
            assert [list(rows(batch, odb.pop_step(batch), "padded")) for batch in loader] == whole[cut:]
