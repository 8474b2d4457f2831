"""A bank as banks are: it declines, and it is busy at times."""

from decimal import Decimal


class Busy(Exception):
    """Later it may work."""


class Declined(Exception):
    """It never will."""


# How often the next charges of a card find the bank busy.
busy: dict[str, int] = {"card-busy": 2}


async def charge(card: str, total: Decimal) -> None:
    if busy.get(card):
        busy[card] -= 1
        raise Busy
    if card == "card-empty":
        raise Declined(f"no {total} on this card")
