"""Data-parallel training: counts and gradients are summed, never averaged, so 8 ranks equal one up
to rounding. All talk between ranks goes through `Ranks`.

Gradients travel once a step, with its last micro-batch: after the backward pass in one message, or
during it in buckets (PyTorch's DistributedDataParallel), or each piece of them to the rank that
holds the same piece of the weights (PyTorch's FSDP2).
"""

import copy
import json
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from contextvars import ContextVar
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Event, Thread
from typing import Any

import torch
from torch import Tensor, distributed, nn
from torch.nn.parallel import DistributedDataParallel

from transduct.errors import TrainingFailed, TransductError, require
from transduct.storage import fill
from transduct.training.fused import layers_of

Terms = Mapping[str, tuple[Tensor, float, float]]
LossOf = Callable[[nn.Module, Any], Terms]
# the others wait while rank 0 prepares the corpus
PATIENCE = timedelta(days=1)
BACKENDS = {"cpu": "gloo", "cuda": "cpu:gloo,cuda:nccl"}
ENDED = "ended"  # the key of a rank's last message
MESSAGE = 2048  # bytes of a rank's message about a step, always sent whole
LISTEN = 0.5  # seconds between two looks for such a message
# the error of this process that the other ranks know: the message of an inner group has said it
KNOWN: ContextVar[BaseException | None] = ContextVar("KNOWN", default=None)
BRIEF = 5.0  # seconds in which every rank that lives writes down why it ends
# in the messages of PyTorch's RuntimeErrors about ranks that are gone, or do not answer
LOST = re.compile(
    "gloo|nccl|connection|timed out|TCPStore|socket|another rank|pair closure", re.IGNORECASE
)
SILENT = re.compile("timed out|timeout", re.IGNORECASE)


@dataclass(frozen=True)
class Ranks:
    """This process's rank in the group, and the group's size.

    Attributes:
        device: on which gradients are summed.
        group: of processes, that sums gradients; the default one if None. It also carries the small
            messages, which are always on the CPU.
        timeout: seconds in which a rank has to answer.
    """

    rank: int = 0
    world: int = 1
    device: torch.device | None = None
    group: Any = None
    timeout: float = PATIENCE.total_seconds()

    @classmethod
    def join(cls, device: torch.device) -> "Ranks":
        """Join the process group that torchrun's environment describes, or be the only process."""
        world = int(os.environ.get("WORLD_SIZE", "1"))
        if world == 1:
            return cls()
        if not distributed.is_initialized():
            cuda = device.type == "cuda"
            distributed.init_process_group(
                BACKENDS[device.type],
                timeout=PATIENCE,
                store=own_store(),
                rank=int(os.environ["RANK"]),
                world_size=world,
                device_id=device if cuda else None,
            )
        return cls(distributed.get_rank(), world, device)

    def within(self, seconds: float) -> "Ranks":
        """The same ranks, each of which has to answer in so many seconds. Their messages do not mix
        with those of other groups, so another thread may send some."""
        if self.world == 1:
            return self
        assert self.device is not None
        kind = BACKENDS[self.device.type]
        group = distributed.new_group(timeout=timedelta(seconds=seconds), backend=kind)
        return replace(self, group=group, timeout=seconds)

    def exchange(self, message: Any) -> Callable[[], list[Any]]:
        """Begin to send a small message to all ranks, on the CPU, while this one goes on. Returns
        what waits for the messages of all ranks.

        Raises:
            TrainingFailed: the message is too long, or a rank has sent why it ends.
        """
        if self.world == 1:
            return lambda: [message]
        content = json.dumps(message).encode()
        require(
            len(content) <= MESSAGE,
            f"a message between ranks has {len(content)} bytes, at most {MESSAGE} are sent; give "
            "the loss fewer or shorter names of terms",
            TrainingFailed,
        )
        sent = torch.frombuffer(bytearray(content.ljust(MESSAGE)), dtype=torch.uint8)
        received = [torch.empty_like(sent) for _ in range(self.world)]
        work = distributed.all_gather(received, sent, self.group, async_op=True)

        def wait() -> list[Any]:
            work.wait()
            messages = [json.loads(bytes(each.tolist())) for each in received]
            for rank, each in enumerate(messages):
                if isinstance(each, dict) and ENDED in each:
                    raise TrainingFailed(f"rank {rank} has ended: {each[ENDED]}")
            return messages

        return wait

    def any(self, found: bool) -> bool:
        """Whether something is found on any rank."""
        return any(self.exchange(found)())

    def first(self, number: float) -> float:
        """The number that rank 0 has."""
        return float(self.exchange(number)()[0])

    def share(self, work: Callable[[Any], Iterable[Any]], items: Sequence[Any]) -> list[Any]:
        """The results of `work`, one for each item; each rank computes every `world`-th.

        Raises:
            TransductError: `work` raises it on some rank; the same on all.
            TrainingFailed: the ranks have different numbers of items.
        """
        if self.world == 1:
            return list(work(items))
        own, results, problem = items[self.rank :: self.world], list[Any](), None
        try:
            results = list(work(own)) if own else []
        except TransductError as error:
            problem = error
        counts = self.exchange(len(items))()
        require(
            min(counts) == max(counts),
            f"the ranks have {min(counts)} to {max(counts)} parts of a validation; give all the "
            "same data and options",
            TrainingFailed,
        )
        found: list[Any] = [None] * self.world
        distributed.all_gather_object(found, (results, problem), self.group)
        every: list[Any] = [None] * len(items)
        for rank, (some, wrong) in enumerate(found):
            if wrong is not None:
                raise wrong
            every[rank :: self.world] = some
        return every

    def require_equal(self, name: str, value: Any, remedy: str) -> None:
        """Refuse to go on unless every rank has the same value.

        Raises:
            TransductError: it has not; the same message on every rank.
        """
        first, *others = self.exchange(value)()
        for rank, other in enumerate(others, 1):
            require(
                other == first, f"{name} is {first} on rank 0 and {other} on rank {rank}; {remedy}"
            )

    def mesh(self, within_nodes: bool) -> Any:
        """The ranks as PyTorch's FSDP2 wants them: in a row, or a row for each machine.

        Raises:
            TransductError: the machines have different numbers of ranks.
        """
        from torch.distributed.device_mesh import DeviceMesh

        assert self.device is not None
        local = int(os.environ.get("LOCAL_WORLD_SIZE", str(self.world)))
        if not within_nodes or local == self.world:
            return DeviceMesh.from_group(self.group, self.device.type)
        self.require_equal("the ranks of a machine", local, "use equal machines, or shard: all")
        rows, groups = torch.arange(self.world).view(-1, local), []
        for each in (rows.T, rows):
            limit = timedelta(seconds=self.timeout)
            groups.append(distributed.new_subgroups_by_enumeration(each.tolist(), limit)[0])
        names = ("replicas", "pieces")
        return DeviceMesh.from_group(groups, self.device.type, rows, mesh_dim_names=names)

    def sum(self, tensor: Tensor) -> Tensor:
        """The sum of a tensor over the ranks, on the device."""
        distributed.all_reduce(tensor, group=self.group)
        return tensor

    def sum_bucket(self, bucket: distributed.GradBucket) -> torch.futures.Future[Tensor]:
        """Begin to sum some gradients over the ranks, as PyTorch asks during a backward pass."""
        work = distributed.all_reduce(bucket.buffer(), group=self.group, async_op=True)
        assert work is not None
        return work.get_future().then(lambda future: future.value()[0])

    def sum_gradients(self, model: nn.Module, loss: Tensor) -> Tensor:
        """Sum all gradients over the ranks in one all-reduce, and the loss with them, which is
        returned. A weight without a gradient contributes zeros."""
        if self.world == 1:
            return loss
        gradients = []
        for parameter in model.parameters():
            if parameter.requires_grad:
                if parameter.grad is None:
                    parameter.grad = torch.zeros_like(parameter)
                gradients.append(parameter.grad)
        message = torch.cat([*(gradient.flatten() for gradient in gradients), loss.reshape(1)])
        distributed.all_reduce(message, group=self.group)
        *parts, total = torch.split(message, [*(gradient.numel() for gradient in gradients), 1])
        for gradient, part in zip(gradients, parts, strict=True):
            gradient.copy_(part.view_as(gradient))
        return total[0]

    def wait(self) -> None:
        """Wait for all ranks."""
        self.exchange(None)()

    @contextmanager
    def naming_lost(self) -> Iterator[None]:
        """Within this, a rank that ends or hangs is named, on every rank that is left.

        Raises:
            TrainingFailed: one has, for which PyTorch has errors that name an address.
        """
        heard, over = list[str](), Event()
        if self.world > 1:
            Thread(target=self._listen, args=(heard, over), daemon=True).start()
        try:
            yield
        except BaseException as error:
            if self.world == 1 or error is KNOWN.get():
                raise
            KNOWN.set(error)
            lost = isinstance(error, RuntimeError) and LOST.search(str(error))
            if heard and (lost or isinstance(error, KeyboardInterrupt)):
                raise _ended(heard[0]) from error
            reason = "" if lost else (str(error) or type(error).__name__).splitlines()[0][:500]
            if reason:  # ranks that wait for a message of this one get the reason
                self.exchange({ENDED: reason})
            others = within_seconds(BRIEF + 5.0, self._others, reason)
            if not lost:
                raise
            raise _ended(self._lost(str(error), others)) from error
        finally:
            over.set()

    def _listen(self, heard: list[str], over: Event) -> None:
        """Until it is over, learn why a rank has ended, even if this one waits for gradients of
        rank 0, which keeps the store no longer than until all have heard."""
        with suppress(RuntimeError):  # the store has ended too
            default: Any = distributed.distributed_c10d._get_default_store()
            store = default.clone()  # for who waits holds the other
            while not over.wait(LISTEN):
                if store.check([ENDED]):
                    heard.append(store.get(ENDED).decode())
                    store.set(f"ended/{self.rank}", "")
                    return

    def _others(self, reason: str) -> dict[int, str]:
        """Write down why this rank ends. Returns why the others do, as far as they know."""
        store = distributed.distributed_c10d._get_default_store()
        store.set(f"ended/{self.rank}", reason)
        if reason:
            store.compare_set(ENDED, "", f"rank {self.rank} has ended: {reason}")
        found: dict[int, str] = {}
        # Rank 0 keeps the store, so it stays until the others have read why it ends.
        until = time.monotonic() + (0.0 if reason and self.rank else BRIEF)
        while len(found) < self.world and time.monotonic() < until:
            missing = [rank for rank in range(self.world) if rank not in found]
            here = [rank for rank in missing if store.check([f"ended/{rank}"])]
            found |= {rank: store.get(f"ended/{rank}").decode() for rank in here}
            time.sleep(0.1)
        time.sleep(0.0 if self.rank else 0.5)
        return found

    def _lost(self, message: str, others: dict[int, str] | None) -> str:
        """The line that names the ranks that are lost, and why."""
        remedy = "go on with {resume}"
        known = {rank: why for rank, why in (others or {}).items() if why}
        if known:
            rank, why = next(iter(known.items()))
            return f"rank {rank} has ended: {why}"
        # Without its store, which it keeps for all, rank 0 is the one that is lost.
        if others is None:
            others = {} if self.rank == 0 else dict.fromkeys(range(1, self.world), "")
        lost = [rank for rank in range(self.world) if rank not in others]
        names = " and ".join(map(str, lost)) or "unknown"
        if SILENT.search(message):
            how = f"has not answered for {self.timeout:g} seconds (training.timeout); stop it, and"
        else:
            how = "has ended or was killed, perhaps because memory ran out; see its lines, and"
        return f"rank {names} {how} {remedy}"


def _ended(line: str) -> TrainingFailed:
    """The error of a rank that ends because of another, which all ranks know."""
    error = TrainingFailed(line)
    KNOWN.set(error)
    return error


class WholeLoss(nn.Module):
    """The loss of a micro-batch as the `forward` of a module: PyTorch's tools hook into that, and a
    loss calls other methods of a model too."""

    def __init__(self, model: nn.Module, loss: LossOf) -> None:
        super().__init__()
        self.model, self.loss = model, loss

    def forward(self, batch: Any, totals: Mapping[str, Any]) -> Tensor:
        """The weighted sum of the terms, each divided by its total."""
        terms = self.loss(self.model, batch)
        _check_counts(terms, batch.counts)
        return sum(
            (weight * s / totals[name] for name, (s, _, weight) in terms.items()), torch.zeros(())
        )


class Combined:
    """Gradients that are summed after the backward pass, all in one message. So it is with one
    process, and with captured steps, whose replays run no hooks.

    Attributes:
        model: whose weights are trained.
        module: computes the loss of (a batch, totals).
    """

    module: nn.Module

    def __init__(self, model: nn.Module, loss: LossOf, ranks: Ranks) -> None:
        self.model, self.ranks = model, ranks
        self.module = WholeLoss(model, loss)

    def before(self, last: bool) -> AbstractContextManager[Any]:  # noqa: ARG002
        """Within this, a micro-batch is computed, perhaps the last of its step."""
        return nullcontext()

    def after(self, loss: Tensor) -> Tensor:
        """End a step's passes. Returns the sum of the losses of all ranks."""
        return self.ranks.sum_gradients(self.model, loss)

    def norm(self, gradients: list[Tensor]) -> Tensor:
        """The total norm of the summed gradients."""
        return torch.nn.utils.get_total_norm(gradients)


class InBuckets(Combined):
    """Gradients that are summed in buckets while the backward pass goes on.

    PyTorch looks for weights that a loss does not use, which differ from rank to rank. So it does
    not arrange its buckets anew after the first step either, after which a resumed run would round
    otherwise.
    """

    module: DistributedDataParallel

    def __init__(self, model: nn.Module, loss: LossOf, ranks: Ranks) -> None:
        super().__init__(model, loss, ranks)
        # Where none is unused, PyTorch writes a long warning.
        self.module.unused = nn.Parameter(torch.zeros(1, device=ranks.device))
        self.module = DistributedDataParallel(
            self.module,
            process_group=ranks.group,
            find_unused_parameters=True,
            gradient_as_bucket_view=True,
        )
        hook: Any = Ranks.sum_bucket
        self.module.register_comm_hook(ranks, hook)

    def before(self, last: bool) -> AbstractContextManager[Any]:
        return nullcontext() if last else self.module.no_sync()

    def after(self, loss: Tensor) -> Tensor:
        return self.ranks.sum(loss)


class InPieces(Combined):
    """Weights, gradients and optimiser state in pieces, one a rank. A layer of a Transformer is
    whole while it is computed.

    `model` is another one than is given. Of that one only names and shapes stay; see `hollow`.
    """

    module: Any

    def __init__(
        self, model: nn.Module, loss: LossOf, ranks: Ranks, within_nodes: bool = False
    ) -> None:
        from torch.distributed.fsdp import FSDPModule, fully_shard

        copies: Any = {id(p): nn.Parameter(p.detach(), p.requires_grad) for p in model.parameters()}
        super().__init__(copy.deepcopy(model, copies), loss, ranks)
        mesh = ranks.mesh(within_nodes)
        for part in (*layers_of(self.model), self.module):
            fully_shard(part.to(ranks.device), mesh=mesh)
        for part in self.module.modules():
            if isinstance(part, FSDPModule):
                part.set_gradient_divide_factor(1.0)
                part.set_force_sum_reduction_for_comms(True)  # gloo has no other
                part.set_reduce_scatter_unused_params(True)
        hollow(model)

    def before(self, last: bool) -> AbstractContextManager[Any]:
        self.module.set_requires_gradient_sync(last)
        return nullcontext()

    def after(self, loss: Tensor) -> Tensor:
        return self.ranks.sum(loss)

    def norm(self, gradients: list[Tensor]) -> Tensor:
        total: Any = super().norm(gradients)
        return total.full_tensor()


def hollow(model: nn.Module) -> None:
    """Take the numbers out of a model's weights; their names, shapes and ties stay."""
    fill(model, {name: p.to("meta") for name, p in model.named_parameters()}, Path())


def combined(
    model: nn.Module, loss: LossOf, ranks: Ranks, captured: bool, shard: str = "none"
) -> Combined:
    """How the gradients of these ranks are summed."""
    if captured or ranks.world == 1:
        return Combined(model, loss, ranks)
    if shard in ("all", "node"):
        return InPieces(model, loss, ranks, shard == "node")
    return InBuckets(model, loss, ranks)


def _check_counts(terms: Terms, counts: Mapping[str, float]) -> None:
    """Refuse a term whose average would be taken over something else than its own count."""
    for name, (_, count, _) in terms.items():
        if name not in counts:
            known = ", ".join(counts) or "nothing"
            found = f"the loss has a term '{name}', its batch counts {known}"
            raise TrainingFailed(f"{found}; add it to the batch's counts")
        # reading a tensor would wait for the device
        if isinstance(count, int | float) and count != counts[name]:
            found = f"the loss counts {count:g} of '{name}', its batch {counts[name]:g}"
            raise TrainingFailed(f"{found}; let the loss take its counts from the batch")


def own_store() -> Any:
    """The store through which the ranks find one another, kept by rank 0 for this attempt alone.

    torchrun offers one store to all attempts, in which a restarted rank finds the addresses of
    ranks that are gone (PyTorch issue 135712). So only the address of our own store is in it.
    """
    rank, host = int(os.environ["RANK"]), os.environ["MASTER_ADDR"]
    world, port = int(os.environ["WORLD_SIZE"]), int(os.environ["MASTER_PORT"])
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
        return distributed.TCPStore(host, port, world, rank == 0, PATIENCE)
    shared = distributed.TCPStore(host, port, world, False, PATIENCE)
    key = "transduct"  # not by the attempt, which the agents of torchrun count differently
    if rank == 0:
        store = distributed.TCPStore(host, 0, world, True, PATIENCE, wait_for_workers=False)
        shared.set(key, str(store.port))
        return store
    while True:
        with suppress(distributed.DistError):  # else it is an address of an attempt before
            port = int(shared.get(key))
            store = distributed.TCPStore(host, port, world, False, timedelta(seconds=2))
            store.set_timeout(PATIENCE)
            return store
        time.sleep(0.1)


def within_seconds(seconds: float, function: Callable[..., Any], *arguments: Any) -> Any:
    """What a function returns; None if it fails or does not return in time."""
    results: SimpleQueue[Any] = SimpleQueue()

    def call() -> None:
        result = None
        with suppress(RuntimeError):
            result = function(*arguments)
        results.put(result)

    Thread(target=call, daemon=True).start()
    until = time.monotonic() + seconds
    while (left := until - time.monotonic()) > 0.0:
        # torchrun sends signals to the ranks that are left
        with suppress(KeyboardInterrupt, Empty):
            return results.get(timeout=left)
    return None
