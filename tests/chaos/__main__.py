"""Chaos: a cluster of three NATS servers and three brokers (and a fourth that comes and leaves) under load, while
faults come at random, from a seed.

    make chaos MINUTES=30 SEED=1

Ends with 0 if every promise was kept, else with 1: then what was broken is printed, and the histories, the faults and
all logs are kept in the directory that it names. Stopped by Ctrl-C or SIGTERM it ends what it started, with 130.
"""

from __future__ import annotations

import argparse
import shutil
import signal
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from itertools import islice, pairwise
from pathlib import Path
from statistics import median
from typing import Any

from fasti.cluster.nats import NatsConnection
from tests.chaos.round import Mortals, Round, insist
from tests.chaos.schedule import BROKERS, SERVERS, faults
from tests.chaos.trouble import Done, Trouble
from tests.cluster.cluster_rig import SHARDS
from tests.cluster.cut_rig import CutCluster, check_journals, cut_cluster, cut_servers
from tests.integration.trouble.facts import monotonic_us

CORE = 3
ROUND_S = 120.0
# A fault may be felt for so long after it was healed: servers elect leaders, clients connect again.
AFTER_US = 10_000_000
PROGRESS_S = 15.0


class Chaos:
    """One run."""

    def __init__(self, minutes: float, seed: int, rest_s: float, directory: Path) -> None:
        self._seconds, self._seed, self._rest_s = minutes * 60, seed, rest_s
        self._directory = directory
        self._began = time.monotonic()
        self._began_us = monotonic_us()
        self._counts: Counter[str] = Counter()
        self._pauses: dict[str, list[float]] = defaultdict(list)
        self._judged = 0
        self._rounds = 0

    def run(self) -> int:
        """The exit code."""
        self._directory.mkdir(parents=True, exist_ok=True)
        with (
            cut_servers() as servers,
            cut_cluster(servers, self._directory / "brokers", CORE) as (cluster, nats),
        ):
            try:
                self._run_rounds(cluster, nats)
            except AssertionError as error:
                self._print_table()
                print(f"\nBROKEN: {error}")
                self._keep(cluster)
                return 1
            except BaseException:
                self._keep(cluster)
                raise
            finally:
                # They need not hand anything over.
                for broker in cluster.brokers:
                    if broker.running:
                        broker.kill()
        self._print_table()
        print("every promise was kept")
        return 0

    def _run_rounds(self, cluster: CutCluster, nats: NatsConnection) -> None:
        mortals = Mortals()
        self._trouble = trouble = Trouble(cluster, nats, mortals, CORE)
        self._say(f"seed {self._seed}: the cluster is up")
        try:
            while self._left_s > 0:
                self._rounds += 1
                load = Round(self._rounds, self._seed, cluster.address, mortals)
                self._run_round(cluster, nats, load)
        finally:
            trouble.stop()

    def _run_round(self, cluster: CutCluster, nats: NatsConnection, load: Round) -> None:
        trouble = self._trouble
        try:
            with (self._directory / "workers.log").open("ab") as stderr:
                load.begin(2 * SHARDS, stderr)
                if self._rounds == 1:
                    for lane in (BROKERS, SERVERS):
                        drawn = faults(lane, self._seed, CORE, SHARDS, self._rest_s)
                        trouble.start(lane, drawn)
                else:
                    trouble.go_on()
                self._watch(load, min(ROUND_S, self._left_s))
                trouble.calm_down()
                self._check_alive(load)
                self._counts.update(load.finish())
            insist(lambda: check_journals(nats, cluster.name))
            self._judge_pauses(load.sent_at())
            self._say(f"round {self._rounds}: every promise was kept")
        except BaseException:
            load.save(self._directory)
            raise
        finally:
            load.close()

    def _watch(self, load: Round, seconds: float) -> None:
        until = time.monotonic() + seconds
        next_word = time.monotonic() + PROGRESS_S
        while time.monotonic() < until:
            time.sleep(0.5)
            self._check_alive(load)
            if time.monotonic() > next_word:
                next_word += PROGRESS_S
                counts = load.counts()
                self._say(
                    f"round {self._rounds}: {counts['sent']} sends, {counts['acked']} acks, "
                    f"{counts['changed']} changes, {counts['incremented']} increments; "
                    f"{len(self._trouble.done)} faults; now {', '.join(self._trouble.now.values()) or 'none'}"
                )

    def _check_alive(self, load: Round) -> None:
        if self._trouble.error is not None:
            raise self._trouble.error
        dead = load.dead()
        assert not dead, f"workers ended by themselves, see workers.log: {dead}"

    @property
    def _left_s(self) -> float:
        return self._began + self._seconds - time.monotonic()

    # What is told

    def _say(self, words: str) -> None:
        print(f"{time.monotonic() - self._began:7.1f} s  {words}", flush=True)

    def _judge_pauses(self, sent: Sequence[int]) -> None:
        """The longest time without an answered send that has to do with each fault of this round."""
        gaps = list(pairwise(sent))
        for done in self._trouble.done[self._judged :]:
            felt = [
                after - before
                for before, after in gaps
                if before < done.healed + AFTER_US and after > done.began
            ]
            if felt:
                self._pauses[done.fault.kind].append(max(felt) / 1e6)
        self._judged = len(self._trouble.done)

    def _print_table(self) -> None:
        """Other faults may have come at the same time, so a pause may be another one's."""
        print(f"\n{'fault':26} {'times':>5} {'longest pause: median, worst':>30}")
        for kind, count in sorted(Counter(d.fault.kind for d in self._trouble.done).items()):
            pauses = self._pauses.get(kind, [])
            told = f"{median(pauses):.1f} s, {max(pauses):.1f} s" if pauses else "-"
            print(f"{kind:26} {count:5} {told:>30}")
        told = ", ".join(f"{count} {what}" for what, count in sorted(self._counts.items()))
        minutes = (time.monotonic() - self._began) / 60
        print(f"{minutes:.1f} minutes, seed {self._seed}, {self._rounds} rounds: {told}")

    def _keep(self, cluster: CutCluster) -> None:
        """Everything that tells what happened. Times are those of the facts' `at`."""
        directory = self._directory
        (directory / "brokers.log").write_text(cluster.log())
        for number in range(3):
            (directory / f"n{number}.log").write_text(cluster.servers.log(number))
        now = [f"at the end: {words}" for words in self._trouble.now.values()]
        told = [*map(_line, self._trouble.done), *now]
        (directory / "faults.txt").write_text("\n".join(told) + "\n")
        print("the last faults (began, healed):", *told[-12:], sep="\n  ")
        print(f"histories and logs: {directory}")


def _line(done: Done) -> str:
    return f"{done.began} {done.healed} {done.fault}"


def main() -> int:
    parser = argparse.ArgumentParser(prog="chaos", description=__doc__)
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--rest", type=float, default=3.0, help="mean seconds between faults")
    parser.add_argument("--directory", type=Path, help="default: .cache/chaos/SEED, made anew")
    parser.add_argument("--schedule", action="store_true", help="print the first faults and end")
    given = parser.parse_args()
    if given.schedule:
        for lane in (BROKERS, SERVERS):
            for fault in islice(faults(lane, given.seed, CORE, SHARDS, given.rest), 100):
                print(f"{lane:8} after {fault.pause_s:5.2f} s: {fault}")
        return 0
    directory = given.directory or Path(".cache/chaos") / str(given.seed)
    shutil.rmtree(directory, ignore_errors=True)
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        return Chaos(given.minutes, given.seed, given.rest, directory.absolute()).run()
    except KeyboardInterrupt:
        print("stopped before its end")
        return 130


def _interrupt(*_: Any) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
