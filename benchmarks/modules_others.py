"""Further modules of torchvision, timm and transformers, small and with random weights: `benchmarks/modules.py --others` trains them.

None of them was named anywhere in this repository when they were first tried (2026-11-29, from OLMo on 2026-11-30). What was refused then
is not in the list. LED with places of global attention, ViLT, FSMT, Autoformer, TimesFM, LLaVA NeXT, Qwen2 Audio, Qwen 2.5 VL, Idefics 3
and Mistral 3 branch on data, or have shapes that depend on it; I-BERT branches on what it has seen before; YOSO has gradients that are not
those of what it computes; Gemma 3n writes to parameters if `altup_coef_clip` is set. Some have norms of so few elements at this size that
rounding is blown up until losses are no measure: ConvMixer, CSPNet, DLA, DPN, Inception v4, MC3 and SKNet. GroupViT draws numbers.
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
    WAVES,
    WORDS,
    Batch,
    Loss,
    Module,
    alike,
    classes,
    filming,
    hugging,
    images,
    labelled,
    masked_text,
    pairs,
    picture,
    segmenting,
    sentence,
    spoken,
    text,
    timm,
    vision,
    words,
)
from modules_written import WRITTEN
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


def boxed(high: int | None, boxes: int = 4, **more: Callable[[], Tensor]) -> Batch:
    """Texts and where each word stands, as whole numbers up to a highest one or as shares."""
    places = torch.rand(ROWS, TIME, boxes) if high is None else torch.randint(high, (ROWS, TIME, boxes)).sort(-1)[0]
    return {"input_ids": words(), "bbox": places, **{name: make() for name, make in more.items()}}


def named() -> Tensor:
    """A class for each word."""
    return torch.randint(CLASSES, (ROWS, TIME))


def marked() -> Batch:
    """Texts, and the way through a page to each word."""
    tags, places = torch.randint(216, (ROWS, TIME, 4)), torch.randint(100, (ROWS, TIME, 4))
    return {"input_ids": words(), "xpath_tags_seq": tags, "xpath_subs_seq": places, "labels": named()}


def returns() -> Batch:
    """States, actions and rewards."""
    found: Batch = {name: torch.randn(ROWS, 6, width) for name, width in (("states", 5), ("actions", 3), ("rewards", 1))}
    times = torch.arange(6).expand(ROWS, 6).contiguous()
    return {**dict(found), "returns_to_go": torch.randn(ROWS, 6, 1), "timesteps": times, "attention_mask": torch.ones(ROWS, 6)}


def choices() -> Batch:
    """Pairs of texts, of which one is right."""
    tokens, ends = torch.randint(WORDS, (ROWS, 2, TIME)), torch.tensor([[7, 6], [7, 7], [5, 7], [3, 4]])
    return {"input_ids": tokens, "mc_token_ids": ends, "labels": tokens, "mc_labels": torch.tensor([0, 1, 1, 0])}


def heard() -> Batch:
    """Spectra of sounds and their texts."""
    return {"input_features": torch.randn(ROWS, 20, 16), "labels": torch.randint(3, 30, (ROWS, 6))}


def listened() -> Batch:
    mask = torch.ones(ROWS, 64, dtype=torch.bool)
    return {"input_features": torch.randn(ROWS, 64, 16), "attention_mask": mask, "labels": torch.randint(3, 30, (ROWS, 4))}


def asked() -> Batch:
    """Texts with a question, and where the answer stands."""
    tokens = torch.cat([words()[:, :-1], torch.full((ROWS, 1), 4)], 1)
    return {"input_ids": tokens, "start_positions": torch.tensor([1, 2, 3, 4]), "end_positions": torch.tensor([2, 3, 5, 6])}


def scene() -> Batch:
    return {"pixel_values": images()}


def found_first(output: Any, batch: Any) -> Tensor:
    """A loss of a detector whose first box is the one that is looked for."""
    scores = output.logits[:, 0, :CLASSES]
    return F.cross_entropy(scores, batch["pixel_values"][:, 0, 0, :3].argmax(1)) + output.pred_boxes.square().mean()


def detecting(config: str, model: str, stages: tuple[str, ...] = ("stage4",), **options: Any) -> Module:
    """A detector on a small ResNet."""

    def make(package: Any) -> nn.Module:
        sizes = {"embedding_size": 8, "hidden_sizes": [8, 16, 24, 32], "depths": [1, 1, 1, 1], "layer_type": "basic"}
        backbone = package.ResNetConfig(**sizes, out_features=list(stages))
        settings = getattr(package, config)(use_timm_backbone=False, backbone_config=backbone, backbone=None, **DETECTOR, **options)
        found: nn.Module = getattr(package, model)(settings)
        return found

    return composed(make, scene, found_first)


def deep(package: Any) -> nn.Module:
    """How far away each point of a picture is."""
    backbone = package.Dinov2Config(
        hidden_size=32, num_hidden_layers=4, num_attention_heads=4, image_size=28, patch_size=7, out_indices=[1, 2, 3, 4],
        apply_layernorm=True, reshape_hidden_states=False,
    )  # fmt: skip
    config = package.DepthAnythingConfig(
        backbone_config=backbone, patch_size=7, reassemble_hidden_size=32, reassemble_factors=[4, 2, 1, 0.5], head_hidden_size=8,
        neck_hidden_sizes=[8, 16, 24, 32], fusion_hidden_size=16, head_in_index=-1,
    )  # fmt: skip
    return package.DepthAnythingForDepthEstimation(config)


def posed(package: Any) -> nn.Module:
    sizes = {**PATCHES, "image_size": [32, 32], "patch_size": [8, 8]}
    backbone = package.VitPoseBackboneConfig(**sizes, out_features=["stage2"])
    return package.VitPoseForPoseEstimation(package.VitPoseConfig(backbone_config=backbone, num_labels=3, scale_factor=2))


def watched() -> Batch:
    """Films and their texts."""
    return {"input_ids": words(), "pixel_values": torch.randn(ROWS, 4, 3, 32, 32)}


def alike_slowly(output: Any, batch: Any) -> Tensor:
    """A share of the loss of CLIP, with which steps are small enough."""
    return 0.1 * alike(output, batch)


def beside() -> Batch:
    """Texts that begin with places for what is seen."""
    places = (torch.arange(TIME) < 4).expand(ROWS, TIME).to(torch.int64)
    return {"pixel_values": images(32), "input_ids": words(), "image_embeds_position_mask": places, "labels": words()}


def without_depth(module: Module) -> Module:
    """A module of which no layer is left out at random."""

    def make() -> nn.Module:
        found = module.make()
        for part in found.modules():
            for name in ("p", "drop_prob"):
                if type(part).__name__ in ("StochasticDepth", "DropPath"):
                    setattr(part, name, 0.0)
        return found

    return Module(module.package, make, module.batch, module.loss)


def video(name: str, side: int, frames: int) -> Module:
    return without_depth(Module("torchvision", filming(name).make, lambda: (torch.randn(ROWS, 3, frames, side, side), classes()), labelled))


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
DETECTOR = {
    "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4, "decoder_attention_heads": 4, "encoder_ffn_dim": 64,
    "decoder_ffn_dim": 64, "num_queries": 5, "dropout": 0.0, "num_labels": CLASSES,
}  # fmt: skip
GPT = {"vocab_size": WORDS, "n_positions": 32, "n_embd": 32, "n_layer": 2, "n_head": 4, "resid_pdrop": 0.0, "embd_pdrop": 0.0,
       "attn_pdrop": 0.0}  # fmt: skip
EXPERTS = {"moe_intermediate_size": 16, "n_routed_experts": 4, "n_shared_experts": 1, "num_experts_per_tok": 2}
MAMBA = {"mamba_n_heads": 4, "mamba_d_state": 8, "mamba_d_head": 16, "mamba_chunk_size": 4}
HEARD = {name: value for name, value in WAVES.items() if not name.startswith(("conv_", "num_conv_"))}

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
    "OLMo": hugging("OlmoConfig", "OlmoForCausalLM", padded_in_front, **LLAMA, clip_qkv=0.5),
    "OLMo 3": hugging("Olmo3Config", "Olmo3ForCausalLM", padded_in_front, **LLAMA, sliding_window=4),
    "GLM": hugging("GlmConfig", "GlmForCausalLM", padded_in_front, **LLAMA, head_dim=8),
    "GLM 4 MoE": hugging("Glm4MoeConfig", "Glm4MoeForCausalLM", **LLAMA, **EXPERTS, head_dim=8, first_k_dense_replace=1),
    "DeepSeek v2": hugging("DeepseekV2Config", "DeepseekV2ForCausalLM", **{**LLAMA, "num_key_value_heads": 4}, **EXPERTS, kv_lora_rank=16,
                           q_lora_rank=16, qk_nope_head_dim=8, qk_rope_head_dim=8, v_head_dim=8, first_k_dense_replace=1),
    "Granite MoE hybrid": hugging("GraniteMoeHybridConfig", "GraniteMoeHybridForCausalLM", **LLAMA, **MAMBA, num_local_experts=4,
                                  num_experts_per_tok=2, shared_intermediate_size=32, layer_types=["mamba", "attention"]),
    "Falcon H1": hugging("FalconH1Config", "FalconH1ForCausalLM", **LLAMA, **MAMBA, mamba_d_ssm=64),
    "Zamba 2": hugging("Zamba2Config", "Zamba2ForCausalLM", **LLAMA, mamba_d_state=8, n_mamba_heads=4, mamba_headdim=16, chunk_size=4,
                       layers_block_type=["mamba", "hybrid"], hybrid_layer_ids=[1], num_mem_blocks=1, use_mamba_kernels=False,
                       use_mem_rope=True),
    "Nemotron H": hugging("NemotronHConfig", "NemotronHForCausalLM", **{**LLAMA, **EXPERTS}, head_dim=8, ssm_state_size=8,
                          layers_block_type=["mamba", "attention", "moe"], mamba_num_heads=4, mamba_head_dim=16, n_groups=1, chunk_size=4,
                          moe_shared_expert_intermediate_size=16, use_mamba_kernels=False),
    "xLSTM": hugging("xLSTMConfig", "xLSTMForCausalLM", vocab_size=WORDS, hidden_size=32, num_heads=4, num_blocks=2, num_hidden_layers=2,
                     chunk_size=8, pad_token_id=0, bos_token_id=1, eos_token_id=2, mode="train"),
    "Gemma 3n": hugging("Gemma3nTextConfig", "Gemma3nForCausalLM", **{**LLAMA, "intermediate_size": [64, 64]}, head_dim=8,
                        vocab_size_per_layer_input=WORDS, hidden_size_per_layer_input=8, num_kv_shared_layers=0, laurel_rank=4,
                        altup_num_inputs=2, sliding_window=4, layer_types=["sliding_attention", "full_attention"],
                        activation_sparsity_pattern=[0.5, 0.0], altup_coef_clip=None),
    "GPT": hugging("OpenAIGPTConfig", "OpenAIGPTDoubleHeadsModel", choices, lambda output, _: output.loss + output.mc_loss, **GPT,
                   summary_first_dropout=0.0),
    "ImageGPT": hugging("ImageGPTConfig", "ImageGPTForCausalImageModeling", **{**GPT, "vocab_size": WORDS + 1}),
    "Decision Transformer": hugging("DecisionTransformerConfig", "DecisionTransformerModel", returns,
                                    lambda output, batch: (output.action_preds - batch["actions"]).square().mean(), state_dim=5, act_dim=3,
                                    hidden_size=32, max_ep_len=16,
                                    **{name: value for name, value in GPT.items() if name not in ("vocab_size", "n_embd")}),
    "T5Gemma": composed(configured("T5GemmaConfig", "T5GemmaForConditionalGeneration", vocab_size=WORDS, dropout_rate=0.0,
                                   encoder={**LLAMA, "head_dim": 8, "sliding_window": 4}, decoder={**LLAMA, "head_dim": 8,
                                                                                                   "sliding_window": 4},
                                   attention_dropout=0.0), masked_text),
    "PEGASUS-X": hugging("PegasusXConfig", "PegasusXForConditionalGeneration", masked_text, **BART, **LAYERS, **PLACES, block_size=4,
                         num_global_tokens=4),
    "ModernBERT decoder": hugging("ModernBertDecoderConfig", "ModernBertDecoderForCausalLM", masked_text, **SMALL, **PLACES,
                                  pad_token_id=0, bos_token_id=1, eos_token_id=2, local_attention=4),
    "EuroBERT": hugging("EuroBertConfig", "EuroBertForMaskedLM", masked_text, **LLAMA, mask_token_id=4),
    "XLM-RoBERTa-XL": hugging("XLMRobertaXLConfig", "XLMRobertaXLForMaskedLM", masked_text, **ENCODER, pad_token_id=1),
    "RoCBert": hugging("RoCBertConfig", "RoCBertForSequenceClassification",
                       lambda: {**dict(sentence()), "input_shape_ids": words(), "input_pronunciation_ids": words()}, **BERT,
                       pronunciation_vocab_size=WORDS, shape_vocab_size=WORDS, pronunciation_embed_dim=8, shape_embed_dim=8),
    "Splinter": hugging("SplinterConfig", "SplinterForQuestionAnswering", asked, **ENCODER, question_token_id=4),
    "MRA": hugging("MraConfig", "MraForSequenceClassification", sentence, **BERT),
    "BROS": hugging("BrosConfig", "BrosForTokenClassification", lambda: boxed(None, 8, labels=named), **{**BERT, "hidden_size": 64},
                    dim_bbox=8),
    "LiLT": hugging("LiltConfig", "LiltForTokenClassification", lambda: boxed(1000, labels=named), **{**BERT, "hidden_size": 48},
                    channel_shrink_ratio=2, max_2d_position_embeddings=1024, pad_token_id=1),
    "LayoutLM v3": hugging("LayoutLMv3Config", "LayoutLMv3ForSequenceClassification",
                           lambda: boxed(1000, pixel_values=lambda: images(32), labels=classes,
                                         attention_mask=lambda: torch.ones(ROWS, TIME, dtype=torch.int64)), **BERT, input_size=32,
                           patch_size=8, coordinate_size=4, shape_size=8, max_2d_position_embeddings=1024, pad_token_id=1),
    "MarkupLM": hugging("MarkupLMConfig", "MarkupLMForTokenClassification", marked, **BERT, max_depth=4, xpath_unit_hidden_size=8,
                        pad_token_id=1),
    "SEW-D": hugging("SEWDConfig", "SEWDForCTC", spoken, **WAVES, pos_att_type=["p2c", "c2p"], squeeze_factor=2, pad_token_id=0),
    "Wav2Vec2 Conformer": hugging("Wav2Vec2ConformerConfig", "Wav2Vec2ConformerForCTC", spoken, **WAVES, pad_token_id=0,
                                  position_embeddings_type="relative", conv_depthwise_kernel_size=5, conformer_conv_dropout=0.0),
    "Wav2Vec2 BERT": hugging("Wav2Vec2BertConfig", "Wav2Vec2BertForCTC", heard, **HEARD, feature_projection_input_dim=16,
                             conv_depthwise_kernel_size=5, conformer_conv_dropout=0.0, pad_token_id=0, left_max_position_embeddings=8,
                             right_max_position_embeddings=4),
    "Parakeet": composed(configured("ParakeetCTCConfig", "ParakeetForCTC", vocab_size=WORDS, pad_token_id=0, encoder_config={
        **SMALL, **PLACES, "num_mel_bins": 16, "subsampling_conv_channels": 8, "conv_kernel_size": 5, "dropout": 0.0,
        "dropout_positions": 0.0, "layerdrop": 0.0, "activation_dropout": 0.0, "attention_dropout": 0.0}), listened),
    "Conditional DETR": detecting("ConditionalDetrConfig", "ConditionalDetrForObjectDetection", d_model=32),
    "Deformable DETR": detecting("DeformableDetrConfig", "DeformableDetrForObjectDetection", ("stage2", "stage3", "stage4"), d_model=32,
                                 num_feature_levels=3),
    "Table Transformer": detecting("TableTransformerConfig", "TableTransformerForObjectDetection", d_model=32),
    "DAB-DETR": detecting("DabDetrConfig", "DabDetrForObjectDetection", hidden_size=32),
    "Depth Anything": composed(deep, lambda: {"pixel_values": images(28)},
                               lambda output, _: (output.predicted_depth - 1.0).square().mean()),
    "ViTPose": composed(posed, lambda: {"pixel_values": images(32)}, lambda output, _: (output.heatmaps - 0.3).square().mean()),
    "PVT": hugging("PvtConfig", "PvtForImageClassification", lambda: picture(SIDE), **DRY, image_size=SIDE, depths=[1, 1, 1, 1],
                   hidden_sizes=[8, 16, 24, 32], num_attention_heads=[1, 2, 2, 4], num_labels=CLASSES, drop_path_rate=0.0),
    "TextNet": hugging("TextNetConfig", "TextNetForImageClassification", lambda: picture(SIDE), stem_out_channels=8,
                       hidden_sizes=[8, 8, 16, 24, 32], conv_layer_kernel_sizes=[[[3, 3]], [[3, 1]], [[1, 3]], [[3, 3]]],
                       conv_layer_strides=[[1], [2], [2], [2]], num_labels=CLASSES),
    "HGNet v2": hugging("HGNetV2Config", "HGNetV2ForImageClassification", lambda: picture(SIDE), embedding_size=8, num_labels=CLASSES,
                        hidden_sizes=[16, 24, 32, 40], stem_channels=[3, 8, 8], stage_in_channels=[8, 16, 24, 32],
                        stage_mid_channels=[8, 8, 8, 8], stage_out_channels=[16, 24, 32, 40], stage_num_blocks=[1, 1, 1, 1],
                        stage_numb_of_layers=[2, 2, 2, 2]),
    "V-JEPA 2": hugging("VJEPA2Config", "VJEPA2ForVideoClassification",
                        lambda: {"pixel_values_videos": torch.randn(ROWS, 4, 3, 32, 32), "labels": classes()}, patch_size=8, crop_size=32,
                        frames_per_clip=4, tubelet_size=2, hidden_size=32, num_attention_heads=4, num_hidden_layers=2, pred_hidden_size=32,
                        pred_num_attention_heads=4, pred_num_hidden_layers=2, num_pooler_layers=1, num_labels=CLASSES),
    "X-CLIP": composed(configured("XCLIPConfig", "XCLIPModel", text_config=TEXTS, projection_dim=32, prompt_layers=1,
                                  prompt_num_attention_heads=4, prompt_attention_dropout=0.0,
                                  vision_config={**PATCHES, "mit_hidden_size": 32, "mit_intermediate_size": 64, "num_frames": 4,
                                                 "mit_num_attention_heads": 4, "mit_num_hidden_layers": 1}), watched, alike_slowly),
    "Kosmos-2": composed(configured("Kosmos2Config", "Kosmos2ForConditionalGeneration", vision_config=PATCHES, latent_query_num=4,
                                    text_config={"vocab_size": WORDS, "embed_dim": 32, "layers": 2, "ffn_dim": 64, "attention_heads": 4,
                                                 **PLACES, "dropout": 0.0, "attention_dropout": 0.0, "layerdrop": 0.0, "pad_token_id": 0,
                                                 "bos_token_id": 1, "eos_token_id": 2, "use_cache": False}), beside),
    "Cohere 2 with pictures": composed(configured("Cohere2VisionConfig", "Cohere2VisionForConditionalGeneration", image_token_id=4,
                                                  downsample_factor=2, alignment_intermediate_size=32,
                                                  vision_config={**PATCHES, "model_type": "siglip_vision_model"},
                                                  text_config={**LLAMA, "model_type": "cohere2", "use_cache": False}), lambda: captions(4)),
    "GOT-OCR 2": composed(configured("GotOcr2Config", "GotOcr2ForConditionalGeneration", image_token_index=4, image_seq_length=4,
                                     vision_config={"hidden_size": 32, "output_channels": 8, "num_hidden_layers": 2, "mlp_dim": 32,
                                                    "num_attention_heads": 4, "image_size": 128, "patch_size": 16, "window_size": 2,
                                                    "global_attn_indexes": [1]},
                                     text_config={**LLAMA, "model_type": "qwen2", "use_cache": False}),
                          lambda: {**dict(captions(4)), "pixel_values": images(128)}),
    "Swin 3D": video("swin3d_t", 32, 4),
    "MaxViT": without_depth(Module("torchvision", vision("maxvit_t", 224).make, lambda: (images(224), classes()), labelled)),
    "Swin v2 of torchvision": without_depth(vision("swin_v2_t")),
    "BEiT": timm("beit_base_patch16_224", img_size=SIDE, depth=2, embed_dim=48, num_heads=4),
    "CoaT": timm("coat_lite_tiny", img_size=SIDE),
    "VoVNet": timm("ese_vovnet19b_dw"),
    "EfficientFormer v2": without_depth(timm("efficientformerv2_s0", 224)),
    "EfficientViT": timm("efficientvit_m0", 224),
    "FocalNet": timm("focalnet_tiny_srf", drop_path_rate=0.0),
    "Hiera": timm("hiera_tiny_224", 224),
    "MobileViT": timm("mobilevit_xxs"),
    "PVT v2": timm("pvt_v2_b0"),
    "RepViT": timm("repvit_m0_9"),
    "SHViT": timm("shvit_s1"),
    "Swin v2 CR": without_depth(timm("swinv2_cr_tiny_224", img_size=SIDE, window_size=2)),
    "ViT of relative positions": timm("vit_relpos_small_patch16_224", img_size=SIDE, depth=2),
    "LeViT": without_depth(timm("levit_128s", 224)),
    "MViT v2": timm("mvitv2_tiny", img_size=SIDE),
    "NaFlexViT": timm("naflexvit_base_patch16_gap", depth=2, embed_dim=48, num_heads=4),
    "ViT of SAM": timm("samvit_base_patch16", img_size=SIDE, depth=2, embed_dim=48, num_heads=4, global_attn_indexes=(1,)),
    **WRITTEN,
}  # fmt: skip
