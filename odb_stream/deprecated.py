"""Names that moved: the old place still gives them, and says where they are now."""

import warnings
from collections.abc import Callable
from importlib import import_module
from typing import Any


def moved(old: str, new: str) -> Callable[[str], Any]:
    """A module's ``__getattr__`` for a module ``old`` whose names are all found in module ``new``.

    Each use is a DeprecationWarning that names the new place.
    """

    def get(name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(f"module {old!r} has no attribute {name!r}")
        value = getattr(import_module(new), name)
        warnings.warn(f"{old}.{name} is now {new}.{name}", DeprecationWarning, stacklevel=2)
        return value

    return get
