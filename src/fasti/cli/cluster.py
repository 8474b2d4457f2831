"""`fasti cluster`: how a cluster of brokers is, and a whole one on this machine."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fasti.cli import output
from fasti.cli.commands import group
from fasti.cli.connection import Client, with_client
from fasti.cli.emptying import Emptying
from fasti.cli.exits import fail_unless, print_error, terminated_softly
from fasti.cli.options import AsJson, duration
from fasti.errors import FastiError, TimedOut, Unavailable
from fasti.extras import required
from fasti.settings.values import Address, read_address

if TYPE_CHECKING:
    from fasti.doors.cluster_up import ClusterEvent

app = group("cluster")
Broker = Annotated[str, typer.Argument(metavar="BROKER", help="Its name, as `status` shows it.")]
_DRAIN_S = 120.0
# How often a cluster that is watched is looked at.
_LOOK_S = 0.5
# What a leader whose clock is ahead may be, before it gives its shards to others.
_SKEW_MS = 250


def _listen(text: str) -> Address:
    try:
        return read_address(text)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error


@app.command()
@with_client
def status(
    client: Client,
    as_json: AsJson = False,
    watch: Annotated[
        bool, typer.Option("--watch", "-w", help="Show it anew when it changes, until Ctrl-C.")
    ] = False,
) -> None:
    """The brokers of a cluster, who leads which shard, and its NATS servers. Ends with 1 if anything is wrong.

    It is what the first broker that answers knows of the others: who lives, how far standbys are behind, in packs,
    whether enough NATS servers keep each shard, whether they were checked, and damage. With `--watch` and `--json`
    each change is a line.

    [dim]fasti cluster status --watch[/dim]
    """
    if not watch:
        view = _ask(client)
        _show(view, as_json)
        fail_unless(not troubles_of(view))
        return
    with terminated_softly():
        for view in _changes(client):
            if as_json:
                output.print_json_lines([view])
                continue
            # Nothing where the output is no terminal.
            output.console().clear()
            _show(view, as_json=False)


def _ask(client: Client) -> dict[str, Any]:
    view: dict[str, Any] = client.transport.call("cluster")[0]
    return view


def _changes(client: Client) -> Iterator[dict[str, Any]]:
    """Without an end. Whether it is another broker that answers is no change."""
    last = ""
    while True:
        try:
            view = _ask(client)
        except (Unavailable, TimedOut) as error:
            if last != error.code:
                print_error(error)
            last = error.code
        else:
            now = json.dumps({**view, "broker": "", "members": _steady(view["members"])})
            if now != last:
                yield view
            last = now
        time.sleep(_LOOK_S)


def _steady(members: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Without what is never twice the same."""
    return [{**member, "clock_ahead_ms": 0} for member in members]


def _show(view: dict[str, Any], as_json: bool) -> None:
    if as_json:
        output.print_json(view)
        return
    typer.echo(f"cluster {view['cluster']}, as {view['broker']} sees it")
    _show_members(view)
    _show_shards(view)
    _show_servers(view)
    troubles = troubles_of(view)
    for trouble in troubles:
        typer.secho(f"! {trouble}", fg="red", bold=True)
    if not troubles:
        typer.secho(f"{output.count_of(len(view['shards']), 'shard')}, all is well", fg="green")


def _show_members(view: dict[str, Any]) -> None:
    leads = [shard["leader"] for shard in view["shards"]]
    output.print_table(
        *("broker", "address", "state", "leads>", "weight>", "clock>"),
        rows=(
            (
                *(member["name"], member["address"], member["state"], leads.count(member["name"])),
                *(f"{member['weight']:g}", f"{member['clock_ahead_ms']:+.0f} ms"),
            )
            for member in view["members"]
        ),
    )


def _show_shards(view: dict[str, Any]) -> None:
    streams = {each["shard"]: each for each in view.get("streams", ())}

    def quorum(shard: int) -> str:
        if shard not in streams:
            return "?"
        kept = streams[shard]
        return f"{kept['copies']} copies" if kept["has_quorum"] else "NO QUORUM"

    output.print_table(
        *("shard>", "leader", "address", "epoch>", "standbys, behind by", "NATS", "led there by"),
        rows=(
            (
                *(
                    shard["shard"],
                    shard["leader"] or "(none)",
                    shard["address"] or "",
                    shard["epoch"],
                ),
                ", ".join(
                    map(_standby, shard["standbys"], map(shard["lags"].get, shard["standbys"]))
                ),
                quorum(shard["shard"]),
                (streams.get(shard["shard"]) or {}).get("leader") or "",
            )
            for shard in view["shards"]
        ),
    )


def _standby(name: str, lag: int | None) -> str:
    return f"{name} (cold)" if lag is None else f"{name} {lag}"


def _show_servers(view: dict[str, Any]) -> None:
    if not view.get("servers"):
        return
    output.print_table(
        *("NATS server", "version", "state", "leads streams>"),
        rows=(
            (server["name"], server["version"] or "", server["state"], server["leads"])
            for server in view["servers"]
        ),
    )


def troubles_of(view: dict[str, Any]) -> list[str]:
    """What is wrong with a cluster, in sentences."""
    found = []
    for member in view["members"]:
        if member["state"] != "alive" and member["weight"]:
            # One that was drained may go.
            found.append(f"broker {member['name']} is {member['state']}")
        elif abs(member["clock_ahead_ms"]) > _SKEW_MS:
            side = "ahead of" if member["clock_ahead_ms"] > 0 else "behind"
            found.append(
                f"the clock of broker {member['name']} is {abs(member['clock_ahead_ms']):.0f} ms {side} the others"
            )
    if view["leaderless"]:
        numbers = ", ".join(map(str, view["leaderless"]))
        count = output.count_of(len(view["shards"]), "shard")
        found.append(f"without a leader: {numbers} of {count}")
    lost = [str(each["shard"]) for each in view.get("streams", ()) if not each["has_quorum"]]
    if lost:
        found.append(f"no quorum in NATS for shard {', '.join(lost)}")
    for server in view.get("servers", ()):
        if server["problem"]:
            found.append(server["problem"])
        elif server["state"] == "away":
            found.append(f"NATS server {server['name']} doesn't answer")
    if "servers" in view and not view["servers"]:
        found.append("no NATS server can be asked for its settings and for damage")
    found += [
        f"damage: the copy of {each['stream']} on NATS server {each['server']} {each['what']}"
        for each in view.get("damages", ())
    ]
    return found


@app.command()
@with_client
def drain(
    client: Client,
    broker: Broker,
    wait: Annotated[
        bool, typer.Option(help="Wait until it leads nothing and stands by for nothing.")
    ] = True,
    timeout: Annotated[
        timedelta | None, duration("How long to wait at most; it goes on then. Default: 2m.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Empty a broker, so that it can be stopped: it hands its shards over one after the other.

    From then on it leads nothing and stands by for nothing, until `fasti cluster undrain` or until it is
    started again. Any broker of the cluster takes the command. The last broker that can lead is not drained.

    [dim]fasti cluster drain b1[/dim]
    """
    changed = _tell(client, broker, undo=False)
    if not as_json:
        typer.echo(f"{broker} is drained" if changed else f"{broker} was drained already")
    if not wait:
        if as_json:
            output.print_json({"broker": broker, "changed": changed})
        return
    within_s = _DRAIN_S if timeout is None else timeout.total_seconds()
    moves = Emptying(broker)
    for move in moves.watch(partial(_ask, client), within_s):
        if not as_json:
            typer.echo(f"shard {move.shard}: {move.leader} leads it now, epoch {move.epoch}")
    if as_json:
        shards = [move._asdict() for move in moves.done]
        output.print_json({"broker": broker, "changed": changed, "shards": shards})
    else:
        typer.echo(f"{broker} leads nothing and stands by for nothing: it can be stopped.")


@app.command()
@with_client
def undrain(client: Client, broker: Broker, as_json: AsJson = False) -> None:
    """Let a broker lead again that was drained. It gets its share back after ten seconds.

    Ends with 1 if it was not drained.

    [dim]fasti cluster undrain b1[/dim]
    """
    changed = _tell(client, broker, undo=True)
    if as_json:
        output.print_json({"broker": broker, "changed": changed})
    elif changed:
        typer.echo(f"{broker} leads again, when it has ranked first for ten seconds")
    else:
        typer.echo(f"{broker} was not drained", err=True)
    fail_unless(changed)


def _tell(client: Client, broker: str, undo: bool) -> bool:
    reply = client.transport.call("drain", {"broker": broker, "undo": undo})[0]
    return bool(reply["changed"])


@app.command()
def up(
    brokers: Annotated[
        int | None, typer.Option(min=1, max=16, help="Brokers.", show_default="3, or as before")
    ] = None,
    nats: Annotated[
        int | None,
        typer.Option(min=1, max=5, help="NATS servers: 1, 3 or 5.", show_default="3, or as before"),
    ] = None,
    directory: Annotated[
        Path, typer.Option("--dir", metavar="DIR", help="Where everything is kept.")
    ] = Path("fasti-cluster"),
    shards: Annotated[
        int | None,
        typer.Option(
            min=2, max=256, help="Shards, fixed for good.", show_default="3, or as before"
        ),
    ] = None,
    listen: Annotated[
        Any,
        typer.Option(
            parser=_listen,
            metavar="HOST:PORT",
            help="The first broker's address; the ports that follow are the others'. Port 0: any.",
            show_default="127.0.0.1:7170, or as before",
        ),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print what happens as JSON, a line for each event.")
    ] = False,
) -> None:
    """Run a whole cluster on this machine until Ctrl-C: NATS servers, and brokers that keep their data there.

    For trying things out and for tests: only programs of this machine reach it, and all of them may. What
    dies is started again. Started again on the same directory it goes on with the same data and ports.

    [dim]fasti cluster up --brokers 3[/dim]
    """
    with required("broker", "`fasti cluster up`"):
        from fasti.doors.cluster_plan import settle_plan
        from fasti.doors.cluster_up import ClusterUp
        from fasti.doors.lifetime import end
        from fasti.doors.nats_servers import find_server
    with required("cluster", "`fasti cluster up`"):
        import nats as _nats  # noqa: F401

    try:
        find_server()
        plan = settle_plan(directory, brokers, nats, shards, listen)
        ClusterUp(plan, lambda event: _show_event(event, as_json)).run()
    except FastiError as error:
        end(print_error(error))
    end(0)


def _show_event(event: ClusterEvent, as_json: bool) -> None:
    typer.echo(json.dumps(event.to_json()) if as_json else event.text)
    # Whoever reads it through a pipe waits for it.
    sys.stdout.flush()
