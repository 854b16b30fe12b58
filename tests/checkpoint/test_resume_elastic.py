"""The rest of an epoch on another number of ranks: each sample once, in equal steps, and merged again on the way."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from make_tars import write_texts
from ranks_support import run_ranks, values
from test_resume_loader import OF_SHARDS, edited, letters

import odb_stream as odb
from odb_stream.checkpoint import merge

COUNTS = [60, 130, 20, 45]


def pipeline(addresses: list[str], *, mixed: bool = False, shuffle: bool = True) -> odb.Pipeline:
    """All shards, or a mix of which the first half is read twice."""
    if not mixed:
        return odb.Pipeline(odb.Shards(addresses, shuffle=shuffle), letters)
    sources = {
        "twice": (odb.Pipeline(odb.Shards(addresses[:2])), 2),
        "once": (odb.Pipeline(odb.Shards(addresses[2:])), 1),
    }
    return odb.Pipeline(odb.Mix(sources, mode="once"), letters)


def go_on(addresses: list[str], state: dict | None, steps: int | None, kind: dict[str, Any]) -> dict[str, Any]:
    """Go on from a merged state for some steps, or to the end and through the next epoch; what this rank emitted."""
    settings = {**OF_SHARDS, **kind.get("settings", {})}
    shape = {name: kind[name] for name in ("mixed", "shuffle") if name in kind}
    with odb.Loader(pipeline(addresses, **shape), **settings) as stream:
        if state is not None:
            stream.load_state_dict(state)
        seen, numbers = [], []
        iterator = iter(stream)
        for batch in iterator:
            info = odb.pop_step(batch)
            seen += [tuple(ref) for ref in info.refs]
            numbers.append((info.step, info.samples_seen, info.global_samples))
            if len(numbers) == steps:
                break
        saved = json.loads(json.dumps(stream.state_dict()))
        report = stream.report()
        following = [] if steps is not None else [tuple(r) for batch in stream for r in odb.pop_step(batch).refs]
    return {"seen": seen, "numbers": numbers, "state": saved, "following": following, "report": report}


def everything(*, mixed: bool) -> Counter[tuple[int, int, int]]:
    """Every sample of an epoch, as source, shard and number."""

    def of(source: int, counts: list[int]) -> Counter[tuple[int, int, int]]:
        return Counter((source, shard, number) for shard, count in enumerate(counts) for number in range(count))

    return of(0, COUNTS[:2]) + of(0, COUNTS[:2]) + of(1, COUNTS[2:]) if mixed else of(0, COUNTS)


def check(addresses: list[str], worlds: list[tuple[int, int | None]], kind: dict[str, Any]) -> None:
    """Run through these (ranks, steps) one after the other; the last runs to the end of its epoch."""
    mixed = kind.get("mixed", False)
    state = None
    emitted: Counter[tuple[int, ...]] = Counter()
    steps = seen = 0
    for ranks, most in worlds:
        outcomes = values(run_ranks(go_on, ranks, addresses, state, most, kind))
        assert len({tuple(outcome["numbers"]) for outcome in outcomes}) == 1, "equal steps on all ranks"
        for number, samples_seen, samples in outcomes[0]["numbers"]:
            seen += samples
            assert (number, samples_seen) == (steps, seen), "steps and samples are counted on"
            steps += 1
        emitted.update(ref[:3] for outcome in outcomes for ref in outcome["seen"])
        if most is not None:
            state = json.loads(json.dumps(merge([outcome["state"] for outcome in reversed(outcomes)])))
            assert state["step"] == steps
    assert emitted == everything(mixed=mixed)
    whole = Counter(ref[:3] for outcome in outcomes for ref in outcome["following"])
    assert whole == everything(mixed=mixed), "the next epoch is whole"
    assert outcomes[0]["report"]["global"]["emitted"] == seen


@pytest.mark.slow
@pytest.mark.parametrize(
    "worlds",
    [
        [(1, 5), (1, None)],
        [(2, 4), (3, None)],
        [(3, 3), (1, None)],
        [(4, 2), (2, 3), (3, None)],
        [(2, 1), (4, 1), (1, 4), (2, None)],
    ],
    ids=str,
)
@pytest.mark.parametrize("kind", [{}, {"mixed": True}, {"shuffle": False, "settings": {"layout": "packed"}}], ids=str)
def test_any_number_of_ranks_goes_on_with_exactly_the_rest(tmp_path: Path, worlds: list, kind: dict) -> None:
    check(write_texts(tmp_path, COUNTS, indexed=True), worlds, kind)


@pytest.mark.slow
def test_in_the_last_round_too(tmp_path: Path) -> None:
    """Groups have been split and moved: a whole run of two ranks makes 20 steps or more."""
    addresses = write_texts(tmp_path, COUNTS, indexed=True)
    total = len(values(run_ranks(go_on, 2, addresses, None, None, {}))[0]["numbers"])
    for steps in (total - 1, total):
        check(addresses, [(2, steps), (3, None)], {})


def states_of(addresses: list[str], steps: int, ranks: int = 2, **kind: Any) -> list[dict[str, Any]]:
    return [outcome["state"] for outcome in values(run_ranks(go_on, ranks, addresses, None, steps, kind))]


def test_at_the_start_of_an_epoch_nothing_is_left_out(tmp_path: Path) -> None:
    addresses = write_texts(tmp_path, [30, 20], indexed=False)
    with odb.Loader(pipeline(addresses), **OF_SHARDS) as stream:
        state = merge([stream.state_dict()])
        stream.load_state_dict(state)
        assert sum(odb.pop_step(batch).samples for batch in stream) == 50


def test_states_that_do_not_belong_together_are_refused_by_name(tmp_path: Path) -> None:
    addresses = write_texts(tmp_path, COUNTS, indexed=True)
    first, second = states_of(addresses, 3)
    later = states_of(addresses, 4)[1]
    quota = [edited(one, "identity.settings.closure", "'quota'") for one in (first, second)]
    for given, message in (
        ([], "no state to merge"),
        ([first], r"of the ranks \[0\], but those of all 2 ranks"),
        ([first, first], r"of the ranks \[0, 0\]"),
        ([first, later], "different steps of epoch 0: rank 0 has made 3, rank 1 4"),
        ([first, edited(second, "state.epoch", 1)], "epochs: rank 0 has 0, rank 1 has 1"),
        ([first, edited(second, "identity.settings.seed", "9")], "seed was 9 and is 3"),
        ([merge([first, second]), second], "of the ranks"),
        (quota, "quota"),
    ):
        with pytest.raises(odb.StateError, match=message):
            merge(given)
    with odb.Loader(pipeline(addresses), **{**OF_SHARDS, "seed": 4}) as stream:
        with pytest.raises(odb.StateError, match="seed was 3 and is 4"):
            stream.load_state_dict(merge([first, second]))
    with odb.Loader(pipeline(addresses), **OF_SHARDS) as stream:
        with pytest.raises(odb.StateError, match=r"saved on 2 ranks, and there are 1 now.*checkpoint.merge"):
            stream.load_state_dict(first)


def test_without_an_index_it_is_refused_before_the_first_batch(tmp_path: Path) -> None:
    addresses = write_texts(tmp_path, COUNTS, indexed=False)
    state = merge(states_of(addresses, 3))
    with odb.Loader(pipeline(addresses), **OF_SHARDS) as stream:
        with pytest.raises(odb.StateError, match=r"on 2 ranks and there are 1 now.*odb-stream index"):
            stream.load_state_dict(state)
