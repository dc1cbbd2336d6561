"""Epochs of a data set: each takes every sample once, in an order of its own where it is shuffled, which is graphc's."""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

from .errors import FeedError
from .random import Stream, key_of


class Epochs:
    """Which samples a step takes. Those that are left where batches do not divide an epoch are left out of it."""

    def __init__(self, samples: int, batch: int, seed: int | None) -> None:
        """Epochs that are shuffled by this seed and their number, or are in the order of the data.

        Raises:
            FeedError: where there is no whole batch.
        """
        if batch == 0:
            raise FeedError("the plan has no inputs to feed with samples, so there are no epochs: give --steps, without --shuffle")
        if samples < batch:
            raise FeedError(f"the data has {samples} samples, fewer than a batch of {batch}: compile with a smaller batch (--batch)")
        self.samples, self.batch, self.seed = samples, batch, seed
        self.steps = samples // batch
        """Steps of an epoch."""

    def places(self, step: int) -> Tensor:
        """The samples of a step."""
        epoch, index = divmod(step, self.steps)
        order = torch.arange(self.samples) if self.seed is None else shuffled(self.samples, self.seed, epoch)
        return order[index * self.batch : (index + 1) * self.batch]


@lru_cache(maxsize=1)
def shuffled(samples: int, seed: int, epoch: int) -> Tensor:
    """All samples in the order of an epoch, by Fisher and Yates, as graphc's ``DistributedSampler`` has it."""
    low, high, _, _ = Stream(seed, key_of("sampler"), epoch).words(torch.arange(samples))
    words = zip(low.tolist(), high.tolist(), strict=True)
    numbers = [first | second << 32 for first, second in words]
    order = list(range(samples))
    for place in range(samples - 1, 0, -1):
        other = numbers[place] * (place + 1) >> 64
        order[place], order[other] = order[other], order[place]
    return torch.tensor(order, dtype=torch.int64)
