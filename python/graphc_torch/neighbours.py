"""Processes of one machine: memory that each has taken and all have mapped, and short messages by which they take turns.

A rank's arena is a file without a name (``memfd_create``), which the others get through sockets of the machine, so nothing is left
behind whoever dies. A collective is then no copying into messages and out of them: each rank tells the others where its operand lies,
reads theirs, and says when it has done so (:mod:`graphc_torch.direct`). Where a system has no such files, or processes cannot reach
each other so (another machine, another container), ranks use ``torch.distributed`` as before.
"""

from __future__ import annotations

import mmap
import os
import socket
import struct
import tempfile
import weakref
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from .errors import PlanError, RunError, failing

LONGEST = 1 << 17
"""Bytes that a message has at most."""

SWITCH = "GRAPHC_SHARED_MEMORY"
"""The environment variable that keeps a process to ``torch.distributed``, if it is 0."""


class Neighbours:
    """This rank's connections with those on its machine, and the memory of all of them."""

    def __init__(self, rank: int, peers: dict[int, socket.socket], mutual: list[frozenset[int]]) -> None:
        """Connections by rank, and whom each rank of the job has reached."""
        self.rank, self.peers, self.mutual = rank, peers, mutual
        self.segments: dict[int, list[Tensor | None]] = {other: [] for other in (rank, *peers)}
        """By rank, the memory that it has taken, in order; ``None`` where it has given it back."""
        self.own: dict[int, tuple[int, int]] = {}
        """Where this rank's memory that is in use begins and ends, by its number."""
        self.gone: list[int] = []
        """Which of it is no longer used, and the others do not know."""

    def reach(self, ranks: Iterable[int]) -> bool:
        """Whether these ranks have all reached each other; all of them come to the same answer."""
        found = frozenset(ranks)
        return all(found <= self.mutual[rank] | {rank} for rank in found)

    def take_memory(self, size: int) -> Tensor:
        """Memory that holds zeros. All ranks call it, and each can read it afterwards.

        Raises:
            RunError: where memory is short, or a rank does not answer.
        """
        number = len(self.segments[self.rank])
        with failing(self.rank, f"taking {size} bytes of memory for the plan"):
            file, own = _taken(size)
        begin = torch.frombuffer(own, dtype=torch.uint8).data_ptr()
        weakref.finalize(own, self._give_back, number)
        self.segments[self.rank].append(None)
        self.own[number] = begin, begin + size
        self._announce(file, size)
        os.close(file)
        return torch.frombuffer(own, dtype=torch.uint8)[:size]

    def _give_back(self, number: int) -> None:
        """Notes that nothing here uses some memory any longer."""
        del self.own[number]
        self.gone.append(number)

    def _announce(self, file: int, size: int) -> None:
        """Gives a file to the others, takes theirs, and forgets what they no longer use."""
        # Memory may be given back at any moment, by Python's collector too.
        gone = [self.gone.pop() for _ in range(len(self.gone))]
        message = struct.pack(f"<Q{len(gone)}Q", size, *gone)
        for rank in self.peers:
            self._tell(rank, message, [file])
        for rank in self.peers:
            found, files = self._hear(rank, 1)
            theirs, *left = struct.unpack(f"<{len(found) // 8}Q", found)
            with failing(self.rank, f"reading the memory of rank {rank}"):
                memory = _mapped(files[0], theirs)
            os.close(files[0])
            self.segments[rank].append(torch.frombuffer(memory, dtype=torch.uint8))
            for number in left:
                self.segments[rank][number] = None

    def place_of(self, tensor: Tensor) -> tuple[int, int]:
        """Where a tensor lies in this rank's memory: which of it, and its first byte there.

        Raises:
            PlanError: where it lies elsewhere.
        """
        if tensor.numel() == 0:
            return max(self.own), 0
        begin = tensor.data_ptr()
        end = begin + tensor.numel() * tensor.element_size()
        for number, (first, last) in tuple(self.own.items()):
            if first <= begin and end <= last:
                return number, begin - first
        raise PlanError("a tensor of a collective lies outside of the memory that ranks share")

    def tensor(self, rank: int, place: tuple[int, int], shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """A tensor of another rank."""
        number, begin = place
        memory = self.segments[rank][number]
        if memory is None:
            raise PlanError(f"rank {rank} has given back the memory that it names")
        size = dtype.itemsize
        for extent in shape:
            size *= extent
        return memory[begin : begin + size].view(dtype).view(shape)

    def swap(self, ranks: tuple[int, ...], message: bytes) -> list[bytes]:
        """Tells all of these ranks the same, and waits until each of them has told its own: what they said, in their order.

        Raises:
            RunError: where one has ended, or does not come within the job's timeout.
        """
        for rank in ranks:
            if rank != self.rank:
                self._tell(rank, message)
        return [message if rank == self.rank else self._hear(rank)[0] for rank in ranks]

    def _tell(self, rank: int, message: bytes, files: Sequence[int] = ()) -> None:
        try:
            socket.send_fds(self.peers[rank], [message], files)
        except OSError as error:
            raise _ended(rank) from error

    def _hear(self, rank: int, files: int = 0) -> tuple[bytes, list[int]]:
        peer = self.peers[rank]
        try:
            found, given, _, _ = socket.recv_fds(peer, LONGEST, files)
        except TimeoutError as error:
            raise RunError(f"rank {rank} has not answered within {peer.gettimeout():g} s: it hangs, or needs a longer timeout") from error
        except OSError as error:
            raise _ended(rank) from error
        if not found:
            raise _ended(rank)
        return found, given


def _ended(rank: int) -> RunError:
    return RunError(f"rank {rank} has closed its connection: that rank has ended, and says why")


def _taken(size: int) -> tuple[int, mmap.mmap]:
    """A file without a name, of zeros, and the memory that it is."""
    file = os.memfd_create("graphc", os.MFD_CLOEXEC)
    try:
        os.ftruncate(file, max(size, 1))
        return file, _mapped(file, size)
    except OSError as error:
        os.close(file)
        raise MemoryError(str(error)) from error


def _mapped(file: int, size: int) -> mmap.mmap:
    try:
        return mmap.mmap(file, max(size, 1))
    except OSError as error:
        raise MemoryError(str(error)) from error


_found: list[tuple[Any, Neighbours | None]] = []
"""Those of the job that this process takes part in."""


def neighbours_of(rank: int, world: int, timeout: float) -> Neighbours | None:
    """Those of this job, looked for once; ``None`` where no other process can be reached. All ranks call it."""
    job = dist.group.WORLD
    if not _found or _found[0][0] is not job:
        _found[:] = [(job, _find(rank, world))]
    found = _found[0][1]
    for peer in found.peers.values() if found is not None else ():
        peer.settimeout(timeout)
    return found


def _find(rank: int, world: int) -> Neighbours | None:
    """Connects with all ranks of this machine, each rank with those before it."""
    with ExitStack() as stack:
        place = _place(rank, stack)
        here = None if place is None else _listening(place, world)
        places = _told(None if here is None else (_machine(), place), world)
        peers = _connected(rank, places)
        reached = _told(frozenset(peers), world)
        later = sum(rank in reached[other] for other in range(rank + 1, world))
        if here is not None:
            peers.update(_accepted(here, later))
            here.close()
    mutual = [reached[a] | {b for b in range(world) if a in reached[b]} for a in range(world)]
    return Neighbours(rank, peers, mutual) if peers else None


def _place(rank: int, stack: ExitStack) -> str | None:
    """Where others may look for this process: a path in a folder of its own, which goes with the stack."""
    try:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="graphc-", ignore_cleanup_errors=True))
    except OSError:
        return None
    return f"{folder}/{rank}"


def _accepted(here: socket.socket, count: int) -> dict[int, socket.socket]:
    """The connections of so many ranks, which have been made by now."""
    found = {}
    for _ in range(count):
        peer, _ = here.accept()
        found[struct.unpack("<Q", peer.recv(8))[0]] = peer
    return found


def _told(what: Any, world: int) -> list[Any]:
    """What each rank says."""
    found: list[Any] = [None] * world
    dist.all_gather_object(found, what)
    return found


def _listening(path: str, world: int) -> socket.socket | None:
    """Where others of this machine reach this process, if that is possible."""
    if os.environ.get(SWITCH) == "0" or not hasattr(os, "memfd_create"):
        return None
    here = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        here.bind(path)
        here.listen(world)
    except OSError:
        here.close()
        return None
    return here


def _machine() -> str:
    """What processes of this machine have in common."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text()
    except OSError:
        return socket.gethostname()


def _connected(rank: int, places: list[tuple[str, str] | None]) -> dict[int, socket.socket]:
    """Connections with the ranks before this one that can be reached."""
    found: dict[int, socket.socket] = {}
    own = places[rank]
    for other, place in enumerate(places[:rank]):
        if own is None or place is None or place[0] != own[0]:
            continue
        peer = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            peer.connect(place[1])
            peer.send(struct.pack("<Q", rank))
        except OSError:
            peer.close()
            continue
        found[other] = peer
    return found
