"""Further modules of torchvision, timm and transformers, small and with random weights: `benchmarks/modules.py --others` trains them.

None of them was named anywhere in this repository when they were first tried (2026-11-29). What was refused then is not in the list: LED
with places of global attention, ViLT, FSMT, Autoformer, TimesFM, LLaVA NeXT and Qwen2 Audio branch on data, or have shapes that depend on
it.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from modules_kinds import (
    BART,
    BERT,
    CLASSES,
    DRY,
    LAYERS,
    LLAMA,
    PATCHES,
    ROWS,
    SIDE,
    SMALL,
    SWIN,
    T5,
    TIME,
    WORDS,
    Batch,
    Loss,
    Module,
    alike,
    classes,
    hugging,
    images,
    labelled,
    masked_text,
    pairs,
    picture,
    segmenting,
    sentence,
    text,
    timm,
    words,
)
from torch import Tensor, nn


def composed(make: Callable[[Any], nn.Module], batch: Callable[[], Batch] = text, loss: Loss | None = None) -> Module:
    """A module that is made with transformers."""
    return Module("transformers", lambda: make(importlib.import_module("transformers")), batch, loss)


def padded_in_front() -> Batch:
    """Texts of which some begin with what fills them up, as for generation."""
    tokens, mask = words(), torch.ones(ROWS, TIME, dtype=torch.int64)
    for row in range(ROWS):
        mask[row, : row % 3] = 0
    return {"input_ids": tokens.masked_fill(mask == 0, 0), "attention_mask": mask, "labels": tokens.masked_fill(mask == 0, -100)}


def captions(places: int = 16, typed: bool = False) -> Batch:
    """Pictures, and texts in which so many places wait for each; which these are, where it is asked for."""
    tokens = torch.randint(5, WORDS, (ROWS, places + 8))
    tokens[:, 2 : 2 + places] = 4
    types: Batch = {"token_type_ids": (tokens == 4).to(torch.int64)} if typed else {}
    return {"input_ids": tokens, "pixel_values": images(32), "labels": tokens.masked_fill(tokens == 4, -100), **dict(types)}


def written() -> Batch:
    return {"pixel_values": images(32), "labels": words()}


def scenes() -> Batch:
    """Texts, and features of what is to be seen."""
    return {"input_ids": words(), "visual_feats": torch.randn(ROWS, 5, 16), "visual_pos": torch.rand(ROWS, 5, 4), "labels": classes()}


def shown() -> Batch:
    """Texts beside features of pictures, and whether both belong together."""
    features = {"visual_embeds": torch.randn(ROWS, 5, 16), "visual_attention_mask": torch.ones(ROWS, 5)}
    labels = {"labels": torch.cat([words(), torch.full((ROWS, 5), -100)], 1), "sentence_image_labels": torch.tensor([0, 1, 1, 0])}
    return {"input_ids": words(), "attention_mask": torch.ones(ROWS, TIME), **features, **labels}


def matched() -> Batch:
    mask = torch.ones(ROWS, 32, 32, dtype=torch.int64)
    return {"input_ids": words(), "pixel_values": images(32), "pixel_mask": mask, "labels": torch.tensor([0, 1, 1, 0])}


def patches() -> Batch:
    """Patches with their rows and columns, and texts."""
    found = torch.cat([torch.randint(4, (ROWS, 10, 2)).float(), torch.randn(ROWS, 10, 12)], -1)
    return {"flattened_patches": found, "attention_mask": torch.ones(ROWS, 10), "labels": words()}


def told_apart(output: Any, _: Any) -> Tensor:
    """The loss of SigLIP: whether each text is that of each picture."""
    scores = output.logits_per_text
    own = torch.eye(scores.shape[0])
    return -F.logsigmoid((2.0 * own - 1.0) * scores).sum(-1).mean()


def sharper(output: Any, batch: Any) -> Tensor:
    """How far pictures of twice the size are from those with each point four times."""
    larger = batch["pixel_values"].repeat_interleave(2, -1).repeat_interleave(2, -2)
    return (output.reconstruction - larger).abs().mean()


class Pooled(nn.Module):
    """What makes features of pictures, and a classifier of them."""

    def __init__(self, own: nn.Module, width: int = 32) -> None:
        super().__init__()
        self.own, self.head = own, nn.Linear(width, CLASSES)

    def forward(self, x: Tensor) -> Any:
        return self.head(self.own(pixel_values=x).pooler_output)


def pooled(config: str, model: str, side: int = 32, **options: Any) -> Module:
    """Features of pictures, and a classifier of them."""

    def make(package: Any) -> nn.Module:
        return Pooled(getattr(package, model)(getattr(package, config)(**options)))

    return composed(make, lambda: (images(side), classes()), labelled)


def reader(package: Any) -> nn.Module:
    """A decoder of texts that looks at pictures."""
    seen = package.ViTConfig(**PATCHES, **DRY)
    said = package.TrOCRConfig(
        vocab_size=WORDS, d_model=32, decoder_layers=2, decoder_attention_heads=4, decoder_ffn_dim=64, max_position_embeddings=32,
        dropout=0.0, is_decoder=True, cross_attention_hidden_size=32, pad_token_id=0, bos_token_id=1, eos_token_id=2, use_cache=False,
    )  # fmt: skip
    config = package.VisionEncoderDecoderConfig.from_encoder_decoder_configs(seen, said)
    config.decoder_start_token_id, config.pad_token_id = 1, 0
    return package.VisionEncoderDecoderModel(config=config)


def translator(package: Any) -> nn.Module:
    """A BERT that looks at what another BERT has read."""
    other = package.BertConfig(**BERT, is_decoder=True, add_cross_attention=True, use_cache=False)
    config = package.EncoderDecoderConfig.from_encoder_decoder_configs(package.BertConfig(**BERT), other)
    config.decoder_start_token_id, config.pad_token_id = 1, 0
    return package.EncoderDecoderModel(config=config)


def llava(package: Any) -> nn.Module:
    seen, said = package.CLIPVisionConfig(**PATCHES), package.LlamaConfig(**LLAMA, use_cache=False)
    return package.LlavaForConditionalGeneration(package.LlavaConfig(seen, said, image_token_index=4, vision_feature_layer=-1))


def querying(package: Any) -> nn.Module:
    """BLIP-2, whose queries look at pictures."""
    said = {"vocab_size": WORDS, "hidden_size": 32, "ffn_dim": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    config = package.Blip2Config(
        vision_config=PATCHES, qformer_config={**ENCODER, "encoder_hidden_size": 32}, num_query_tokens=4, image_token_index=4,
        text_config={**said, "model_type": "opt", "max_position_embeddings": 64, "word_embed_proj_dim": 32, "dropout": 0.0,
                     "use_cache": False},
    )  # fmt: skip
    return package.Blip2ForConditionalGeneration(config)


def upernet(package: Any) -> nn.Module:
    sizes = {**SWIN, "depths": [1, 1, 1], "num_heads": [2, 2, 4]}
    backbone = package.SwinConfig(**sizes, drop_path_rate=0.0, out_features=["stage1", "stage2", "stage3"])
    sizes = {"hidden_size": 16, "auxiliary_in_channels": 64, "auxiliary_channels": 16, "auxiliary_num_convs": 1, "num_labels": CLASSES}
    return package.UperNetForSemanticSegmentation(package.UperNetConfig(backbone_config=backbone, pool_scales=[1, 2], **sizes))


def configured(config: str, model: str, **options: Any) -> Callable[[Any], nn.Module]:
    """A module of transformers whose configuration has parts."""
    return lambda package: getattr(package, model)(getattr(package, config)(**options))


ENCODER = {name: value for name, value in BERT.items() if name != "num_labels"}
TEXTS = {**SMALL, "max_position_embeddings": 16, "eos_token_id": 2}
SPEECH = {
    "vocab_size": WORDS, "hidden_size": 32, "encoder_layers": 2, "encoder_attention_heads": 4, "encoder_ffn_dim": 64, "decoder_layers": 2,
    "decoder_ffn_dim": 64, "decoder_attention_heads": 4, "conv_dim": [16, 16], "conv_kernel": [10, 3], "conv_stride": [5, 2],
    "num_conv_pos_embeddings": 8, "num_conv_pos_embedding_groups": 4, "positional_dropout": 0.0, "hidden_dropout": 0.0, **LAYERS,
    "apply_spec_augment": False, "pad_token_id": 0, "max_text_positions": 32,
}  # fmt: skip
SAID = {
    "num_mel_bins": 8, "use_guided_attention_loss": False, "speaker_embedding_dim": 16, "speech_decoder_prenet_units": 16,
    "speech_decoder_prenet_dropout": 0.0, "speech_decoder_postnet_units": 16, "speech_decoder_postnet_layers": 2,
    "speech_decoder_postnet_dropout": 0.0,
}  # fmt: skip
PLACES = {"max_position_embeddings": 32}

OTHERS = {
    "LED": hugging("LEDConfig", "LEDForConditionalGeneration", **BART, **LAYERS, attention_window=4, max_encoder_position_embeddings=32,
                   max_decoder_position_embeddings=32),
    "SigLIP": hugging("SiglipConfig", "SiglipModel", pairs, told_apart, vision_config=PATCHES,
                      text_config={**SMALL, "max_position_embeddings": 16, "projection_size": 32}),
    "SigLIP of classes": hugging("SiglipConfig", "SiglipForImageClassification", picture, vision_config=PATCHES, num_labels=CLASSES,
                                 text_config={**SMALL, "max_position_embeddings": 16, "projection_size": 32}),
    # What it draws for its positions in training is left out.
    "DINOv3": pooled("DINOv3ViTConfig", "DINOv3ViTModel", **PATCHES, num_register_tokens=2, pos_embed_rescale=None),
    "DINOv3 ConvNeXt": pooled("DINOv3ConvNextConfig", "DINOv3ConvNextModel", SIDE, hidden_sizes=[8, 16, 24, 32], depths=[1, 1, 1, 1]),
    "mBART": hugging("MBartConfig", "MBartForConditionalGeneration", masked_text, **BART, **LAYERS, **PLACES),
    "XLM": hugging("XLMConfig", "XLMWithLMHeadModel", masked_text, vocab_size=WORDS, emb_dim=32, n_layers=2, n_heads=4, dropout=0.0,
                   attention_dropout=0.0, **PLACES),
    "RemBERT": hugging("RemBertConfig", "RemBertForMaskedLM", **ENCODER, input_embedding_size=16, output_embedding_size=24),
    "CamemBERT": hugging("CamembertConfig", "CamembertForTokenClassification",
                         lambda: {"input_ids": words(), "labels": torch.randint(CLASSES, (ROWS, TIME))}, **BERT, pad_token_id=1),
    "ERNIE": hugging("ErnieConfig", "ErnieForSequenceClassification", sentence, **BERT, use_task_id=True, task_type_vocab_size=3),
    "Persimmon": hugging("PersimmonConfig", "PersimmonForCausalLM", padded_in_front, **SMALL, **PLACES, pad_token_id=0, bos_token_id=1,
                         eos_token_id=2),
    "XGLM": hugging("XGLMConfig", "XGLMForCausalLM", padded_in_front, vocab_size=WORDS, d_model=32, ffn_dim=64, num_layers=2,
                    attention_heads=4, dropout=0.0, attention_dropout=0.0, **PLACES),
    "BioGPT": hugging("BioGptConfig", "BioGptForCausalLM", padded_in_front, **ENCODER),
    "TrOCR": composed(reader, written),
    "BERT to BERT": composed(translator, masked_text),
    "LLaVA": composed(llava, captions),
    "VipLLaVA": composed(lambda package: package.VipLlavaForConditionalGeneration(package.VipLlavaConfig(
        package.CLIPVisionConfig(**PATCHES), package.LlamaConfig(**LLAMA, use_cache=False), image_token_index=4,
        vision_feature_layers=[-1, -2])), captions),
    "BLIP-2": composed(querying, lambda: captions(4)),
    "InternVL": composed(configured("InternVLConfig", "InternVLForConditionalGeneration", image_token_id=4, image_seq_length=4,
                                    vision_config={**PATCHES, "image_size": [32, 32], "patch_size": [8, 8]}, downsample_ratio=0.5,
                                    text_config={**LLAMA, "model_type": "qwen2", "use_cache": False}), lambda: captions(4)),
    "Aya Vision": composed(configured("AyaVisionConfig", "AyaVisionForConditionalGeneration", image_token_index=4, downsample_factor=2,
                                      vision_config={**PATCHES, "model_type": "siglip_vision_model"},
                                      text_config={**LLAMA, "model_type": "cohere2", "use_cache": False}), lambda: captions(4)),
    "PaliGemma": composed(configured("PaliGemmaConfig", "PaliGemmaForConditionalGeneration", image_token_index=4, projection_dim=32,
                                     vision_config={**PATCHES, "model_type": "siglip_vision_model", "projection_dim": 32},
                                     text_config={**LLAMA, "model_type": "gemma", "head_dim": 8, "use_cache": False}, hidden_size=32),
                          lambda: captions(16, typed=True)),
    "Gemma 3 with pictures": composed(configured("Gemma3Config", "Gemma3ForConditionalGeneration", image_token_index=4,
                                                 vision_config=PATCHES, mm_tokens_per_image=4,
                                                 text_config={**LLAMA, "head_dim": 8, "sliding_window": 4, "use_cache": False}),
                                      lambda: captions(4, typed=True)),
    "AltCLIP": composed(configured("AltCLIPConfig", "AltCLIPModel", text_config={**ENCODER, "project_dim": 16, "pad_token_id": 1},
                                   vision_config=PATCHES, projection_dim=16), pairs, alike),
    "CLIPSeg": composed(configured("CLIPSegConfig", "CLIPSegForImageSegmentation", text_config=TEXTS, vision_config=PATCHES,
                                   projection_dim=16, extract_layers=[0, 1], reduce_dim=16, decoder_num_attention_heads=2,
                                   decoder_intermediate_size=32),
                        lambda: {**dict(pairs()), "labels": torch.rand(ROWS, 32, 32).round()}),
    "OWL-ViT": composed(configured("OwlViTConfig", "OwlViTModel", text_config={**SMALL, "max_position_embeddings": 16},
                                   vision_config=PATCHES, projection_dim=16), pairs, alike),
    "VisualBERT": hugging("VisualBertConfig", "VisualBertForPreTraining", shown, **ENCODER, visual_embedding_dim=16),
    "LXMERT": hugging("LxmertConfig", "LxmertForQuestionAnswering", scenes,
                      **{name: value for name, value in ENCODER.items() if name != "num_hidden_layers"}, l_layers=1, x_layers=1, r_layers=1,
                      visual_feat_dim=16, num_qa_labels=CLASSES),
    "BridgeTower": composed(configured("BridgeTowerConfig", "BridgeTowerForImageAndTextRetrieval", hidden_size=64, num_attention_heads=4,
                                       text_config={**ENCODER, "hidden_size": 64, "pad_token_id": 1},
                                       vision_config={"hidden_size": 64, "num_hidden_layers": 2, "image_size": 32, "patch_size": 8},
                                       num_hidden_layers=2, contrastive_hidden_size=16), matched),
    "Data2Vec of pictures": hugging("Data2VecVisionConfig", "Data2VecVisionForImageClassification", picture, **{**PATCHES, **DRY},
                                    num_labels=CLASSES, drop_path_rate=0.0, use_relative_position_bias=True),
    "I-JEPA": hugging("IJepaConfig", "IJepaForImageClassification", picture, **{**PATCHES, **DRY}, num_labels=CLASSES),
    "Swin2SR": hugging("Swin2SRConfig", "Swin2SRForImageSuperResolution", lambda: {"pixel_values": torch.rand(ROWS, 3, 16, 16)}, sharper,
                       image_size=16, embed_dim=16, depths=[2, 2], num_heads=[2, 2], window_size=4, drop_path_rate=0.0),
    "UperNet": composed(upernet, lambda: {"pixel_values": images(32), "labels": torch.randint(CLASSES, (ROWS, 32, 32))}),
    "SpeechT5": hugging("SpeechT5Config", "SpeechT5ForSpeechToText", lambda: {"input_values": torch.randn(ROWS, 800), "labels": words()},
                        **SPEECH),
    "SpeechT5 that speaks": hugging("SpeechT5Config", "SpeechT5ForTextToSpeech",
                                    lambda: {"input_ids": words(), "labels": torch.randn(ROWS, 10, 8),
                                             "speaker_embeddings": torch.randn(ROWS, 16)}, **SPEECH, **SAID),
    "Arcee": hugging("ArceeConfig", "ArceeForCausalLM", padded_in_front, **LLAMA),
    "Apertus": hugging("ApertusConfig", "ApertusForCausalLM", padded_in_front, **LLAMA),
    "dots.llm1": hugging("Dots1Config", "Dots1ForCausalLM", **LLAMA, moe_intermediate_size=16, n_routed_experts=4, n_shared_experts=1,
                         num_experts_per_tok=2, first_k_dense_replace=1, head_dim=8),
    "UMT5": hugging("UMT5Config", "UMT5ForConditionalGeneration", masked_text, **T5),
    "MVP": hugging("MvpConfig", "MvpForConditionalGeneration", **BART, **LAYERS, **PLACES, use_prompt=True, prompt_length=3,
                   prompt_mid_dim=16),
    "BigBird-Pegasus": hugging("BigBirdPegasusConfig", "BigBirdPegasusForConditionalGeneration", **BART, **LAYERS, **PLACES,
                               attention_type="original_full"),
    "X-MOD": hugging("XmodConfig", "XmodForMaskedLM", masked_text, **ENCODER, languages=["en_XX", "de_DE"], default_language="de_DE"),
    "Megatron BERT": hugging("MegatronBertConfig", "MegatronBertForPreTraining",
                             lambda: {**dict(text()), "next_sentence_label": torch.tensor([0, 1, 1, 0])}, **ENCODER),
    "DiffLlama": hugging("DiffLlamaConfig", "DiffLlamaForCausalLM", padded_in_front, **LLAMA),
    "BitNet": hugging("BitNetConfig", "BitNetForCausalLM", padded_in_front, **LLAMA),
    "Pix2Struct": composed(configured("Pix2StructConfig", "Pix2StructForConditionalGeneration",
                                      text_config={"vocab_size": WORDS, "hidden_size": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2,
                                                   "num_heads": 4, "dropout_rate": 0.0},
                                      vision_config={"hidden_size": 32, "patch_embed_hidden_size": 12, "d_ff": 64, "d_kv": 8,
                                                     "num_hidden_layers": 2, "num_attention_heads": 4, "initializer_range": 0.02}),
                           patches),
    "GPT-J": hugging("GPTJConfig", "GPTJForCausalLM", padded_in_front, vocab_size=WORDS, n_positions=16, n_embd=32, n_layer=2, n_head=4,
                     rotary_dim=4, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=1, eos_token_id=2),
    "FLAVA": hugging("FlavaImageConfig", "FlavaImageModel", lambda: {"pixel_values": images(32)},
                     lambda output, _: output.pooler_output.square().mean(), **{**PATCHES, **DRY}),
    "ViTDet": hugging("VitDetConfig", "VitDetModel", lambda: {"pixel_values": images(32)},
                      lambda output, _: (output.last_hidden_state - 1.0).square().mean(), hidden_size=32, num_hidden_layers=2,
                      num_attention_heads=4, image_size=32, patch_size=8, pretrain_image_size=32, window_size=2, window_block_indices=[0],
                      use_relative_position_embeddings=True, residual_block_indices=[1]),
    "FCN": segmenting("fcn_resnet50"),
    "VOLO": timm("volo_d1_224", img_size=SIDE),
    "ConViT": timm("convit_tiny", img_size=SIDE),
    "RepVGG": timm("repvgg_a0"),
    "ResNeSt": timm("resnest14d"),
    "Res2Net": timm("res2net50_14w_8s"),
    "ResMLP": timm("resmlp_12_224", img_size=SIDE),
    "TResNet": timm("tresnet_m"),
    "HaloNet": timm("halonet26t", 256),
    "TNT": timm("tnt_s_legacy_patch16_224", img_size=SIDE),
    "RDNet": timm("rdnet_tiny", drop_path_rate=0.0),
    "LambdaResNet": timm("lambda_resnet26t", 128),
    "BoTNet": timm("botnet26t_256", 128, img_size=128),
    "RepGhost": timm("repghostnet_050", 128, drop_rate=0.0),
    "FasterNet": timm("fasternet_t0"),
    "ViTamin": timm("vitamin_small_224", img_size=SIDE),
}  # fmt: skip
