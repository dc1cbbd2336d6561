"""Writes small random models as transformers saves them, and what it makes of them: logits, and losses of three steps of AdamW.

    python record.py        # torch 2.11, transformers 5.24
"""

import json
from pathlib import Path

import torch
from transformers import (
    BertConfig,
    BertForMaskedLM,
    BertForSequenceClassification,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    MixtralConfig,
    MixtralForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

HERE = Path(__file__).parent


def record(name: str, model: PreTrainedModel) -> None:
    """Saves the model in a folder of this name, with ``expected.json``."""
    torch.manual_seed(len(name))
    for parameter in model.parameters():
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, std=0.15)
        else:
            parameter.data.add_(torch.randn_like(parameter) * 0.1)
    folder = HERE / name
    model.save_pretrained(folder)
    (folder / "generation_config.json").unlink(missing_ok=True)
    tokens = torch.randint(0, model.config.vocab_size, (2, 6))
    of_tokens = model(input_ids=tokens).logits.dim() == 3
    labels = torch.randint(0, model.config.vocab_size, (2, 6)) if of_tokens else torch.tensor([2, 0])
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    before, losses = numbers(model(input_ids=tokens).logits), []
    for _ in range(3):
        optimizer.zero_grad()
        logits = model(input_ids=tokens).logits
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, -2), labels.flatten())
        loss.backward()
        optimizer.step()
        losses.append(float(f"{loss.item():.8g}"))
    after = numbers(model(input_ids=tokens).logits)
    found = {"tokens": tokens.flatten().tolist(), "labels": labels.flatten().tolist(), "losses": losses, "logits": before, "trained": after}
    (folder / "expected.json").write_text(json.dumps(found) + "\n")


def numbers(tensor: torch.Tensor) -> list[float]:
    """The elements, rounded."""
    return [float(f"{number:.7g}") for number in tensor.detach().flatten().tolist()]


def main() -> None:
    """Writes all."""
    sizes = {
        "vocab_size": 11,
        "hidden_size": 8,
        "intermediate_size": 12,
        "num_hidden_layers": 1,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 32,
    }
    positions = {
        "rope_type": "llama3",
        "rope_theta": 100.0,
        "factor": 4.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 16,
    }
    llama = {**sizes, "num_hidden_layers": 2, "rms_norm_eps": 1e-5, "attention_bias": True, "mlp_bias": True, "head_dim": 4, "pad_token_id": 3}
    record("llama", LlamaForCausalLM(LlamaConfig(**llama, rope_parameters=positions)))
    record("mistral", MistralForCausalLM(MistralConfig(**sizes, head_dim=4, sliding_window=8)))
    record("qwen2", Qwen2ForCausalLM(Qwen2Config(**sizes, tie_word_embeddings=True)))
    record("qwen3", Qwen3ForCausalLM(Qwen3Config(**sizes, head_dim=4)))
    experts = {"num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": None}
    record("mixtral", MixtralForCausalLM(MixtralConfig(**sizes, **experts, head_dim=4)))
    dropout = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    record("gpt2", GPT2LMHeadModel(GPT2Config(vocab_size=11, n_embd=8, n_layer=2, n_head=2, n_positions=16, **dropout)))
    bert = {name: sizes[name] for name in ("vocab_size", "hidden_size", "intermediate_size", "num_attention_heads", "num_hidden_layers")}
    dropout = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    bert = {**bert, **dropout, "max_position_embeddings": 16}
    record("bert", BertForMaskedLM(BertConfig(**bert)))
    record("bert_classes", BertForSequenceClassification(BertConfig(**bert, num_labels=3)))


if __name__ == "__main__":
    main()
