"""The items of each part, the most valuable first, with their limits in seconds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import fast
import right
import why
from kit import PLACES, Failed, Place, scratch

__all__ = ["PARTS", "Item", "Place", "scratch"]


@dataclass
class Item:
    """Something that is looked at."""

    look: Callable[[Place], bool | None]
    limit: float
    """Seconds after which it is ended."""
    least: float = 5.0
    """Seconds without which it is not begun."""

    @property
    def name(self) -> str:
        """Its name in results."""
        return self.look.__name__.replace("_", " ")

    def run(self, place: Place) -> bool:
        """Looks, and tells how that ended: whether something is wrong."""
        PLACES[:] = [place]
        try:
            return self.look(place) is False
        except Failed as failed:
            print(failed, flush=True)
            place.tell(failed=str(failed))
            return True


PARTS: dict[str, list[Item]] = {
    "right": [
        Item(right.machine, 60),
        Item(right.devices, 30),
        Item(right.first_steps, 45),
        Item(right.kernels, 270, 30),
        Item(right.references, 120, 20),
        Item(right.replay, 60, 15),
        Item(right.doctor, 150, 20),
    ],
    "fast": [
        Item(fast.machine, 30),
        Item(fast.gpt2, 170, 40),
        Item(fast.profile, 90, 15),
        Item(fast.resnet50, 140, 40),
        Item(fast.calibrate, 100, 15),
        Item(fast.predicted, 60, 20),
        Item(fast.attention, 60, 15),
        Item(fast.llama, 240, 50),
        Item(fast.padded_vocabulary, 40, 15),
    ],
    "why": [
        Item(why.machine, 30),
        Item(why.longest_kernels, 200, 30),
        Item(why.several_ranks, 60, 15),
        Item(why.memory_nearly_full, 60, 15),
        Item(why.killed_in_a_step, 60, 20),
        Item(why.plans_in_pytorch, 90, 20),
        Item(why.memcheck, 90, 20),
        Item(why.racecheck, 90, 20),
    ],
}
