"""The contract of torchdata's nodes, for every node of the package: a state taken after any item restores the rest."""

import json
import pkgutil
from collections.abc import Callable, Iterable
from importlib import import_module
from typing import Any

import pytest
from loader_data import Ready, drop_thirds
from torchdata.nodes import BaseNode

import odb_stream as odb
from odb_stream import nodes
from odb_stream.nodes.prepare import PrepareRecords, RecordOutcome
from odb_stream.nodes.read import Read
from odb_stream.nodes.waits import Waits
from odb_stream.prepare.records import prepare_for
from odb_stream.sample import PreparedSample
from odb_stream.workers.pool import WorkerPool

SIZE = 150
"""Several chunks, more than the pool is ahead by, and a last chunk that is not full."""
PIPELINE = odb.Pipeline(odb.FromDataset(Ready(SIZE)), drop_thirds)


def read() -> Read:
    return Read(PIPELINE.source.open().reading(odb.World(), seed=0, epoch=0), Waits())


def prepare() -> PrepareRecords:
    return PrepareRecords(read(), WorkerPool(prepare_for(PIPELINE, 0), 0), workers=1, waits=Waits())


NODES: dict[type[BaseNode[Any]], Callable[[], BaseNode[Any]]] = {Read: read, PrepareRecords: prepare}


def test_every_node_is_tested_here() -> None:
    """Fails with: a class that takes torchdata's base and leaves its contract untested."""
    modules = [import_module(f"odb_stream.nodes.{module.name}") for module in pkgutil.iter_modules(nodes.__path__)]
    classes = {value for module in modules for value in vars(module).values() if isinstance(value, type)}
    assert {cls for cls in classes if issubclass(cls, BaseNode) and cls is not BaseNode} == set(NODES)


def records(items: Iterable[Any]) -> list[Any]:
    """What items hold, one entry a record, since a node may cut records into chunks as it likes."""
    found = []
    for item in items:
        for one in item if isinstance(item, list) else [item]:
            record, result = one if isinstance(one, RecordOutcome) else (one, None)
            ids = result.input_ids.tolist() if isinstance(result, PreparedSample) else result
            found.append((record.ref, record.position, ids))
    return found


@pytest.mark.parametrize("build", NODES.values(), ids=[node.__name__ for node in NODES])
def test_a_state_taken_after_any_item_restores_the_rest(build: Callable[[], BaseNode[Any]]) -> None:
    node = build()
    states, items = [json.dumps(node.state_dict())], []
    for item in node:
        items.append(item)
        states.append(json.dumps(node.state_dict()))
    assert len(records(items)) == SIZE
    for _ in range(2):
        with pytest.raises(StopIteration):
            next(node)
    for after, state in enumerate(states):
        fresh = build()
        fresh.reset(json.loads(state))
        assert json.dumps(fresh.state_dict()) == state
        assert records(fresh) == records(items[after:]), f"restored after item {after}"
    next(node := build())
    node.reset()
    assert json.dumps(node.state_dict()) == states[0]
    assert records(node) == records(items)
