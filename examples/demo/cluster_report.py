"""What came of the demo on a cluster, for people."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

from examples.demo.cluster_facts import ClusterVerdict, Leadership
from examples.demo.command import lateness_row, promises
from fasti.cli import output


def print_cluster_verdict(found: ClusterVerdict, data: Path | None) -> None:
    """The story, what came of it, the promises, what the kills cost, and who led what when."""
    verdict = found.verdict
    story = [(f"{at:.1f} s", what) for at, what in verdict.story]
    output.print_table("time>", "what happened", rows=story)
    course = [
        ("sent", verdict.scheduled),
        ("moved", verdict.moved),
        ("cancelled", verdict.cancelled),
        ("delivered", verdict.delivered),
        ("acknowledged", found.acknowledged),
        ("delivered again (their ack had no answer)", verdict.delivered_again),
        ("changes without an answer", verdict.unknown),
        *((f"{name} at the end", count) for name, count in verdict.states.items() if count),
        ("the whole run", f"{verdict.seconds:.1f} s"),
    ]
    output.print_table("how many", ">", rows=course)
    output.print_table("promise", "broken>", "", rows=promises(verdict))
    names = ("lateness in ms", "messages>", "earliest>", "p50>", "p95>", "p99>", "max>")
    phases = found.phases
    output.print_table(*names, rows=[lateness_row(each.name, each.lateness) for each in phases])
    pauses = [(each.name, f"{each.silence_s:.2f} s") for each in phases]
    output.print_table("longest pause of a shard, as consumers saw it", ">", rows=pauses)
    output.print_table("shard>", "led by", rows=_reigns(found.leaderships))
    if data is not None:
        where = data / "cluster"
        output.console().print(
            f"The data is in {where}: try `fasti cluster up --dir {where}`.",
            markup=False,
            soft_wrap=True,
        )


def _reigns(leaderships: list[Leadership]) -> list[tuple[int, str]]:
    """Of each shard its leaders in order: `b2 (epoch 1) → b3 (epoch 2, from 9.1 s)`."""
    texts: dict[int, list[str]] = defaultdict(list)
    for each in leaderships:
        since = f", from {each.at_s:.1f} s" if texts[each.shard] else ""
        texts[each.shard].append(f"{each.broker} (epoch {each.epoch}{since})")
    return [(shard, " → ".join(found)) for shard, found in sorted(texts.items())]
