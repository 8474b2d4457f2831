"""How the answers of several processes become one: health, clocks, metrics."""

from __future__ import annotations

from fasti.client.shards.routing import Answer, Answers, Piece, Request, all_answers
from fasti.client.transport import Header
from fasti.errors import FastiError

# A broker that works says so sooner.
_HEALTH_S = 3.0


def one_per_process(request: Request) -> list[Piece]:
    """To every process once, by a shard that it has."""
    return [Piece(number, request.header) for number in request.transport.process_shards()]


def asked_for_health(request: Request) -> list[Piece]:
    """The same, with less patience: that one doesn't answer is an answer."""
    pieces = one_per_process(request)
    for piece in pieces:
        piece.patience_s = _HEALTH_S
    return pieces


def health(request: Request, pieces: list[Piece], answers: Answers) -> Answer:
    """Ready if all are; `processes` has what each says, one that doesn't answer included."""
    told: list[Header] = []
    for piece, answer in zip(pieces, answers, strict=True):
        if isinstance(answer, FastiError):
            reason = f"{answer.code}: {answer.message}"
            told.append({"ready": False, "state": "unavailable", "reason": reason})
        else:
            told.append(answer[0])
        told[-1] = {**told[-1], "shard": piece.shard}
    if all(isinstance(answer, FastiError) for answer in answers):
        all_answers(request, pieces, answers)
    # The first that has trouble says what is wrong.
    worst = min(told, key=lambda each: (each["ready"], each["state"] == "serving"))
    merged = {name: value for name, value in worst.items() if name != "shard"}
    threads = [trouble for each in told for trouble in each.get("threads", ())]
    if threads:
        merged["threads"] = threads
    if without := sorted(number for each in told for number in each.get("no_quorum", ())):
        merged["no_quorum"] = without
    return {**merged, "processes": told} if len(told) > 1 else (merged), []


def clock(request: Request, pieces: list[Piece], answers: Answers) -> Answer:
    """That of the process whose clock shows least: it is what waits go by."""
    found = [header for header, _ in all_answers(request, pieces, answers)]
    return min(found, key=lambda header: int(header["now_us"])), []


def accepted_clock(request: Request, pieces: list[Piece], answers: Answers) -> Answer:
    """Whether one of them had doubts."""
    found = [header for header, _ in all_answers(request, pieces, answers)]
    changed = any(header["changed"] for header in found)
    return {"changed": changed, "now_us": min(int(header["now_us"]) for header in found)}, []


def metrics(request: Request, pieces: list[Piece], answers: Answers) -> Answer:
    """One page: the samples of all processes, each metric described once."""
    found = [header["text"] for header, _ in all_answers(request, pieces, answers)]
    if len(found) == 1:
        return {"text": found[0]}, []
    described: dict[str, list[str]] = {}
    samples: dict[str, list[str]] = {}
    for text in found:
        name = ""
        for line in text.splitlines():
            if line.startswith("# "):
                name = line.split(" ", 3)[2]
                lines = described.setdefault(name, [])
                if line not in lines:
                    lines.append(line)
            elif line:
                samples.setdefault(name, []).append(line)
    lines = [line for name in described for line in [*described[name], *samples.get(name, ())]]
    return {"text": "\n".join([*samples.get("", ()), *lines]) + "\n"}, []
