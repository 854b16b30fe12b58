"""Reads the package's source with ``ast`` and says which module imports which, without importing anything."""

import ast
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

PACKAGE = "odb_stream"
ROOT = Path(__file__).parents[2]


class Import(NamedTuple):
    """One import statement's target, as far as it can be told from the source."""

    target: str
    line: int
    at_module_level: bool


def sources(root: Path = ROOT) -> dict[str, str]:
    """Module name -> source text, for every module of the package."""
    found = {}
    for path in sorted((root / PACKAGE).rglob("*.py")):
        parts = path.relative_to(root).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        found[name] = path.read_text(encoding="utf-8")
    return found


def imports(module: str, modules: Mapping[str, str]) -> list[Import]:
    """What a module imports, relative imports made absolute.

    ``from package import name`` counts as an import of ``package.name`` where that is a module of this package, else
    of ``package``. Imports under ``if TYPE_CHECKING:`` do not count: they are gone when the program runs.
    """
    is_package = any(name.startswith(f"{module}.") for name in modules)
    inside = module if is_package else module.rpartition(".")[0]
    found = []
    for node, at_module_level in _running_nodes(ast.parse(modules[module]), at_module_level=True):
        if isinstance(node, ast.Import):
            found += [Import(alias.name, node.lineno, at_module_level) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                ancestors = inside.split(".")
                base = ".".join(ancestors[: len(ancestors) - node.level + 1] + ([base] if base else []))
            for alias in node.names:
                full = f"{base}.{alias.name}"
                found.append(Import(full if full in modules else base, node.lineno, at_module_level))
    return found


def _running_nodes(tree: ast.AST, *, at_module_level: bool) -> Iterator[tuple[ast.AST, bool]]:
    """Every node that runs, with whether it runs when the module is imported."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test).split(".")[-1] == "TYPE_CHECKING":
            for other in node.orelse:
                yield other, at_module_level
                yield from _running_nodes(other, at_module_level=at_module_level)
            continue
        yield node, at_module_level
        deferred = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        yield from _running_nodes(node, at_module_level=at_module_level and not deferred)
