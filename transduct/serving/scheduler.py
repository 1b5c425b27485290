"""Who is served next: clients take turns, and so do the requests of a client, by what they cost.

This is weighted fair queueing (Demers, Keshav and Shenker 1989) on two levels. It knows no network,
clock or thread. Costs are in tokens.
"""

import heapq
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property

ALIKE = 3  # pieces share a slice if none costs more than this many times another
MUCH = 16  # a request goes before one that costs at least so many times as much


@dataclass(eq=False)
class Ticket:
    """A request in the queue, cut into pieces that are taken in order.

    Attributes:
        client: whose it is.
        kind: only pieces of the same kind may share a slice.
        costs: of its pieces.
        total: what they cost together.
        number: of its arrival.
        spent: its virtual time: the clock of its client at its arrival, and what it took since.
        begun, ended: how many of its pieces have been taken, and are done.
    """

    client: str
    kind: Hashable
    costs: Sequence[int]
    total: int
    number: int
    spent: float
    begun: int = 0
    ended: int = 0

    @property
    def waits(self) -> bool:
        """Whether it has a piece that nobody has taken."""
        return self.begun < len(self.costs)

    @property
    def cost(self) -> int:
        """What its next piece costs."""
        return self.costs[self.begun]


@dataclass(eq=False)
class _Client:
    """A client with requests in the queue.

    Attributes:
        spent: as of a ticket, by the scheduler's clock.
        clock: what each of its tickets would have spent by now, if all had shared evenly.
    """

    spent: float
    clock: float = 0.0
    tickets: list[Ticket] = field(default_factory=list)


@dataclass(frozen=True)
class Slice:
    """Pieces to work on together: their tickets, and the number of each piece in its ticket."""

    pieces: list[tuple[Ticket, int]]

    @property
    def cost(self) -> int:
        """What it costs."""
        return sum(ticket.costs[piece] for ticket, piece in self.pieces)

    @cached_property
    def dearest(self) -> int:
        """The cost of the dearest piece, on which it depends how long the slice takes."""
        return max(ticket.costs[piece] for ticket, piece in self.pieces)

    @cached_property
    def largest(self) -> Ticket:
        """The request that costs most."""
        return max((ticket for ticket, _ in self.pieces), key=lambda ticket: ticket.total)


class Scheduler:
    """A queue of requests, shared fairly among clients."""

    def __init__(self) -> None:
        self._clients: dict[str, _Client] = {}
        self._clock, self._count = 0.0, 0

    @property
    def tickets(self) -> list[Ticket]:
        """The tickets that are not done."""
        return [ticket for client in self._clients.values() for ticket in client.tickets]

    def add(self, client: str, kind: Hashable, costs: Sequence[int]) -> Ticket:
        """Queue a request. It has a piece at least, and each costs a token at least: who pays
        nothing would have all turns."""
        assert min(costs) > 0
        # Who comes anew starts at the common clock: what one did not use before is not saved up.
        own = self._clients.setdefault(client, _Client(self._clock))
        self._count += 1
        own.tickets.append(Ticket(client, kind, costs, sum(costs), self._count, own.clock))
        return own.tickets[-1]

    def take(self, most: int, budget: int, within: Slice | None = None) -> Slice | None:
        """The next slice: the piece whose turn it is, and others of its kind and similar cost, in
        turn, `most` at most that cost `budget` together. None if nothing waits.

        Args:
            within: a slice that is being worked on. Only pieces that may interrupt it are taken:
                much cheaper ones, or of much cheaper requests, whose turn is sooner.
        """
        waiting = [
            ticket
            for client in self._clients.values()
            for ticket in client.tickets
            if ticket.begun < len(ticket.costs)
            and (within is None or self._interrupts(ticket, within))
        ]
        first = next(self._in_turn(waiting), None)
        if first is None:
            return None
        pieces: list[tuple[Ticket, int]] = []
        # Alike in cost, because a slice lasts as long as its longest piece.
        low = high = first.cost
        for ticket in self._in_turn([each for each in waiting if each.kind == first.kind]):
            cost = ticket.cost
            if pieces and (cost > budget or max(high, cost) > ALIKE * min(low, cost)):
                continue
            pieces.append((ticket, ticket.begun))
            low, high, budget = min(low, cost), max(high, cost), budget - cost
            ticket.begun += 1
            ticket.spent += cost
            # Paid when it is taken, so that nobody has a second turn before the first is done.
            self._clients[ticket.client].spent += cost
            if len(pieces) == most:
                break
        return Slice(pieces)

    def done(self, some: Slice) -> None:
        """Note that a slice has been worked on. The clocks count its cost from now on, so that who
        comes meanwhile is before those who have had it."""
        for ticket, piece in some.pieces:
            client = self._clients.get(ticket.client)
            if client is not None and ticket in client.tickets:
                self._clock += ticket.costs[piece] / len(self._clients)
                client.clock += ticket.costs[piece] / len(client.tickets)
                ticket.ended += 1
                if ticket.ended == len(ticket.costs):
                    self.cancel(ticket)

    def cancel(self, ticket: Ticket) -> None:
        """Take a request out of the queue; harmless if it is not there any more."""
        client = self._clients.get(ticket.client)
        if client is not None and ticket in client.tickets:
            client.tickets.remove(ticket)
            if not client.tickets:
                del self._clients[ticket.client]

    def _interrupts(self, ticket: Ticket, running: Slice) -> bool:
        first = running.largest
        # Only what is much shorter may interrupt: it hardly delays the slice that it interrupts.
        if ALIKE * ticket.cost > running.dearest and MUCH * ticket.total > first.total:
            return False
        if ticket.client == first.client:
            return ticket.spent + ticket.cost < first.spent
        others = self._clients.get(first.client)  # None if it has gone
        return others is None or self._clients[ticket.client].spent + ticket.cost < others.spent

    def _in_turn(self, tickets: Sequence[Ticket]) -> Iterator[Ticket]:
        """Yields the ticket whose turn it is, again and again: that of the client who would have
        spent least after it, and of this client's the one that would have. One that was yielded and
        not taken from is left out from then on."""
        queues: dict[str, list[tuple[float, int, Ticket]]] = {}
        for each in tickets:
            # Of equal ones the older: numbers are unique, so tickets are never compared.
            entry = (each.spent + each.cost, each.number, each)
            heapq.heappush(queues.setdefault(each.client, []), entry)

        def place(name: str) -> tuple[float, int, str]:
            head = queues[name][0][2]
            return self._clients[name].spent + head.cost, head.number, name

        order = [place(name) for name in queues]
        heapq.heapify(order)
        while order:
            name = heapq.heappop(order)[-1]
            ticket = heapq.heappop(queues[name])[-1]
            begun = ticket.begun
            yield ticket
            if begun < ticket.begun < len(ticket.costs):
                entry = (ticket.spent + ticket.cost, ticket.number, ticket)
                heapq.heappush(queues[name], entry)
            if queues[name]:
                heapq.heappush(order, place(name))
