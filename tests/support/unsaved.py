"""The saving half of a packing stage for tests in which nothing is resumed."""

from typing import Any

from odb_stream.batching.groups import Group


class Unsaved:
    """Tells nothing of where it stands, and has nothing to read again."""

    source_ended = False

    def passed(self, step: int) -> None:
        pass

    def snapshot(self) -> None:
        return None

    def progress(self) -> None:
        return None

    def references(self, group: Group[Any]) -> tuple[Any, ...]:
        return group.samples

    def reread(self, groups: list[Any]) -> list[Any]:
        assert not groups, "nothing is resumed here"
        return []
