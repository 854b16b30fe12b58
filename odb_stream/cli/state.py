"""The command ``state``: a saved state in words."""

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
    file: Annotated[str, typer.Argument(help="A JSON file, or a file that torch.save wrote, with a Loader's state.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")] = False,
) -> None:
    """Explain a saved state: whose it is, where the run stands, what is held, what was counted.

    States are found wherever they lie in the file, for example in a training checkpoint.
    """
    found = [explained(place, one) for place, one in states_in(_content(Path(file)), "")]
    if not found:
        raise ConfigError(f"{file} holds no state of a Loader: give a file with what Loader.state_dict() returned")
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
    """What a file holds."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{path} cannot be read ({error.strerror}): name a file with a saved state") from error
    try:
        return json.loads(data)
    except ValueError:
        import torch

    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch says by many types that a file is none of its own
        raise ConfigError(f"{path} is neither JSON nor a file of torch.save: {error}") from error


def states_in(content: Any, place: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """The states in nested dicts and lists, with their places."""
    if isinstance(content, dict):
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
    from odb_stream.checkpoint.codec import saved_step
    from odb_stream.checkpoint.fit import left_of, unsealed
    from odb_stream.checkpoint.reshard import rows_from

    size = len(json.dumps(found))
    found = unsealed(found)
    words: dict[str, Any] = {"in the file at": place}
    if "owners" in found:
        parts = [saved_step(owner["progress"]) for owner in found["owners"] if owner["progress"] is not None]
        words["kind"] = f"merged from {found['world_size']} ranks, for any number of ranks"
    else:
        parts = [saved_step(found["progress"])] if found["progress"] is not None else []
        words["kind"] = f"rank {found['rank']} of {found['world_size']}"
    words["epoch"] = found["epoch"]
    carried = found["carried"] or {"steps": 0, "samples_seen": 0}
    words["steps made in the epoch"] = parts[0].progress.steps if parts else carried["steps"]
    seen = parts[0].progress.samples_seen if parts else carried["samples_seen"]
    words["samples emitted in the epoch, all ranks"] = seen
    for number, part in enumerate(parts):
        whose = f", rank {number}" if len(parts) > 1 else ""
        stands = part.begin()
        round_state, progress = stands
        left = len(round_state.mine) - 1 - progress.place
        words[f"round{whose}"] = f"{round_state.round}, {left} steps of it are left"
        words[f"reading position{whose}"] = str(part.round["position"])
        words[f"samples held{whose}"] = len(left_of(stands))
        words[f"records read{whose}"] = round_state.packer.received
        words[f"dropped{whose}"] = dict(progress.packer.by_reason)
    if found["rest"] is not None:
        rows = rows_from(found["rest"])
        words["the epoch went on with"] = f"{sum(row.stop - row.start for row in rows)} samples, when ranks had changed"
    books = found["report"].get("mine") or found["report"]["everyone"]
    words["emitted in all epochs"] = books["emitted"]
    words["data"] = found["data"]
    words["settings"] = dict(found["settings"])
    words["size of the state"] = f"{size:,} characters of JSON"
    return words
