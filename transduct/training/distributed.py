"""Data-parallel training: counts and gradients are summed, never averaged, so 8 ranks equal one up
to rounding. All talk between ranks goes through `Ranks`."""

import json
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Any

import torch
from torch import Tensor, distributed, nn

from transduct.errors import TrainingFailed, TransductError

# the others wait while rank 0 prepares the corpus
PATIENCE = timedelta(days=1)
BACKENDS = {"cpu": "gloo", "cuda": "cpu:gloo,cuda:nccl"}
ENDED = "ended"  # the key of a rank's last message
MESSAGE = 2048  # bytes of a rank's message about a step, always sent whole
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
        """The same ranks, each of which has to answer in so many seconds from now on."""
        if self.world == 1:
            return self
        assert self.device is not None
        kind = BACKENDS[self.device.type]
        group = distributed.new_group(timeout=timedelta(seconds=seconds), backend=kind)
        return replace(self, group=group, timeout=seconds)

    def for_another_thread(self) -> "Ranks":
        """The same ranks for another thread, whose messages do not mix with those of this one."""
        return self.within(self.timeout)

    def exchange(self, message: Any) -> Callable[[], list[Any]]:
        """Begin to send a small message to all ranks, on the CPU, while this one goes on. Returns
        what waits for the messages of all ranks.

        Raises:
            TrainingFailed: the message is too long, or a rank has sent why it ends.
        """
        if self.world == 1:
            return lambda: [message]
        content = json.dumps(message).encode()
        if len(content) > MESSAGE:
            raise TrainingFailed(
                f"a message between ranks has {len(content)} bytes, at most {MESSAGE} are sent; "
                "give the loss fewer or shorter names of terms"
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
        """The results of `work`, one for each item, of which each rank computes every
        `world`-th.

        Raises:
            TransductError: `work` raises it on some rank; the same on all.
            TrainingFailed: the ranks have different numbers of items.
        """
        if self.world == 1:
            return list(work(items))
        own, results = items[self.rank :: self.world], list[Any]()
        problem: TransductError | None = None
        try:
            results = list(work(own)) if own else []
        except TransductError as error:
            problem = error
        counts = self.exchange(len(items))()
        if min(counts) != max(counts):
            raise TrainingFailed(
                f"the ranks have {min(counts)} to {max(counts)} parts of a validation; give all "
                "the same data and options"
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
        values = self.exchange(value)()
        other = next((rank for rank, each in enumerate(values) if each != values[0]), None)
        if other is not None:
            found = f"{name} is {values[0]} on rank 0 and {values[other]} on rank {other}"
            raise TransductError(f"{found}; {remedy}")

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
        try:
            yield
        except BaseException as error:
            if self.world == 1:
                raise
            lost = isinstance(error, RuntimeError) and LOST.search(str(error))
            reason = "" if lost else (str(error) or type(error).__name__).splitlines()[0][:500]
            if reason:  # whoever waits for a message of this rank is answered with this one
                self.exchange({ENDED: reason})
            others = within_seconds(BRIEF + 5.0, self._others, reason)
            if not lost:
                raise
            raise TrainingFailed(self._lost(str(error), others)) from error

    def _others(self, reason: str) -> dict[int, str]:
        """Write down why this rank ends. Returns why the others do, as far as they know."""
        store = distributed.distributed_c10d._get_default_store()
        store.set(f"ended/{self.rank}", reason)
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
    key = "transduct/" + os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
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
