"""Kinds of modules of torchvision, timm and transformers, and batches for them: what `benchmarks/modules.py` and its lists are made of."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

ROWS, TIME, WORDS, CLASSES, SIDE = 4, 8, 61, 10, 64

Batch = dict[str, Tensor] | tuple[Tensor, Tensor]
Loss = Callable[[Any, Any], Tensor]


@dataclass(frozen=True)
class Module:
    """A module that is tried."""

    package: str
    make: Callable[[], nn.Module]
    batch: Callable[[], Batch]
    loss: Loss | None


def words(rows: int = ROWS, time_: int = TIME) -> Tensor:
    """Tokens, of which the last ends a text."""
    found = torch.randint(5, WORDS, (rows, time_))
    found[:, -1] = 2
    return found


def text(**more: Callable[[], Tensor]) -> Batch:
    """Tokens and labels, and whatever else a model takes."""
    tokens = words()
    return {"input_ids": tokens, "labels": tokens, **{name: make() for name, make in more.items()}}


def classes() -> Tensor:
    return torch.randint(CLASSES, (ROWS,))


def images(side: int = SIDE) -> Tensor:
    return torch.randn(ROWS, 3, side, side)


def labelled(output: Any, batch: Any) -> Tensor:
    """Cross entropy of whatever scores a model gives."""
    scores = output if isinstance(output, Tensor) else output.logits
    return F.cross_entropy(scores, batch[1])


def vision(name: str, side: int = SIDE, **options: Any) -> Module:
    """A classifier of torchvision."""

    def make() -> nn.Module:
        models = importlib.import_module("torchvision.models")
        found: nn.Module = getattr(models, name)(num_classes=CLASSES, **options)
        return found

    return Module("torchvision", make, lambda: (images(side), classes()), labelled)


def timm(name: str, side: int = SIDE, **options: Any) -> Module:
    """A classifier of timm."""

    def make() -> nn.Module:
        found: nn.Module = importlib.import_module("timm").create_model(name, num_classes=CLASSES, **options)
        return found

    return Module("timm", make, lambda: (images(side), classes()), labelled)


def segmenting(name: str, side: int = SIDE) -> Module:
    """A model of torchvision that names the class of each pixel."""

    def make() -> nn.Module:
        models = importlib.import_module("torchvision.models.segmentation")
        found: nn.Module = getattr(models, name)(weights=None, weights_backbone=None, num_classes=CLASSES)
        return found

    def batch() -> Batch:
        return images(side), torch.randint(CLASSES, (ROWS, side, side))

    return Module("torchvision", make, batch, lambda output, batch: F.cross_entropy(output["out"], batch[1]))


def filming(name: str) -> Module:
    """A classifier of films of torchvision."""

    def make() -> nn.Module:
        models = importlib.import_module("torchvision.models.video")
        found: nn.Module = getattr(models, name)(num_classes=CLASSES)
        return found

    return Module("torchvision", make, lambda: (torch.randn(ROWS, 3, 4, 32, 32), classes()), labelled)


def with_auxiliary(output: Any, batch: Any) -> Tensor:
    """The loss of Inception, which has scores halfway."""
    return F.cross_entropy(output.logits, batch[1]) + 0.4 * F.cross_entropy(output.aux_logits, batch[1])


SMALL = {"vocab_size": WORDS, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
LLAMA = {**SMALL, "num_key_value_heads": 2, "max_position_embeddings": 32, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
BERT = {**SMALL, "max_position_embeddings": 32, "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0, "num_labels": CLASSES}
PATCHES = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64, "image_size": 32, "patch_size": 8}


def hugging(config: str, model: str, batch: Callable[[], Batch] = text, loss: Loss | None = None, **options: Any) -> Module:
    """A model of transformers, of its configuration."""

    def make() -> nn.Module:
        package = importlib.import_module("transformers")
        settings = getattr(package, config)(**options)
        settings.use_cache = False
        found: nn.Module = getattr(package, model)(settings)
        return found

    return Module("transformers", make, batch, loss)


def sentence() -> Batch:
    """Tokens, and a label for all of them."""
    return {"input_ids": words(), "labels": classes()}


def picture(side: int = 32) -> Batch:
    return {"pixel_values": images(side), "labels": classes()}


def pairs() -> Batch:
    """Pictures and their texts."""
    return {"input_ids": words(), "pixel_values": images(32)}


def sounds() -> Batch:
    return {"input_features": torch.randn(ROWS, 8, 32), "labels": words()}


def waves() -> Batch:
    return {"input_values": torch.randn(ROWS, 800), "labels": classes()}


def spoken() -> Batch:
    """Sounds and their texts, of which one is shorter."""
    labels = torch.randint(3, 30, (ROWS, 6))
    labels[0, 4:] = -100
    return {"input_values": torch.randn(ROWS, 800), "labels": labels}


def spectra() -> Batch:
    return {"input_values": torch.randn(ROWS, 32, 16), "labels": classes()}


def series() -> Batch:
    """Numbers over time, and when they are."""
    found: Batch = {}
    for name, extent in (("past", 16), ("future", 4)):
        found |= {f"{name}_values": torch.rand(ROWS, extent) + 1.0, f"{name}_observed_mask": torch.ones(ROWS, extent)}
        found |= {f"{name}_time_features": torch.randn(ROWS, extent, 2)}
    return found


def curves() -> Batch:
    return {"past_values": torch.randn(ROWS, 32, 3), "future_values": torch.randn(ROWS, 8, 3)}


def masked_text() -> Batch:
    return text(attention_mask=lambda: torch.ones(ROWS, TIME, dtype=torch.int64))


def film() -> Batch:
    return {"pixel_values": torch.randn(ROWS, 4, 3, 32, 32), "labels": classes()}


def flow() -> nn.Module:
    """RAFT of pairs of pictures, in two updates."""
    own = importlib.import_module("torchvision.models.optical_flow").raft_small()

    class Flow(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.own = own

        def forward(self, x: Tensor) -> Any:
            return self.own(x[:, 0], x[:, 1], num_flow_updates=2)

    return Flow()


def detected(output: Any, batch: Any) -> Tensor:
    """A loss of a detector whose first box is the one that is looked for."""
    return F.cross_entropy(output.logits[:, 0], batch["pixel_values"][:, 0, 0, :3].argmax(1)) + output.pred_boxes.square().mean()


def masks() -> Batch:
    return {"pixel_values": images(), "labels": torch.randint(CLASSES, (ROWS, SIDE, SIDE))}


def alike(output: Any, batch: Any) -> Tensor:
    """The loss of CLIP: each picture and its own text."""
    scores = output.logits_per_text
    own = torch.arange(scores.shape[0])
    return (F.cross_entropy(scores, own) + F.cross_entropy(scores.t(), own)) / 2


BART = {
    "vocab_size": WORDS, "d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4,
    "decoder_attention_heads": 4, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64, "dropout": 0.0,
    "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 2,
}  # fmt: skip
LAYERS = {"encoder_layerdrop": 0.0, "decoder_layerdrop": 0.0, "attention_dropout": 0.0, "activation_dropout": 0.0}
SERIES = {
    "prediction_length": 4, "context_length": 12, "lags_sequence": [1, 2, 4], "num_time_features": 2, "d_model": 32, "encoder_layers": 2,
    "decoder_layers": 2, "encoder_attention_heads": 4, "decoder_attention_heads": 4, "encoder_ffn_dim": 32, "decoder_ffn_dim": 32,
    "dropout": 0.0, **LAYERS,
}  # fmt: skip
WAVES = {
    **SMALL, "num_labels": CLASSES, "conv_dim": [16, 16], "conv_kernel": [10, 3], "conv_stride": [5, 2], "num_conv_pos_embeddings": 8,
    "num_conv_pos_embedding_groups": 4, "classifier_proj_size": 16, "hidden_dropout": 0.0, "attention_dropout": 0.0,
    "activation_dropout": 0.0, "feat_proj_dropout": 0.0, "final_dropout": 0.0, "layerdrop": 0.0, "apply_spec_augment": False,
}  # fmt: skip
WHISPER = {**BART, "num_mel_bins": 8, "max_source_positions": 16, "max_target_positions": 16}
CLIP = {
    "text_config": {**SMALL, "max_position_embeddings": 16, "eos_token_id": 2},
    "vision_config": PATCHES,
    "projection_dim": 16,
}  # fmt: skip
SEGFORMER = {
    "num_encoder_blocks": 2, "depths": [1, 1], "sr_ratios": [2, 1], "hidden_sizes": [16, 32], "patch_sizes": [7, 3], "strides": [4, 2],
    "num_attention_heads": [1, 2], "mlp_ratios": [2, 2], "decoder_hidden_size": 16, "num_labels": CLASSES, "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0, "classifier_dropout_prob": 0.0, "drop_path_rate": 0.0,
}  # fmt: skip
SWIN = {"image_size": 32, "patch_size": 2, "embed_dim": 16, "depths": [2, 2], "num_heads": [2, 4], "window_size": 4}
DRY = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
SWITCH = {"num_decoder_layers": 2, "num_sparse_encoder_layers": 1, "num_sparse_decoder_layers": 1, "num_experts": 4, "expert_capacity": 16}
JAMBA = {"num_experts": 2, "attn_layer_period": 2, "attn_layer_offset": 1, "mamba_d_state": 4, "mamba_dt_rank": 4}
PROPHET = {
    "vocab_size": WORDS, "hidden_size": 32, "encoder_ffn_dim": 64, "num_encoder_layers": 2, "num_encoder_attention_heads": 4,
    "decoder_ffn_dim": 64, "num_decoder_layers": 2, "num_decoder_attention_heads": 4, "dropout": 0.0, "attention_dropout": 0.0,
    "activation_dropout": 0.0, "max_position_embeddings": 32, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
    "decoder_start_token_id": 2, "ngram": 2,
}  # fmt: skip
PATCHED_SERIES = {
    "num_input_channels": 3, "context_length": 32, "prediction_length": 8, "patch_length": 8, "patch_stride": 8, "d_model": 32,
    "num_hidden_layers": 2, "num_attention_heads": 4, "ffn_dim": 64, "ff_dropout": 0.0, "attention_dropout": 0.0, "head_dropout": 0.0,
    "path_dropout": 0.0,
}  # fmt: skip
POOL = {"depths": [1, 1, 1, 1], "hidden_sizes": [8, 16, 24, 32], "num_labels": CLASSES}
T5 = {
    "vocab_size": WORDS, "d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_heads": 4, "dropout_rate": 0.0,
    "decoder_start_token_id": 0, "pad_token_id": 0, "eos_token_id": 2,
}  # fmt: skip
