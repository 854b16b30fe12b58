"""The command ``state``: explains a saved state in words."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from odb_stream.cli.output import print_json, print_table
from odb_stream.errors import ConfigError

EXAMPLE = "odb-stream state checkpoint/loader-rank0.json"


def state(
    file: Annotated[str, typer.Argument(help="A file of JSON or of torch.save that contains a Loader's state.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")] = False,
) -> None:
    """Explain a saved state: its rank, how far the run is, which samples are held, what was counted.

    Finds states anywhere in the file, for example inside a training checkpoint.
    """
    found = [explained(place, one) for place, one in states_in(_content(Path(file)), "")]
    if not found:
        raise ConfigError(f"{file} contains no state of a Loader: give a file with the result of Loader.state_dict()")
    if as_json:
        print_json(found if len(found) > 1 else found[0])
        return
    for one in found:
        table = Table("", "", title=one.pop("in the file at") or None, show_header=False)
        for name, value in one.items():
            words = ", ".join(f"{key} {number}" for key, number in value.items()) if isinstance(value, dict) else value
            table.add_row(name, str(words if words not in ("", None) else "none"))
        print_table(table)


def _content(path: Path) -> Any:
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{path} cannot be read ({error.strerror}): give a file with a saved state") from error
    try:
        return json.loads(data)
    except ValueError:
        import torch

    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch raises many types for a file that it did not write
        raise ConfigError(f"{path} is neither JSON nor a file written by torch.save: {error}") from error


def states_in(content: Any, place: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """The states in nested dicts and lists, with their paths."""
    if isinstance(content, dict):
        # The keys that every state has, of one rank or merged, whatever its version.
        if {"version", "world_size", "content"} <= content.keys():
            yield place, content
            return
        for name, value in content.items():
            yield from states_in(value, f"{place}.{name}".lstrip("."))
    elif isinstance(content, list | tuple):
        for number, value in enumerate(content):
            yield from states_in(value, f"{place}[{number}]")


def explained(place: str, found: dict[str, Any]) -> dict[str, Any]:
    """A state in words and numbers."""
    from odb_stream.checkpoint.fit import unseal
    from odb_stream.checkpoint.reshard import decoded, place_of
    from odb_stream.checkpoint.state import MergedState, RoundPlace
    from odb_stream.sample import position_state

    size = len(json.dumps(found))
    state = unseal(found)
    words: dict[str, Any] = {"in the file at": place}
    saved: tuple[RoundPlace | None, ...]
    if isinstance(state, MergedState):
        remaining, saved, emitted = state.remaining, state.places, state.everyone.emitted
        words["kind"] = f"merged from {state.identity.world_size} ranks, for any number of ranks"
        words["epoch"] = state.epoch
        steps, seen = state.earlier.steps, state.earlier.samples_seen
    else:
        run = state.state
        remaining, saved, emitted = run.remaining, (run.place,), run.mine.emitted
        words["kind"] = f"rank {state.rank} of {state.identity.world_size}"
        words["epoch"] = run.epoch
        steps, seen = run.steps, run.samples_seen
    words["steps made in the epoch"] = steps
    words["samples emitted in the epoch, all ranks"] = seen
    places = [place_of(one) for one in saved if one is not None]
    for number, (round_state, step) in enumerate(places):
        whose = f", rank {number}" if len(places) > 1 else ""
        window = round_state.window
        words[f"round{whose}"] = f"{round_state.number}, {len(round_state.mine) - 1 - step.index} steps of it are left"
        words[f"reading position{whose}"] = str(position_state(window.position))
        words[f"samples held{whose}"] = len(places[number].held)
        words[f"records read{whose}"] = window.received
        words[f"dropped{whose}"] = dict(step.drops.by_reason)
    if remaining is not None:
        samples = sum(row.stop - row.start for row in decoded(remaining))
        words["the epoch continued with"] = f"{samples} samples, when the ranks had changed"
    words["emitted in all epochs"] = emitted
    words["data"] = state.identity.data
    words["settings"] = dict(state.identity.settings)
    words["size of the state"] = f"{size:,} characters of JSON"
    return words
