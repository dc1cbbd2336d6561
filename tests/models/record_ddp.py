"""What PyTorch's DistributedDataParallel makes of the network with batch norms in `record.py`, on 2 and 3 ranks.

    python3 tests/models/record_ddp.py        # torch 2.15; writes ddp.json beside it
"""

import json
import os
import tempfile

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from record import HERE, Statistics, classes, fill, floats, rounded
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

STEPS = 12
BATCH = 12


def train(rank, ranks, folder):
    """Each rank takes its rows of the same batches; gradients are clipped when they have been averaged."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=ranks)
    model = DistributedDataParallel(fill(Statistics()).train())
    x, labels = floats("x", (36, 3, 8, 8), 0.5), classes("labels", (36,), 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 5, 0.5)
    losses, norms = [], []
    own = BATCH // ranks
    for step in range(STEPS):
        first = step * BATCH % 36 + rank * own
        rows = slice(first, first + own)
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x[rows]), labels[rows])
        loss.backward()
        norms.append(torch.nn.utils.clip_grad_norm_(model.parameters(), 0.3).item())
        optimizer.step()
        schedule.step()
        losses.append(loss.item())
    found = {name: value.flatten().tolist() for name, value in model.module.state_dict().items() if value.is_floating_point()}
    record = {
        "losses": rounded(losses),
        "norms": rounded(norms),
        "variables": {name: rounded(found[name]) for name in found if rank == 0 and name != "conv2.weight"},
    }
    with open(os.path.join(folder, f"rank-{rank}.json"), "w") as file:
        json.dump(record, file)
    dist.barrier()
    dist.destroy_process_group()


def record(ranks):
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(train, args=(ranks, folder), nprocs=ranks)
        found = [json.load(open(os.path.join(folder, f"rank-{rank}.json"))) for rank in range(ranks)]
    return {
        "losses": [of["losses"] for of in found],
        "norms": found[0]["norms"],
        "variables": found[0]["variables"],
    }


if __name__ == "__main__":
    cases = {str(ranks): record(ranks) for ranks in (2, 3)}
    (HERE / "ddp.json").write_text(json.dumps(cases, indent=1) + "\n")
