"""A training by the Trainer of transformers, or by that of graphc: what the job of a test runs on each of its processes."""

from __future__ import annotations

import json
import os
import sys

import torch
import transformers

from graphc.parallel.hugging_face import Trainer


def main(engine: str, folder: str, resume: bool) -> None:
    torch.manual_seed(0)
    sizes = {"vocab_size": 61, "n_positions": 8, "n_embd": 16, "n_layer": 1, "n_head": 2, "bos_token_id": 1, "eos_token_id": 2}
    config = transformers.GPT2Config(**sizes, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0)
    tokens = torch.randint(61, (36, 8), generator=torch.Generator().manual_seed(1))
    labels = tokens.clone()
    labels[:, 0] = -100
    rows = [{"input_ids": row, "labels": own} for row, own in zip(tokens, labels, strict=True)]
    count = 8 // int(os.environ.get("WORLD_SIZE", "1"))
    arguments = transformers.TrainingArguments(
        folder, per_device_train_batch_size=count, per_device_eval_batch_size=count, max_steps=12, learning_rate=1e-2, warmup_steps=3,
        weight_decay=0.1, max_grad_norm=0.5, logging_steps=1, eval_strategy="steps", eval_steps=5, save_strategy="steps", save_steps=6,
        use_cpu=True, report_to=[], dataloader_drop_last=True, seed=3, disable_tqdm=True,
    )  # fmt: skip
    kind = Trainer if engine == "graphc" else transformers.Trainer
    trainer = kind(transformers.GPT2LMHeadModel(config), arguments, train_dataset=rows, eval_dataset=rows[:16])
    trainer.train(resume_from_checkpoint=resume)
    if trainer.is_world_process_zero():
        lines = [{name: line.get(name) for name in ("step", "loss", "eval_loss", "grad_norm")} for line in trainer.state.log_history]
        with open(os.path.join(folder, "log.json"), "w") as file:
            json.dump(lines, file)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], len(sys.argv) > 3)
