"""What a consumer has to send about rows, and what it has sent that has no reply yet."""

from __future__ import annotations

from dataclasses import dataclass

from fasti.client.machines.returns import Return, merged

# So many requests are under way at once.
_REQUESTS_MAX = 8


@dataclass(slots=True)
class Request:
    """A return that was written and has no reply yet."""

    number: int
    returned: Return
    # When it was written, on the broker's clock.
    sent_us: int
    # How many messages were asked for with it.
    credit: int = 0


class Requests:
    """Of one consumer. Numbers go on over connections."""

    def __init__(self) -> None:
        self.waiting: list[Return] = []
        # How many returns there were.
        self.added = 0
        self._open: dict[int, Request] = {}
        self._number = 0

    def add(self, returned: Return) -> None:
        """A return waits to be written."""
        self.added += 1
        returned.place = self.added
        self.waiting.append(returned)

    def next_number(self) -> int:
        """For a request that is not about rows, too."""
        self._number += 1
        return self._number

    @property
    def idle(self) -> bool:
        """Whether none is under way."""
        return not self._open

    @property
    def has_room(self) -> bool:
        """Whether another one may be under way."""
        return len(self._open) < _REQUESTS_MAX

    @property
    def all_answered(self) -> bool:
        """Whether nothing waits, and all that is under way is the client's own."""
        return not self.waiting and all(each.returned.quiet for each in self._open.values())

    def answered_to(self, mark: int) -> bool:
        """The same for those that were added up to then."""
        return all(returned.place > mark for returned in self.waiting) and all(
            each.returned.quiet or each.returned.place > mark for each in self._open.values()
        )

    def take_waiting(self) -> list[Return]:
        """What is to be written, the alike as one."""
        returns, self.waiting = merged(self.waiting), []
        return returns

    def begin(self, returned: Return, now_us: int) -> Request:
        """A return is written."""
        if not returned.place:
            self.added += 1
            returned.place = self.added
        request = Request(self.next_number(), returned, now_us)
        self._open[request.number] = request
        return request

    def answer(self, number: int) -> Request | None:
        """A reply came; None if it is to nothing that is under way."""
        return self._open.pop(number, None)

    def retry(self, returned: Return) -> None:
        """It is sent again: it may have been carried out."""
        returned.again = True
        self.waiting.append(returned)

    def retry_all(self) -> list[Return]:
        """The connection is lost: what user code waits for is sent again. All that waits now."""
        for request in self._open.values():
            if not request.returned.quiet:
                self.retry(request.returned)
        self._open.clear()
        return self.waiting

    def take_unanswered(self) -> list[Return]:
        """At the end: what was written, and then what was not."""
        unsent, self.waiting = self.waiting, []
        unanswered, self.waiting = [*self.retry_all(), *unsent], []
        return unanswered
