import os

import torch
from transformers import GPT2Config, GPT2LMHeadModel

import graphc

config = GPT2Config(vocab_size=101, n_positions=16, n_embd=32, n_layer=2, n_head=4, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0)
torch.manual_seed(0)
model, tokens = GPT2LMHeadModel(config).train(), torch.randint(101, (4, 8, 16))
rank, world = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
batches = 5 * [{"input_ids": rows, "labels": rows} for rows in tokens.chunk(world, dim=1)[rank]]
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, eps=1e-6)
model = graphc.parallelize(model, batches[0], optimizer=optimizer, mesh="auto")
losses = [float(model.step(batch)) for batch in batches]
weights = model.state_dict()  # whole, under their own names
if rank == 0:
    torch.save({"losses": losses, "model": weights}, "gpt2.pt")
