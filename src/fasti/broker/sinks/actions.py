"""Actions on sinks: publish a batch, drop stages, what is known, forget."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fasti.broker.caller import Caller
from fasti.broker.calls import requests
from fasti.broker.calls.requests import Action, Answer, Header, PartOf, Parts, none
from fasti.broker.sinks import rows
from fasti.broker.sinks.publishing import publish_batch
from fasti.broker.sinks.staging import check_sink
from fasti.core.sinks.commands import (
    DescribeSinks,
    DropStages,
    ForgetSink,
    PublishBatch,
    SinkAnswer,
    SinkView,
)
from fasti.errors import InvalidArgument, OutcomeUnknown, Overloaded

if TYPE_CHECKING:
    from fasti.broker.service import Service

# An answer comes after so long at the latest, whether all is carried out or not.
_ANSWER_S = 5.0
_PAGE_MAX = 1_000
_ON_CONFLICT = ("fail", "skip")


def _publish(service: Service, caller: Caller, header: Header, parts: Parts) -> Answer:
    none(parts)
    fields = requests.checked(
        header,
        sink=str,
        batch=int,
        operation="produce",
        on_conflict="fail",
        stages=list,
        dry_run=False,
    )
    check_sink(service, fields["sink"])
    if fields["batch"] < 0:
        raise InvalidArgument("batch must be 0 or more", field="batch", limit=0)
    if fields["operation"] not in rows.OPERATIONS:
        words = ", ".join(rows.OPERATIONS)
        raise InvalidArgument(f"{fields['operation']!r} is not one of {words}", field="operation")
    if fields["on_conflict"] not in _ON_CONFLICT:
        raise InvalidArgument("on_conflict must be fail or skip", field="on_conflict")
    skip = fields["on_conflict"] == "skip"
    place = (fields["sink"], fields["batch"], fields["operation"], _names(service, fields))
    until = service.runtime.monotonic() + _ANSWER_S
    try:
        with service.shares.sinks.making(caller, fields["sink"]):
            command = PublishBatch(*place, skip, dry_run=fields["dry_run"])
            answer = _decided(service, command, until)
    except OutcomeUnknown:
        # If it was decided after all, it is carried out.
        service.carrier.begin()
        raise
    if not answer.done and not fields["dry_run"]:
        service.carrier.begin()
        answer = _finished(service, fields["sink"], answer, until)
    ok = answer.outcomes.get("ok", 0)
    return {
        "rows": ok,
        "skipped": sum(answer.outcomes.values()) - ok,
        "repeated": answer.repeated,
        "done": answer.done,
        "outcomes": answer.outcomes,
    }, []


def _decided(service: Service, command: PublishBatch, until: float) -> SinkAnswer:
    """Waits, a while, until the batch before it is carried out."""
    while True:
        try:
            return publish_batch(service, command)
        except Overloaded:
            views: list[SinkView] = service.command(DescribeSinks(command.sink)).value
            busy = views and not views[0].done and views[0].batch < command.batch
            if not busy or service.runtime.monotonic() > until:
                raise
            service.carrier.begin()
            service.carrier.wait(command.sink, views[0].batch, until - service.runtime.monotonic())


def _finished(service: Service, sink: str, answer: SinkAnswer, until: float) -> SinkAnswer:
    view = service.carrier.wait(sink, answer.batch, until - service.runtime.monotonic())
    if view is None or view.batch != answer.batch:
        # Forgotten, or followed by the next one, which waited until it was done.
        return SinkAnswer(answer.batch, answer.repeated, True, {})
    return SinkAnswer(answer.batch, answer.repeated, view.done, view.outcomes)


def _names(service: Service, fields: Header) -> list[str]:
    names: list[Any] = fields["stages"]
    limit = service.limits.stages_max
    if len(names) > limit:
        raise InvalidArgument(f"at most {limit} stages", field="stages", limit=limit)
    if not all(isinstance(name, str) and name for name in names):
        raise InvalidArgument("stages must be named by strings", field="stages")
    return names


def _drop(service: Service, caller: Caller, header: Header, parts: Parts) -> Answer:
    none(parts)
    fields = requests.checked(header, sink=str, stages=list)
    command = DropStages(fields["sink"], _names(service, fields))
    return {"rows": int(service.command(command).value)}, []


def _sinks(service: Service, caller: Caller, header: Header, parts: Parts) -> Answer:
    none(parts)
    fields = requests.checked(header, sink="", after="", limit=_PAGE_MAX)
    if not 1 <= fields["limit"] <= _PAGE_MAX:
        raise InvalidArgument(f"limit must be 1 to {_PAGE_MAX}", field="limit", limit=_PAGE_MAX)
    views: list[SinkView] = service.command(DescribeSinks(**fields)).value
    whole = not fields["sink"] and len(views) == fields["limit"]
    return {
        "sinks": [_describe(view) for view in views],
        "next_after": views[-1].sink if whole else "",
    }, []


def _describe(view: SinkView) -> Header:
    published = view.batch >= 0
    return {
        "sink": view.sink,
        "batch": view.batch if published else None,
        "operation": view.operation,
        "done": view.done,
        "published_us": view.published_us if published else None,
        "outcomes": view.outcomes,
        "stages": view.stages,
        "rows": view.rows,
    }


def _forget(service: Service, caller: Caller, header: Header, parts: Parts) -> Answer:
    none(parts)
    sink = requests.checked(header, sink=str)["sink"]
    return {"forgotten": bool(service.command(ForgetSink(sink), caller).value)}, []


ACTIONS: dict[str, Action] = {
    "publish_batch": _publish,
    "drop_stages": _drop,
    "sinks": _sinks,
    "forget_sink": _forget,
}
TRANSACTION_PARTS: dict[str, PartOf] = {}
