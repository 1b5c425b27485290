"""Clients take turns by what they cost: shown without a network or a clock, over random
arrivals."""

import random

import pytest

from transduct.serving.scheduler import ALIKE, MUCH, Scheduler


def names(some):
    """The pieces of a slice as text, such as "a0 a1 b0", by the names of the clients."""
    return " ".join(f"{ticket.client}{piece}" for ticket, piece in some.pieces)


def taken(queue, most=1, budget=10**6):
    """Every slice until nothing waits."""
    found = []
    while (some := queue.take(most, budget)) is not None:
        found.append(names(some))
        queue.done(some)
    return found


def test_clients_take_turns_and_each_keeps_its_order():
    queue = Scheduler()
    for name, pieces in (("a", 4), ("b", 2), ("c", 3)):
        queue.add(name, "k", [10] * pieces)
    assert taken(queue) == ["a0", "b0", "c0", "a1", "b1", "c1", "a2", "c2", "a3"]
    assert queue.tickets == []


def test_requests_of_one_client_take_turns():
    queue = Scheduler()
    large, small = queue.add("a", "k", [10] * 3), queue.add("a", "k", [10])
    order = [queue.take(1, 100).pieces[0] for _ in range(4)]
    assert order == [(large, 0), (small, 0), (large, 1), (large, 2)]


def test_turns_go_by_cost_and_not_by_number():
    queue = Scheduler()
    queue.add("dear", "k", [100] * 3)
    queue.add("cheap", "k", [10] * 30)
    order = " ".join(taken(queue)).split()
    assert [order[:i].count(f"cheap{i - 1}") for i in (1, 5, 9)] == [1, 1, 1]
    assert order.index("dear0") in (9, 10)
    assert order.index("dear2") in (29, 30, 31, 32)


def test_a_slice_has_one_kind_similar_costs_and_a_budget():
    queue = Scheduler()
    for name, kind, cost in (("a", "x", 10), ("b", "y", 10), ("c", "x", 30), ("d", "x", 31)):
        queue.add(name, kind, [cost])
    assert taken(queue, 64) == ["a0 c0", "b0", "d0"]
    queue.add("a", "x", [10] * 7)
    assert taken(queue, 64, 30) == ["a0 a1 a2", "a3 a4 a5", "a6"]
    assert taken(queue, 3) == []
    queue.add("a", "x", [10] * 4)
    assert taken(queue, 3) == ["a0 a1 a2", "a3"]
    queue.add("a", "x", [100, 100])
    assert taken(queue, 3, 30) == ["a0", "a1"], "a piece that is dearer than all is taken alone"


def test_who_comes_while_others_have_waited_long_is_first_if_he_asks_for_little():
    queue = Scheduler()
    for number in range(10):
        queue.add(f"heavy{number}", "k", [250] * 100)
    for _ in range(34):
        queue.done(queue.take(1, 10))
    queue.add("light", "k", [30])
    assert names(queue.take(1, 10)) == "light0"


def test_only_much_cheaper_pieces_whose_turn_is_sooner_interrupt():
    queue = Scheduler()
    heavy = queue.add("a", "k", [90] * 3)
    running = queue.take(1, 90)
    assert queue.take(9, 90, running) is None, "not the rest of the same request"
    queue.add("b", "k", [90 // ALIKE + 1])
    assert queue.take(9, 90, running) is None, "too dear"
    for client in "ab":
        queue.add(client, "k", [30])
    assert names(queue.take(9, 90, running)) in ("a0 b0", "b0 a0")
    again = 0
    while (some := queue.take(1, 90, running)) is None and again < 20:
        again += 1
        queue.add("c", "k", [30])
    queue.cancel(heavy)
    assert running.pieces == [(heavy, 0)]
    assert some is not None


def test_a_much_cheaper_request_interrupts_whatever_a_piece_costs():
    queue = Scheduler()
    queue.add("a", "k", [10] * 4 * MUCH)
    running = queue.take(64, 10_000)
    queue.add("b", "k", [10] * 5)
    assert queue.take(9, 90, running) is None, "more than a sixteenth"
    queue.add("c", "k", [10] * 4)
    assert names(queue.take(9, 90, running)) == "c0 c1 c2 c3"


def test_who_interrupts_again_and_again_must_let_the_others_go_on():
    queue = Scheduler()
    queue.add("heavy", "k", [900] * 2)
    running = queue.take(1, 900)
    interrupted = 0
    while True:
        queue.add("light", "k", [30])
        some = queue.take(1, 90, running)
        if some is None:
            break
        queue.done(some)
        interrupted += 1
    assert 20 <= interrupted <= 900 / 30 * 2 + 2, "about as much as the other had"


def test_who_has_cancelled_is_never_worked_for_and_may_do_so_twice():
    queue = Scheduler()
    gone, stays = queue.add("a", "k", [10] * 3), queue.add("b", "k", [10] * 2)
    first = queue.take(1, 10)
    queue.cancel(gone)
    queue.cancel(gone)
    queue.done(first)
    assert taken(queue) == ["b0", "b1"]
    assert stays.ended == 2


def test_what_costs_nothing_is_a_mistake():
    with pytest.raises(AssertionError):
        Scheduler().add("a", "k", [1, 0])


@pytest.mark.parametrize("seed", range(30))
def test_whatever_comes_each_piece_is_taken_once_in_order_and_none_starves(seed):
    draw, queue = random.Random(seed), Scheduler()
    open_tickets, gone, order, charged = [], [], {}, 0
    for step in range(300):
        for _ in range(draw.choice((0, 0, 1, 3))):
            costs = [draw.choice((1, 20, 40, 300)) for _ in range(draw.choice((1, 1, 2, 9)))]
            ticket = queue.add(draw.choice("abcdef"), draw.choice("xy"), costs)
            open_tickets.append((ticket, step))
        if open_tickets and draw.random() < 0.1:
            ticket, _ = open_tickets.pop(draw.randrange(len(open_tickets)))
            queue.cancel(ticket)
            gone.append((ticket, ticket.begun))
        some = queue.take(draw.choice((1, 8, 64)), draw.choice((1, 100, 1000)))
        if some is None:
            continue
        assert len({ticket.kind for ticket, _ in some.pieces}) == 1
        costs = [ticket.costs[piece] for ticket, piece in some.pieces]
        assert max(costs) == some.dearest <= ALIKE * min(costs)
        charged += sum(costs)
        for ticket, piece in some.pieces:
            order.setdefault(ticket, []).append(piece)
        if draw.random() < 0.9:
            inner = queue.take(64, 100, some)
            for ticket, piece in inner.pieces if inner else []:
                order.setdefault(ticket, []).append(piece)
                charged += ticket.costs[piece]
            if inner is not None:
                queue.done(inner)
        queue.done(some)
    while (some := queue.take(64, 1000)) is not None:
        for ticket, piece in some.pieces:
            order.setdefault(ticket, []).append(piece)
            charged += ticket.costs[piece]
        queue.done(some)
    assert queue.tickets == []
    for ticket, _ in open_tickets:
        assert order[ticket] == list(range(len(ticket.costs)))
    for ticket, begun in gone:
        assert order.get(ticket, []) == list(range(begun)), "nothing after it was cancelled"
    everyone = {*order}
    assert charged == sum(sum(each.costs[: each.begun]) for each in everyone), "nothing is lost"


@pytest.mark.parametrize("flood", [1, 5, 30])
def test_nobody_starves_however_many_short_requests_come(flood):
    """The share of a long request is that of one among all, give or take one piece of each."""
    queue = Scheduler()
    queue.add("long", "k", [250] * 8)
    steps = 0
    while any(ticket.client == "long" for ticket in queue.tickets):
        steps += 1
        for number in range(flood):
            if not any(ticket.client == f"s{number}" for ticket in queue.tickets):
                queue.add(f"s{number}", "k", [40])
        queue.done(queue.take(1, 1))
    fair = 8 + 8 * 250 * flood / 40
    assert steps <= 1.3 * fair + 2 * flood, (steps, fair)
