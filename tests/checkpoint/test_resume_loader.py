"""A Loader that goes on from a state makes, bit for bit, what would have come: at every step, in one process.

From any step over real sources too: shards with and without an index, damaged ones, mixes, images.
"""

import json
from pathlib import Path

import pytest
from loader_data import Ready, drop_thirds, jitter
from make_tars import write_texts
from resume_support import check_every_cut, epoch_of, uncut

import odb_stream as odb
from odb_stream.cli.recipes import build_pipeline

SMALL = {"budget": odb.Budget(tokens=128), "window": 32, "lookahead": 4, "seed": 3}


def loader(size: int = 150, *stages, shuffle: bool = True, **settings) -> odb.Loader:
    return odb.Loader(odb.Pipeline(odb.FromDataset(Ready(size), shuffle=shuffle), *stages), **{**SMALL, **settings})


CASES = {
    "padded": {},
    "packed": {"layout": "packed"},
    "without shuffling": {"shuffle": False},
    "three steps an update": {"grad_accum": 3},
    "oversize samples go alone": {"budget": odb.Budget(tokens=36), "oversize": "solo"},
    "oversize samples are dropped": {"budget": odb.Budget(tokens=36), "oversize": "drop", "layout": "packed"},
    "one round": {"size": 20},
    "one sample": {"size": 2},
}


@pytest.mark.parametrize("name", CASES)
def test_what_follows_a_state_is_what_would_have_come(name: str) -> None:
    settings = dict(CASES[name])
    size = settings.pop("size", 150)
    steps = check_every_cut(lambda: loader(size, jitter, drop_thirds, **settings))
    assert steps[0] != steps[1]


@pytest.mark.slow
def test_with_workers_it_is_the_same() -> None:
    with loader(150, jitter, drop_thirds) as stream:
        alone = epoch_of(stream)
    steps = check_every_cut(lambda: loader(150, jitter, drop_thirds, workers=2), cuts=range(0, 40, 7))
    assert steps[0] == alone


@pytest.mark.parametrize("accum", [1, 2])
def test_a_quota_goes_on_over_the_ends_of_its_epochs(accum: int) -> None:
    def make() -> odb.Loader:
        return loader(60, jitter, closure="quota", quota=100, grad_accum=accum)

    steps, states, _ = uncut(make, 4)
    for number in range(3):
        for cut, state in enumerate(states[number]):
            with make() as stream:
                stream.load_state_dict(json.loads(state))
                following = [epoch_of(stream), epoch_of(stream)]
            ended = cut == len(steps[number])
            expected = steps[number + 1 :] if ended else [steps[number][cut:], *steps[number + 1 :]]
            for got, one in zip(following, expected, strict=False):
                assert got == one, (number, cut)


def test_a_loader_can_go_on_twice_from_a_dropped_iterator_and_from_a_finished_epoch() -> None:
    steps, states, _ = uncut(loader, 2)
    with loader() as stream:
        iterator = iter(stream)
        for _ in range(3):
            next(iterator)
        state = stream.state_dict()
        assert json.dumps(state) == states[0][3]
        del iterator
        assert stream.state_dict() == state, "of the last step that was yielded"
        for _ in range(2):
            stream.load_state_dict(state)
            assert epoch_of(stream) == steps[0][3:]
        stream.load_state_dict(json.loads(states[0][1]))
        stream.load_state_dict(state)
        assert epoch_of(stream) == steps[0][3:]
        finished = json.loads(states[1][0])
        assert (finished["epoch"], finished["step"]) == (1, 0)
        stream.load_state_dict(finished)
        assert epoch_of(stream) == steps[1]


def test_earlier_steps_of_the_epoch_have_their_states_for_trainers_that_pull_ahead() -> None:
    _, states, _ = uncut(loader, 1)
    with loader(lookahead=4) as stream:
        iterator = iter(stream)
        for _ in range(6):
            next(iterator)
        for step in (5, 4, 3, 2):
            assert json.dumps(stream.state_dict(step=step)) == states[0][step + 1]
        for step in (0, 6):
            with pytest.raises(odb.StateError, match=rf"after step {step} .*[12] to 5 are kept"):
                stream.state_dict(step=step)


def test_only_settings_that_decide_batches_are_refused_and_by_name() -> None:
    steps, states, _ = uncut(loader, 1)
    state = json.loads(states[0][4])
    for changed, message in (
        ({"window": 33}, r"window was 32 and is 33"),
        ({"budget": odb.Budget(tokens=129)}, r"budget was Budget\(tokens=128.*is Budget\(tokens=129"),
        ({"layout": "packed"}, r"layout was 'padded' and is 'packed'"),
        ({"seed": 4}, r"seed was 3 and is 4"),
        ({"seed": 4, "lookahead": 5}, r"lookahead was 4 and is 5; seed was 3 and is 4"),
    ):
        with loader(**changed) as other, pytest.raises(odb.StateError, match=message):
            other.load_state_dict(state)
    with loader(timeout=30.0, failure_budget=odb.FailureBudget(share=0.5)) as stream:
        stream.load_state_dict(state)
        assert epoch_of(stream) == steps[0][4:]


def edited(state: dict, place: str, value: object) -> dict:
    """The state with another value at a place inside its content, such as ``identity.data``."""
    content = json.loads(state["content"])
    (inner,) = content.values()
    *path, name = place.split(".")
    for step in path:
        inner = inner[step]
    inner[name] = value
    return {**state, "content": json.dumps(content)}


def test_states_of_other_data_ranks_and_versions_are_refused() -> None:
    with loader() as stream:
        next(iter(stream))
        state = stream.state_dict()
        for refused, fact in (
            (edited(state, "identity.data", "dataset Ready of 7 items"), "dataset Ready of 7 items"),
            ({**state, "version": 1}, "version 1,"),
            (edited(state, "identity.world_size", 4), "4 ranks.*checkpoint.merge"),
            (edited(state, "rank", 1), "rank 1"),
            ({**state, "content": "{"}, "damaged"),
            (edited(state, "state.place.round", {}), "damaged"),
            (edited(state, "state.taken", "5"), "damaged"),
            (edited(state, "state.unknown", 5), "unknown"),
            ({}, "{}"),
            ("text", "text"),
            (None, "None"),
        ):
            with pytest.raises(odb.StateError, match=fact):
                stream.load_state_dict(refused)


def test_a_state_holds_references_and_its_size_is_bounded_by_window_and_round() -> None:
    with loader(3000, window=256, lookahead=16) as stream:
        sizes = []
        for batch in stream:
            odb.pop_step(batch)
            sizes.append(len(json.dumps(stream.state_dict())))
    assert max(sizes) < 4000 + 12 * (256 + 2 * 16 * 64)
    assert max(sizes[len(sizes) // 2 :]) < 1.2 * max(sizes[: len(sizes) // 2]), "it does not grow with the position"


@pytest.mark.parametrize("layout", ["padded", "packed"])
def test_nothing_that_was_emitted_is_prepared_again_and_the_first_batch_needs_little(layout: str) -> None:
    """At every step: fails with a round that is planned again, or a reading that starts over."""
    emitted: list[int] = []
    states = []
    with loader(600, layout=layout) as stream:
        for batch in stream:
            emitted += [ref.index for ref in odb.pop_step(batch).refs]
            states.append((len(emitted), stream.state_dict()))
    for done, state in states[::7]:
        given: list[int] = []

        def noting(sample: odb.Sample, given: list[int] = given) -> odb.Sample:
            given.append(sample.ref.index)
            return sample

        with loader(600, noting, layout=layout) as stream:
            stream.load_state_dict(state)
            iterator = iter(stream)
            batch = next(iterator, None)
            if batch is not None:
                odb.pop_step(batch)
            rest = [ref.index for following in iterator for ref in odb.pop_step(following).refs]
        assert not set(given) & set(emitted[:done])
        assert sorted(given) == sorted(emitted[done:]), "and what was not is prepared once"
        assert len(rest) <= len(given)


OF_SHARDS = {"budget": odb.Budget(tokens=300), "window": 32, "lookahead": 4, "seed": 3}


def letters(sample: odb.Sample) -> dict:
    """One token a letter."""
    return {"input_ids": [ord(letter) % 90 for letter in sample["text"]]}


@pytest.mark.parametrize("indexed", [True, False])
@pytest.mark.parametrize("shuffle", [True, False])
def test_over_shards(tmp_path: Path, indexed: bool, shuffle: bool) -> None:
    addresses = write_texts(tmp_path, [40, 300, 25], indexed=indexed)
    pipeline = odb.Pipeline(odb.Shards(addresses, shuffle=shuffle), letters, jitter)
    check_every_cut(lambda: odb.Loader(pipeline, **OF_SHARDS), cuts=range(0, 60, 3))


@pytest.mark.parametrize("indexed", [True, False])
def test_over_damaged_shards_every_loss_is_counted_once(tmp_path: Path, indexed: bool) -> None:
    addresses = write_texts(tmp_path, [60, 60], indexed=indexed)
    for address in addresses:
        data = bytearray(Path(address).read_bytes())
        for sample in (11, 12, 40):
            data[sample * 1024 : sample * 1024 + 8] = b"\xff" * 8
        Path(address).write_bytes(data)
    pipeline = odb.Pipeline(odb.Shards(addresses, on_damage="drop"), letters)
    folder = tmp_path / "bad"
    check_every_cut(lambda: odb.Loader(pipeline, quarantine=str(folder), **OF_SHARDS))
    lines = [json.loads(line) for line in (folder / "rank-00000.jsonl").read_text().splitlines()]
    with odb.Loader(pipeline, **OF_SHARDS) as stream:
        for batch in stream:
            odb.pop_step(batch)
        dropped = stream.report()["dropped"]
    assert sum(dropped.values()) == len([line for line in lines if line["epoch"] == 0]) > 5


@pytest.mark.parametrize("mode", ["weights", "once"])
def test_over_a_mix(tmp_path: Path, mode: str) -> None:
    text = odb.Pipeline(odb.Shards(write_texts(tmp_path, [50], indexed=True)), letters)
    ready = odb.Pipeline(odb.FromDataset(Ready(30)))
    pipeline = odb.Pipeline(odb.Mix({"text": (text, 2), "ready": (ready, 1)}, mode=mode), jitter)
    check_every_cut(lambda: odb.Loader(pipeline, **OF_SHARDS))


@pytest.mark.slow
@pytest.mark.parametrize("layout", ["padded", "packed"])
def test_over_images(layout: str) -> None:
    pipeline = build_pipeline(str(Path(__file__).parents[2] / "pipelines" / "vision_chat.py"))
    settings = {"budget": odb.Budget(tokens=4096), "window": 24, "lookahead": 6, "max_bytes": 60 << 20}
    check_every_cut(lambda: odb.Loader(pipeline, layout=layout, **settings), epochs=1, cuts=range(0, 40, 5))
