"""The demo's course on a cluster: a broker is killed, then a NATS server, and everybody goes on."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from examples.demo.cluster_facts import ClusterFacts, ClusterVerdict
from examples.demo.cluster_run import ClusterRun, LeaderWatch
from examples.demo.facts import Show
from examples.demo.story import Story
from examples.demo.traffic import now_us
from fasti.client.client import connect

# Without it the demo goes on, and shows shards that move for another reason than a kill.
_SETTLE_S = 30.0


class ClusterStory(Story):
    """One run, in a new directory. `say` is told each line of the story when it happens."""

    # Longer than NATS needs to elect another leader: nobody is thought dead who isn't.
    lease = "30s"

    def __init__(
        self,
        directory: Path,
        near: int,
        far: int,
        seconds: float,
        show: Show,
        say: Callable[[str], None],
    ) -> None:
        super().__init__(directory, near, far, seconds, show)
        self._say = say
        self.facts: ClusterFacts = ClusterFacts()
        self._begun = time.monotonic()

    def run_cluster(self) -> ClusterVerdict:
        """The whole of it. However it ends, nothing that it started is left."""
        try:
            return self._run()
        except KeyboardInterrupt:
            self._say("Stopped: nothing is left of it.")
            raise

    def _run(self) -> ClusterVerdict:
        self._happened("three NATS servers and three brokers are started")
        with ClusterRun(
            self._directory / "cluster", lambda text: self.tell("came_back", text)
        ) as run:
            self._happened(f"every one of {run.shards} shards has a leader")
            with (
                connect(run.address) as client,
                LeaderWatch(run.address, self.tell, now_us) as watch,
            ):
                self._settle(watch)
                self._play(run.address, client, lambda: self._kill_two(run, watch))
                verdict = self._end(client)
            self._show("ending the cluster", verdict.delivered, verdict.delivered)
        verdict.seconds = round(time.monotonic() - self._begun, 3)
        return self.facts.cluster_verdict(verdict)

    def _settle(self, watch: LeaderWatch) -> None:
        """The first broker that was ready led all shards, and hands over the others' after ten seconds."""
        until = time.monotonic() + _SETTLE_S
        while not watch.settled and time.monotonic() < until:
            self._show("the brokers share the shards out", 0, 1)
            self._take(wait_s=0.1)

    def _kill_two(self, run: ClusterRun, watch: LeaderWatch) -> None:
        """The broker that leads the most shards, then the NATS server that leads the most journals."""
        begin_us, end_us = self.facts.window
        quarter_us = (end_us - begin_us) // 4
        self.facts.begins.append((begin_us, "while nothing is wrong"))
        self._watch("delivering", until_us=begin_us + quarter_us)
        leads = Counter(broker for broker, _ in watch.leaders.values())
        [(broker, shards)] = leads.most_common(1)
        self.facts.killed_at_us = self.facts.started_again_us = now_us()
        self.facts.begins.append((now_us(), f"from the kill of {broker} on"))
        run.kill(broker)
        self._happened(f"{broker} is killed with SIGKILL; it led {shards} of {run.shards} shards")
        self._watch("delivering without a broker", until_us=begin_us + 2 * quarter_us)
        journals = run.leaders_of_journals()
        [(server, count)] = Counter(journals.values()).most_common(1)
        self.facts.begins.append((now_us(), f"from the kill of {server} on"))
        run.kill(server)
        self._happened(
            f"{server} is killed with SIGKILL; of NATS it led the journals of {count} of {run.shards} shards"
        )
        self._watch("delivering without a NATS server", until_us=end_us)

    def _take(self, wait_s: float = 0.0) -> None:
        try:
            super()._take(wait_s)
        except KeyboardInterrupt:
            # Here the story waits, most of the time.
            self._say("Ctrl-C: first the workers end, then the cluster.")
            raise

    def _take_fact(self, fact: str, values: tuple[object, ...]) -> None:
        if fact == "came_back":
            self._happened(str(values[0]))
            return
        super()._take_fact(fact, values)
        if fact == "led":
            _, shard, broker, epoch = values
            self._happened(f"{broker} leads shard {shard}, epoch {epoch}")

    def _happened(self, what: str) -> None:
        super()._happened(what)
        self._say(f"{time.monotonic() - self._begun:6.1f} s  {what}")
