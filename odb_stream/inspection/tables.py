"""The tables of an inspection, as text; the terminal and the HTML page show the same tables."""

from dataclasses import dataclass

import rich.table

from odb_stream.inspection.figures import PERCENTILES, Histogram, Spread
from odb_stream.inspection.memory import MemoryBudget
from odb_stream.inspection.report import Inspection

FEW_STEPS = 20
"""In an epoch of fewer steps than this, start and end decide the figures."""

SPREAD_HEADINGS = ("min", *(f"p{percent}" for percent in PERCENTILES), "max")


@dataclass(frozen=True)
class TextTable:
    """A table of text: one heading per column, rows with as many cells. The first column holds names.

    The columns in ``left`` hold words and are aligned to the left; all others hold figures.
    """

    title: str
    headings: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str = ""
    left: tuple[int, ...] = (0,)

    def for_terminal(self) -> rich.table.Table:
        """The table in the form that rich prints."""
        table = rich.table.Table(title=self.title, caption=self.note or None, show_header=any(self.headings))
        for column, heading in enumerate(self.headings):
            table.add_column(heading, justify="left" if column in self.left else "right")
        for row in self.rows:
            table.add_row(*row)
        return table


def all_tables(found: Inspection) -> list[TextTable]:
    """Every table, in the order in which the terminal shows them."""
    return [
        samples(found),
        lengths(found),
        TextTable("samples by tokens", ("tokens", "samples", ""), bars(found.histogram), left=(0, 2)),
        per_sample(found),
        *images(found),
        times(found),
        policies(found),
        settings(found),
        budget(found),
    ]


def samples(found: Inspection) -> TextTable:
    """How many records were read, kept and dropped."""
    counts = found.samples
    epoch = "of an unknown number" if counts.epoch is None else f"of {counts.epoch:,}"

    def row(name: str, count: int, words: str) -> tuple[str, ...]:
        return name, f"{count:,}", percent(count / counts.read), words

    rows = [
        ("records read", f"{counts.read:,}", "", "the whole epoch" if counts.whole_epoch else epoch),
        row("kept", counts.kept, ""),
        row("of these over the budget", counts.oversize, f"longer than {found.settings.budget:,} tokens"),
        *(row(f"dropped: {why}", count, f"first: {counts.examples[why]}") for why, count in counts.dropped.items()),
    ]
    if not counts.dropped:
        rows.append(row("dropped", 0, ""))
    return TextTable("samples", ("", "records", "share", ""), tuple(rows), left=(0, 3))


def lengths(found: Inspection) -> TextTable:
    """Sample lengths: all of them, then by source and by modality where there are several."""
    total = sum(subset.tokens for subset in found.histogram.by_modality)

    def row(name: str, tokens: int, spread: Spread) -> tuple[str, ...]:
        shown = (f"{value:,.0f}" for value in spread.values)
        return name, f"{spread.count:,}", percent(tokens / total), number(spread.mean), f"{spread.cv:.2f}", *shown

    rows = [row("all", total, found.lengths)]
    for subsets in (found.histogram.by_source, found.histogram.by_modality):
        if len(subsets) > 1:
            rows += [row(subset.name, subset.tokens, subset.lengths) for subset in subsets]
    return TextTable("tokens a sample", ("", "samples", "of tokens", "mean", "CV", *SPREAD_HEADINGS), tuple(rows))


def per_sample(found: Inspection) -> TextTable:
    """Supervised tokens, and the bytes that a sample holds in the window."""
    supervised, held = found.supervised, found.held_bytes
    rows = (
        ("supervised tokens", f"{supervised.tokens:,}"),
        ("supervised share of all tokens", percent(supervised.share)),
        ("quartiles of a sample's share", ", ".join(map(percent, (supervised.p25, supervised.p50, supervised.p75)))),
        ("bytes held in the window: mean", size(held.mean)),
        ("bytes held in the window: p95, largest", f"{size(held.p95)}, {size(held.max)}"),
    )
    return TextTable("a sample", ("", ""), rows)


def times(found: Inspection) -> TextTable:
    """Where the time goes."""
    several = any(row.source for row in found.times)
    rows = tuple(
        (row.stage, *[row.source] * several, f"{row.samples:,}", f"{row.milliseconds:.3f}", percent(row.share))
        for row in found.times
    )
    note, decoding = "measured in one process: workers divide everything except reading", found.decoding
    if decoding is not None:
        note += f"; decoding: {decoding.milliseconds_an_image:.2f} ms an image, measured on {decoding.images} images"
        if decoding.broken_samples:
            note += f"; the images of {decoding.broken_samples} samples did not decode, a run would drop these samples"
    headings = ("stage", *["source"] * several, "samples", "ms a sample", "share")
    return TextTable("time per stage", headings, rows, note, left=(0, 1) if several else (0,))


def images(found: Inspection) -> list[TextTable]:
    """The sizes of images; no table without images."""
    figures = found.images
    if figures is None:
        return []
    spreads = {
        "images a sample": figures.images_a_sample,
        "width (pixels)": figures.width,
        "height (pixels)": figures.height,
        "bytes of the file": figures.file_bytes,
        "patches": figures.patches,
        "tokens": figures.tokens,
    }
    rows = tuple(
        (name, number(spread.mean), *(number(round(value, 1)) for value in spread.values))
        for name, spread in spreads.items()
    )
    title = f"{figures.images:,} images in {figures.samples_with_images:,} samples"
    note = "width and height of the upright image in its file; patches and tokens as the model gets them"
    return [TextTable(title, ("", "mean", *SPREAD_HEADINGS), rows, note)]


def policies(found: Inspection) -> TextTable:
    """How every policy batches the lengths."""
    compared, given = found.policies, found.settings
    rows = tuple(
        (
            figures.policy,
            figures.layout,
            str(figures.window) if figures.policy in ("anchored", "paper-window") else "-",
            f"{figures.steps:,}",
            percent(figures.padding_ratio),
            f"{figures.critical_ratio:.3f}",
            f"{figures.over_budget_groups:,}",
            f"{figures.idle_steps:,}",
        )
        for figures in compared.figures
    )
    lengths = f"the {compared.measured:,} measured lengths"
    if compared.redrawn:
        lengths = f"{compared.lengths:,} lengths resampled from the {compared.measured:,} measured"
    note = "critical ratio: the time of synchronous steps over the ideal; gmt and bmt know all lengths beforehand"
    if any(figures.steps < FEW_STEPS for figures in compared.figures):
        note += "; an epoch of so few steps is mostly its start and end"
    if dropped := compared.figures[0].dropped:
        note += f"; {dropped:,} lengths over the budget are left out"
    title = f"policies on {lengths}: {given.world_size} ranks, budget {given.budget:,}"
    headings = ("policy", "layout", "window", "steps", "padding", "critical ratio", "groups over budget", "idle")
    return TextTable(title, headings, rows, note, left=(0, 1))


def settings(found: Inspection) -> TextTable:
    """The values of window and lookahead that were tried, and the suggested ones."""
    tried = {"window": found.suggestion.window, "lookahead": found.suggestion.lookahead}
    rows = []
    for name, suggested in tried.items():
        for point in suggested.curve:
            mark = "suggested" if point.value == suggested.value else ""
            rows.append((name, str(point.value), f"{point.critical_ratio:.4f}", size(point.host_bytes), mark))
    room = size(found.suggestion.host_memory)
    note = f"suggested: the smallest value within 0.5 % of the best, in {room} of host memory per rank"
    if tight := [name for name, suggested in tried.items() if not suggested.fits]:
        note += f"; not even the smallest {' and '.join(tight)} fits"
    title = f"window and lookahead: anchored, {found.settings.layout}"
    headings = ("setting", "value", "critical ratio", "bytes a rank", "")
    return TextTable(title, headings, tuple(rows), note, left=(0, 4))


def budget(found: Inspection) -> TextTable:
    """The budget that the accelerator's memory allows, or what to give for a suggestion."""
    memory = found.suggestion.budget
    if memory is None:
        advice = ("no budget is suggested", "give --memory with --model or --token-bytes")
        return TextTable("budget", ("", ""), (advice,), left=(0, 1))
    rows = [("memory of an accelerator, 90 % of it used", size(memory.memory))]
    if memory.parameters is not None:
        rows.append(("parameters", f"{memory.parameters / 1e6:,.0f} M"))
    rows.append(("weights, gradients, optimizer", size(memory.state_bytes)))
    for words, estimate in (
        ("estimated bytes a token", memory.token_bytes_no_checkpointing),
        ("the same with checkpointing", memory.token_bytes_checkpointing),
    ):
        if estimate is not None:
            rows.append((words, size(estimate)))
    if memory.token_bytes_measured:
        rows.append(("bytes a token, as given", size(memory.token_bytes)))
    rows.append(("suggested budget", f"{memory.tokens:,} tokens" if memory.tokens else "none: nothing fits"))
    if found.suggestion.oversize:
        rows.append(("samples longer than that", f"{found.suggestion.oversize:,} of {found.samples.kept:,}"))
    return TextTable("budget", ("", ""), tuple(rows), _budget_note(memory, with_images=found.images is not None))


def _budget_note(memory: MemoryBudget, *, with_images: bool) -> str:
    if not memory.tokens:
        return (
            "the states and one multiple of 256 tokens do not fit: shard the states over ranks and give the remaining "
            "bytes as --bytes-per-parameter, or use --checkpointing"
        )
    if memory.token_bytes_measured:
        return "states are not counted without --model" if memory.parameters is None else ""
    note = "activations in bf16 after Korthikanti et al. 2022, logits and their gradient in fp32"
    return f"{note}; without the vision encoder's: measure, and give --token-bytes" if with_images else note


# ---------------------------------------------------------------------------------------------------------------------
# Figures as text


def number(value: float | int) -> str:
    """A number with three significant digits below 100, else without decimals."""
    if isinstance(value, int) or abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def percent(share: float) -> str:
    """A share of 1 in per cent."""
    return f"{share:.1%}"


def size(count: float) -> str:
    """Bytes in the largest unit that leaves at least 1."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(count) < 1024:
            return f"{count:,.0f} {unit}" if unit == "B" or count >= 100 else f"{count:.3g} {unit}"
        count /= 1024
    return f"{count:.3g} TiB"


def bars(shown: Histogram, *, rows: int = 16, width: int = 40) -> tuple[tuple[str, ...], ...]:
    """A histogram as rows of text; neighbouring bins are merged until at most ``rows`` are left."""
    edges, counts = shown.edges, shown.counts
    step = -(-len(counts) // rows)
    starts = range(0, len(counts), step)
    sums = [sum(counts[start : start + step]) for start in starts]
    most = max(sums)
    return tuple(
        (
            f"{edges[start]:,} to {edges[min(start + step, len(counts))] - 1:,}",
            f"{count:,}",
            # A bin with few samples rounds to no bar at all and would look empty.
            "█" * round(width * count / most) or ("▏" if count else ""),
        )
        for start, count in zip(starts, sums, strict=True)
    )
