"""GPT-2 with a checkpoint after every fifth step: stopped at any moment, it goes on from the last one on any number of processes.

    torchrun --nproc-per-node 2 python/examples/gpt2_resumed.py

Writes `losses.jsonl` and `checkpoints/` into the folder where it is started, and at the end `gpt2.pt`.
"""

import json
import os
from pathlib import Path

import torch
import torch.distributed.checkpoint as dcp
from transformers import GPT2Config, GPT2LMHeadModel

import graphc

STEPS = 20

config = GPT2Config(vocab_size=101, n_positions=16, n_embd=32, n_layer=2, n_head=4, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0)
torch.manual_seed(0)
model, tokens = GPT2LMHeadModel(config).train(), torch.randint(101, (4, 8, 16))
rank, world = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
batches = [{"input_ids": rows, "labels": rows} for rows in tokens.chunk(world, dim=1)[rank]]
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, eps=1e-6)
model = graphc.parallelize(model, batches[0], optimizer=optimizer, mesh="auto")

# Of a checkpoint `.metadata` is written last, so one without it was not finished.
saved = sorted(int(path.parent.name) for path in Path("checkpoints").glob("*/.metadata"))
done, state = saved[-1] if saved else 0, {"training": model.training_state()}
if done:
    dcp.load(state, checkpoint_id=f"checkpoints/{done}")

for step in range(done, STEPS):
    loss = float(model.step(batches[step % len(batches)]))
    if rank == 0:
        with open("losses.jsonl", "a") as file:
            file.write(json.dumps({"step": step, "loss": loss, "processes": world}) + "\n")
    if (step + 1) % 5 == 0:
        dcp.save(state, checkpoint_id=f"checkpoints/{step + 1}")

weights = model.state_dict()
if rank == 0:
    torch.save({"model": weights}, "gpt2.pt")
