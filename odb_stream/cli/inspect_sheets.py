"""The tables of an inspection, from its plain form; the terminal and the page show the same ones."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from odb_stream.cli.sheets import Sheet, bars, number, share, size

Plain = Mapping[str, Any]

FEW_STEPS = 20

_PLACES = ("min", "p5", "p25", "p50", "p75", "p95", "p99", "max")


def sheets(found: Plain) -> list[Sheet]:
    """All tables for the terminal, in order, with the histogram drawn in text."""
    pictures = [] if found["images"] is None else [images(found)]
    first = [samples(found), lengths(found), histogram(found), per_sample(found), *pictures, times(found)]
    return [*first, policies(found), settings(found), budget(found)]


def samples(found: Plain) -> Sheet:
    """What was read and what became of it."""
    counts = found["samples"]
    read, epoch = counts["read"], counts["epoch"]
    of = "of an unknown number" if epoch is None else f"of {epoch:,}"
    of = "the whole epoch" if counts["whole_epoch"] else of
    rows = [
        ("records read", f"{read:,}", "", of),
        ("kept", f"{counts['kept']:,}", share(counts["kept"] / read), ""),
        (
            "of these over the budget",
            f"{counts['oversize']:,}",
            share(counts["oversize"] / read),
            f"longer than {found['settings']['budget']:,} tokens",
        ),
    ]
    rows += [
        (f"dropped: {reason}", f"{count:,}", share(count / read), f"first: {counts['examples'][reason]}")
        for reason, count in counts["dropped"].items()
    ]
    if not counts["dropped"]:
        rows.append(("dropped", "0", share(0), ""))
    return Sheet("samples", ("", "records", "share", ""), tuple(rows), words=(3,))


def lengths(found: Plain) -> Sheet:
    """The lengths of all samples, of each source and of each modality."""
    histogram = found["histogram"]
    total = sum(part["tokens"] for part in histogram["by_modality"])
    rows = [_length_row("all", total, total, found["lengths"])]
    for parts in (histogram["by_source"], histogram["by_modality"]):
        if len(parts) > 1:
            rows += [_length_row(part["name"], part["tokens"], total, part["lengths"]) for part in parts]
    return Sheet("tokens a sample", ("", "samples", "of tokens", "mean", "CV", *_PLACES), tuple(rows))


def _length_row(name: str, tokens: int, total: int, spread: Plain) -> tuple[str, ...]:
    places = (f"{spread[place]:,.0f}" for place in _PLACES)
    return (name, f"{spread['count']:,}", share(tokens / total), number(spread["mean"]), f"{spread['cv']:.2f}", *places)


def histogram(found: Plain) -> Sheet:
    """The lengths as bars of text, for the terminal."""
    drawn = found["histogram"]
    return Sheet("samples by tokens", ("tokens", "samples", ""), bars(drawn["edges"], drawn["counts"]), words=(2,))


def per_sample(found: Plain) -> Sheet:
    """Supervised tokens, and bytes in the window."""
    supervised, held = found["supervised"], found["held_bytes"]
    quartiles = ", ".join(share(supervised[place]) for place in ("p25", "p50", "p75"))
    rows = (
        ("supervised tokens", f"{supervised['tokens']:,}"),
        ("supervised share of all tokens", share(supervised["share"])),
        ("quartiles of a sample's share", quartiles),
        ("bytes held in the window: mean", size(held["mean"])),
        ("bytes held in the window: p95, largest", f"{size(held['p95'])}, {size(held['max'])}"),
    )
    return Sheet("a sample", ("", ""), rows)


def times(found: Plain) -> Sheet:
    """Where the time goes."""
    several = any(row["source"] for row in found["times"])
    rows = tuple(
        (
            row["stage"],
            *((row["source"],) if several else ()),
            f"{row['samples']:,}",
            f"{row['milliseconds']:.3f}",
            share(row["share"]),
        )
        for row in found["times"]
    )
    note, decoding = "of one process: workers share all of it but reading", found["decoding"]
    if decoding is not None:
        note += (
            f"; decoding: {decoding['milliseconds_an_image']:.2f} ms an image, measured on {decoding['images']} images"
        )
        if decoding["broken_samples"]:
            note += f", of which those of {decoding['broken_samples']} samples did not decode and would be dropped"
    headings = ("stage", *(("source",) if several else ()), "samples", "ms a sample", "share")
    return Sheet("time per stage", headings, rows, note, words=(1,) if several else ())


def images(found: Plain) -> Sheet:
    """The sizes of images."""
    figures = found["images"]
    names = {
        "images_a_sample": "images a sample",
        "width": "width (pixels)",
        "height": "height (pixels)",
        "file_bytes": "bytes of the file",
        "patches": "patches",
        "tokens": "tokens",
    }
    rows = tuple(
        (words, number(figures[name]["mean"]), *(number(round(figures[name][place], 1)) for place in _PLACES))
        for name, words in names.items()
    )
    title = f"{figures['images']:,} images in {figures['samples_with_images']:,} samples"
    note = "sizes are those of the upright image in its file, patches and tokens what the model gets"
    return Sheet(title, ("", "mean", *_PLACES), rows, note)


def policies(found: Plain) -> Sheet:
    """What every policy would give."""
    compared, given = found["policies"], found["settings"]
    rows = tuple(
        (
            figures["policy"],
            figures["layout"],
            str(figures["window"]) if figures["policy"] in ("anchored", "paper-window") else "-",
            f"{figures['steps']:,}",
            share(figures["padding_ratio"]),
            f"{figures['critical_ratio']:.3f}",
            f"{figures['over_budget_groups']:,}",
            f"{figures['idle_steps']:,}",
        )
        for figures in compared["figures"]
    )
    drawn = f"{compared['lengths']:,} lengths drawn again from the {compared['measured']:,} measured"
    source = drawn if compared["redrawn"] else f"the {compared['measured']:,} measured lengths"
    title = f"policies on {source}: {given['world_size']} ranks, budget {given['budget']:,}"
    dropped = compared["figures"][0]["dropped"]
    note = "critical ratio: the time of synchronous steps over the ideal; gmt and bmt know all lengths beforehand"
    if figures_of_few_steps(compared["figures"]):
        note += "; an epoch of so few steps is mostly its start and end"
    if dropped:
        note += f"; {dropped:,} lengths over the budget are left out"
    headings = ("policy", "layout", "window", "steps", "padding", "critical ratio", "groups over budget", "idle")
    return Sheet(title, headings, rows, note, words=(1,))


def figures_of_few_steps(rows: Iterable[Plain]) -> bool:
    """Whether an epoch is so short that its start and end decide its figures."""
    return any(row["steps"] < FEW_STEPS for row in rows)


def settings(found: Plain) -> Sheet:
    """Window and lookahead: what was tried and what is suggested."""
    suggestion = found["suggestion"]
    rows = tuple(_setting_rows("window", suggestion["window"])) + tuple(
        _setting_rows("lookahead", suggestion["lookahead"])
    )
    room = size(suggestion["host_memory"])
    note = f"suggested: the smallest within 0.5 % of the best, in {room} of host memory a rank"
    tight = [name for name in ("window", "lookahead") if not suggestion[name]["fits"]]
    if tight:
        note += f"; not even the smallest {' and '.join(tight)} fits"
    title = f"window and lookahead: anchored, {found['settings']['layout']}"
    return Sheet(title, ("setting", "value", "critical ratio", "bytes a rank", ""), rows, note, words=(4,))


def _setting_rows(name: str, suggested: Plain) -> Iterator[tuple[str, ...]]:
    for point in suggested["curve"]:
        mark = "suggested" if point["value"] == suggested["value"] else ""
        yield name, str(point["value"]), f"{point['critical_ratio']:.4f}", size(point["host_bytes"]), mark


def budget(found: Plain) -> Sheet:
    """The budget that the memory allows, or how to have one suggested."""
    suggestion = found["suggestion"]
    memory = suggestion["budget"]
    if memory is None:
        rows = [("no budget is suggested", "give --memory with --model or --token-bytes")]
        return Sheet("budget", ("", ""), tuple(rows), words=(1,))
    rows = [("memory of an accelerator, 90 % of it used", size(memory["memory"]))]
    if memory["parameters"] is not None:
        rows.append(("parameters", f"{memory['parameters'] / 1e6:,.0f} M"))
    rows.append(("weights, gradients, optimizer", size(memory["state_bytes"])))
    for words, key in (
        ("estimated bytes a token", "token_bytes_no_checkpointing"),
        ("the same with checkpointing", "token_bytes_checkpointing"),
    ):
        if memory[key] is not None:
            rows.append((words, size(memory[key])))
    if memory["token_bytes_measured"]:
        rows.append(("bytes a token, as given", size(memory["token_bytes"])))
    rows.append(("suggested budget", f"{memory['tokens']:,} tokens" if memory["tokens"] else "none: nothing fits"))
    if suggestion["oversize"]:
        rows.append(("samples longer than that", f"{suggestion['oversize']:,} of {found['samples']['kept']:,}"))
    return Sheet("budget", ("", ""), tuple(rows), _budget_note(found, memory))


def _budget_note(found: Plain, memory: Plain) -> str:
    if not memory["tokens"]:
        return (
            "the states and one multiple of 256 tokens do not fit: shard the states over ranks and give what is left "
            "of them as --bytes-per-parameter, or use --checkpointing"
        )
    if memory["token_bytes_measured"]:
        return "states are not counted: none without --model" if memory["parameters"] is None else ""
    note = "activations in bf16 after Korthikanti et al. 2022, logits and their gradient in fp32"
    return note + (
        "; those of the vision encoder are not in it: measure, and give --token-bytes" if found["images"] else ""
    )
