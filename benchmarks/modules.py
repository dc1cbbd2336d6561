"""Trains modules of torchvision, timm and transformers by plans, and says how far their losses are from eager PyTorch's.

    GRAPHC=target/release/graphc PYTHONPATH=python python benchmarks/modules.py [NAME ...] [--others] [--steps 5] [--speed 20]

All of them where none is named, or with `--others` those of `modules_others.py`; those of packages that are not installed are passed over.
By torchrun each process has its own rows. Sizes are small, weights random, dropout is off as it draws other numbers. Each ends in a line:
what it is, its losses and eager's, or what kept it from being trained; the last one counts.
Batch norms of few elements can blow rounding up, so that eager's own losses are far from those in float64: where both are more than 1e-4
apart a plan's losses must be no more than twice as far from float64's as eager's are, and the first 1e-4 from eager's. The exit status is
1 where one is apart, or is refused.
"""

from __future__ import annotations

import argparse
import importlib
import os
import statistics
import sys
import time
import warnings

import torch
from modules_kinds import (
    BART,
    BERT,
    CLASSES,
    CLIP,
    DRY,
    JAMBA,
    LAYERS,
    LLAMA,
    PATCHED_SERIES,
    PATCHES,
    POOL,
    PROPHET,
    ROWS,
    SEGFORMER,
    SERIES,
    SIDE,
    SWIN,
    SWITCH,
    T5,
    TIME,
    WAVES,
    WHISPER,
    WORDS,
    Batch,
    Module,
    alike,
    classes,
    curves,
    detected,
    film,
    filming,
    flow,
    hugging,
    images,
    labelled,
    masked_text,
    masks,
    pairs,
    picture,
    segmenting,
    sentence,
    series,
    sounds,
    spectra,
    spoken,
    text,
    timm,
    vision,
    waves,
    with_auxiliary,
    words,
)
from modules_others import OTHERS
from torch import Tensor, nn
from torch.utils import _pytree as pytree

import graphc

RANK, WORLD = (int(os.environ.get(name, default)) for name, default in (("RANK", 0), ("WORLD_SIZE", 1)))

TOLERANCE = 1e-4

MODULES = {
    "ResNet 18": vision("resnet18"),
    "MobileNet v2": vision("mobilenet_v2", dropout=0.0),
    "MobileNet v3": vision("mobilenet_v3_small", dropout=0.0),
    "RegNet": vision("regnet_y_400mf"),
    "EfficientNet": vision("efficientnet_b0", dropout=0.0, stochastic_depth_prob=0.0),
    "ShuffleNet": vision("shufflenet_v2_x0_5"),
    "SqueezeNet": vision("squeezenet1_1", dropout=0.0),
    "DenseNet": vision("densenet121"),
    "VGG": vision("vgg11_bn", 32, dropout=0.0),
    "ConvNeXt": vision("convnext_tiny", stochastic_depth_prob=0.0),
    "ViT of torchvision": vision("vit_b_16", image_size=SIDE),
    "DeiT": timm("deit_tiny_patch16_224", img_size=SIDE),
    "MLP-Mixer": timm("mixer_s32_224", img_size=SIDE),
    "PoolFormer of timm": timm("poolformer_s12", drop_path_rate=0.0),
    "ResNeXt of timm": timm("resnext26ts"),
    "GPT-2": hugging("GPT2Config", "GPT2LMHeadModel", vocab_size=WORDS, n_positions=16, n_embd=32, n_layer=2, n_head=4,
                     resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=1, eos_token_id=2),
    "Llama": hugging("LlamaConfig", "LlamaForCausalLM", **LLAMA),
    "Mistral": hugging("MistralConfig", "MistralForCausalLM", **LLAMA, sliding_window=4),
    "Mixtral": hugging("MixtralConfig", "MixtralForCausalLM", **LLAMA, num_local_experts=4, experts_implementation="batched_mm"),
    "Gemma 2": hugging("Gemma2Config", "Gemma2ForCausalLM", **LLAMA, head_dim=8, sliding_window=4),
    "Gemma 3": hugging("Gemma3TextConfig", "Gemma3ForCausalLM", **LLAMA, head_dim=8, sliding_window=4),
    "Qwen 3": hugging("Qwen3Config", "Qwen3ForCausalLM", **LLAMA, head_dim=8),
    "Phi-3": hugging("Phi3Config", "Phi3ForCausalLM", **LLAMA),
    "BERT": hugging("BertConfig", "BertForSequenceClassification", sentence, **BERT),
    "RoBERTa": hugging("RobertaConfig", "RobertaForSequenceClassification", sentence, **BERT, pad_token_id=1),
    "DistilBERT": hugging("DistilBertConfig", "DistilBertForSequenceClassification", sentence, vocab_size=WORDS, dim=32, n_layers=2,
                          n_heads=4, hidden_dim=64, max_position_embeddings=32, num_labels=CLASSES, dropout=0.0, attention_dropout=0.0,
                          seq_classif_dropout=0.0),
    "DeBERTa": hugging("DebertaV2Config", "DebertaV2ForSequenceClassification", lambda: (words(), classes()), labelled, **BERT,
                       relative_attention=True, pos_att_type=["p2c", "c2p"], pooler_dropout=0.0, pooler_hidden_size=32),
    "T5": hugging("T5Config", "T5ForConditionalGeneration", **T5),
    "BART": hugging("BartConfig", "BartForConditionalGeneration", **BART),
    "Whisper": hugging("WhisperConfig", "WhisperForConditionalGeneration", sounds, **WHISPER),
    "CLIP": hugging("CLIPConfig", "CLIPModel", pairs, alike, **CLIP),
    "ViT": hugging("ViTConfig", "ViTForImageClassification", picture, **PATCHES, num_labels=CLASSES, hidden_dropout_prob=0.0,
                   attention_probs_dropout_prob=0.0),
    "Swin": hugging("SwinConfig", "SwinForImageClassification", picture, **SWIN, num_labels=CLASSES, drop_path_rate=0.0),
    "SegFormer": hugging("SegformerConfig", "SegformerForSemanticSegmentation", masks, **SEGFORMER),
    "PoolFormer": hugging("PoolFormerConfig", "PoolFormerForImageClassification", lambda: picture(SIDE), **POOL, drop_path_rate=0.0),
    "AlexNet": vision("alexnet"),
    "Inception v3": Module("torchvision", lambda: vision("inception_v3", init_weights=False).make(), lambda: (images(299), classes()),
                           with_auxiliary),
    "MnasNet": vision("mnasnet0_5", 96),
    "DeepLab v3": segmenting("deeplabv3_mobilenet_v3_large"),
    "ResNet of films": filming("r3d_18"),
    "GhostNet": timm("ghostnet_100", drop_rate=0.0),
    "HRNet": timm("hrnet_w18_small"),
    "EdgeNeXt": timm("edgenext_xx_small"),
    "CoAtNet": timm("coatnet_0_rw_224", img_size=SIDE),
    "CrossViT": timm("crossvit_tiny_240", 240),
    "Sequencer": timm("sequencer2d_s", 56),
    "gMLP": timm("gmlp_ti16_224", img_size=SIDE),
    "EfficientFormer": timm("efficientformer_l1", 224),
    "MobileBERT": hugging("MobileBertConfig", "MobileBertForSequenceClassification", sentence, **BERT, embedding_size=16,
                          intra_bottleneck_size=16, num_feedforward_networks=2),
    "FNet": hugging("FNetConfig", "FNetForSequenceClassification", sentence, **BERT),
    "Nystromformer": hugging("NystromformerConfig", "NystromformerForSequenceClassification", sentence, **BERT, segment_means_seq_len=TIME,
                             num_landmarks=4, conv_kernel_size=5),
    "ConvBERT": hugging("ConvBertConfig", "ConvBertForSequenceClassification", sentence, **BERT, embedding_size=16),
    "OLMoE": hugging("OlmoeConfig", "OlmoeForCausalLM", **LLAMA, num_experts=4, num_experts_per_tok=2),
    "Jamba": hugging("JambaConfig", "JambaForCausalLM", **LLAMA, **JAMBA, use_mamba_kernels=False),
    "Falcon Mamba": hugging("FalconMambaConfig", "FalconMambaForCausalLM", vocab_size=WORDS, hidden_size=32, state_size=4,
                            num_hidden_layers=2, pad_token_id=0),
    "Recurrent Gemma": hugging("RecurrentGemmaConfig", "RecurrentGemmaForCausalLM", **{**LLAMA, "num_hidden_layers": 3,
                               "num_key_value_heads": 1}, lru_width=32, attention_window_size=4),
    "M2M100": hugging("M2M100Config", "M2M100ForConditionalGeneration", **BART, **LAYERS, max_position_embeddings=32),
    "ProphetNet": hugging("ProphetNetConfig", "ProphetNetForConditionalGeneration", **PROPHET),
    "Switch Transformers": hugging("SwitchTransformersConfig", "SwitchTransformersForConditionalGeneration", masked_text, **T5, **SWITCH,
                                   router_jitter_noise=0.0),
    "NLLB-MoE": hugging("NllbMoeConfig", "NllbMoeForConditionalGeneration", masked_text, **BART, **LAYERS, max_position_embeddings=32,
                        num_experts=4, expert_capacity=16, encoder_sparse_step=2, decoder_sparse_step=2, router_jitter_noise=0.0),
    "JetMoE": hugging("JetMoeConfig", "JetMoeForCausalLM", vocab_size=WORDS, hidden_size=32, num_hidden_layers=2, num_key_value_heads=4,
                      kv_channels=8, intermediate_size=32, max_position_embeddings=32, num_local_experts=4, num_experts_per_tok=2,
                      pad_token_id=0, bos_token_id=1, eos_token_id=2),
    "LongT5": hugging("LongT5Config", "LongT5ForConditionalGeneration", **T5, local_radius=3),
    "Moonshine": hugging("MoonshineConfig", "MoonshineForConditionalGeneration",
                         lambda: {"input_values": torch.randn(ROWS, 2000), "labels": words()}, vocab_size=WORDS, hidden_size=32,
                         intermediate_size=64, encoder_num_hidden_layers=2, decoder_num_hidden_layers=2, encoder_num_attention_heads=4,
                         decoder_num_attention_heads=4, pad_token_id=0, bos_token_id=1, eos_token_id=2, decoder_start_token_id=1),
    "HuBERT": hugging("HubertConfig", "HubertForSequenceClassification", waves, **WAVES),
    "HuBERT with CTC": hugging("HubertConfig", "HubertForCTC", spoken, **WAVES, pad_token_id=0),
    "AST": hugging("ASTConfig", "ASTForAudioClassification", spectra, **{**PATCHES, **DRY}, frequency_stride=8, time_stride=8,
                   max_length=32, num_mel_bins=16, num_labels=CLASSES),
    "Speech2Text": hugging("Speech2TextConfig", "Speech2TextForConditionalGeneration",
                           lambda: {"input_features": torch.randn(ROWS, 32, 8), "labels": words()}, **BART, **LAYERS,
                           input_feat_per_channel=8, max_source_positions=32, max_target_positions=32, conv_channels=16),
    "Time Series": hugging("TimeSeriesTransformerConfig", "TimeSeriesTransformerForPrediction", series, **SERIES),
    "PatchTST": hugging("PatchTSTConfig", "PatchTSTForPrediction", curves, **PATCHED_SERIES),
    "YOLOS": hugging("YolosConfig", "YolosForObjectDetection", lambda: {"pixel_values": images(32)}, detected,
                     **{**PATCHES, "image_size": [32, 32], **DRY}, num_detection_tokens=5, num_labels=CLASSES),
    "R(2+1)D": filming("r2plus1d_18"),
    "LR-ASPP": segmenting("lraspp_mobilenet_v3_large"),
    "RAFT": Module("torchvision", flow, lambda: (torch.rand(ROWS, 2, 3, 128, 128), classes()), lambda output, _: sum(
                   (part.abs().mean() for part in output), torch.zeros(()))),
    "Twins": timm("twins_svt_small", 224),
    "NFNet": timm("nfnet_l0"),
    "FastViT": timm("fastvit_t8"),
    "DaViT": timm("davit_tiny", 224),
    "InceptionNeXt": timm("inception_next_atto"),
    "CAFormer": timm("caformer_s18"),
    "TinyNet": timm("tinynet_e"),
    "LCNet": timm("lcnet_050"),
    "GhostNet v2": timm("ghostnetv2_100", drop_rate=0.0),
    "MambaOut": timm("mambaout_femto"),
    "TinyViT": timm("tiny_vit_5m_224", 224),
    "SwiftFormer": timm("swiftformer_xs"),
    "StarNet": timm("starnet_s1"),
    "PiT": timm("pit_ti_224", 224),
    "mT5": hugging("MT5Config", "MT5ForConditionalGeneration", **T5),
    "UniSpeech": hugging("UniSpeechConfig", "UniSpeechForSequenceClassification", waves, **WAVES),
    "Data2Vec": hugging("Data2VecAudioConfig", "Data2VecAudioForCTC", spoken, **{**WAVES, "num_conv_pos_embeddings": 2},
                        conv_pos_kernel_size=5, pad_token_id=0),
    "ConvNeXt v2": hugging("ConvNextV2Config", "ConvNextV2ForImageClassification", picture, **POOL),
    "GLPN": hugging("GLPNConfig", "GLPNForDepthEstimation",
                    lambda: {"pixel_values": images(), "labels": torch.rand(ROWS, SIDE, SIDE) + 0.1}, **SEGFORMER),
    "ViT-MAE": hugging("ViTMAEConfig", "ViTMAEForPreTraining", lambda: {"pixel_values": images(32), "noise": torch.rand(ROWS, 16)},
                       **{**PATCHES, **DRY}, decoder_hidden_size=32, decoder_num_hidden_layers=1, decoder_num_attention_heads=4,
                       decoder_intermediate_size=32),
    "ViViT": hugging("VivitConfig", "VivitForVideoClassification", film, **{**PATCHES, **DRY}, num_labels=CLASSES, num_frames=4,
                     tubelet_size=[2, 8, 8]),
    "Informer": hugging("InformerConfig", "InformerForPrediction", series, **SERIES),
    "PatchTSMixer": hugging("PatchTSMixerConfig", "PatchTSMixerForPrediction", curves, context_length=32, prediction_length=8,
                            patch_length=8, patch_stride=8, num_input_channels=3, d_model=16, num_layers=2, dropout=0.0, head_dropout=0.0),
    "DBRX": hugging("DbrxConfig", "DbrxForCausalLM", d_model=32, n_heads=4, n_layers=2, max_seq_len=32, vocab_size=WORDS, pad_token_id=0,
                    attn_config={"kv_n_heads": 2, "clip_qkv": 8, "rope_theta": 10000.0},
                    ffn_config={"ffn_hidden_size": 32, "moe_num_experts": 4, "moe_top_k": 2, "hidden_size": 32}),
    "Qwen 2 MoE": hugging("Qwen2MoeConfig", "Qwen2MoeForCausalLM", **LLAMA, num_experts=4, num_experts_per_tok=2,
                          moe_intermediate_size=32, shared_expert_intermediate_size=32),
    "Zamba": hugging("ZambaConfig", "ZambaForCausalLM", **{**LLAMA, "num_hidden_layers": 5}, attention_hidden_size=64,
                     attention_head_dim=16, mamba_d_state=4, mamba_dt_rank=4, n_mamba_heads=2, attn_layer_period=2, attn_layer_offset=1,
                     use_mamba_kernels=False),
    "CANINE": hugging("CanineConfig", "CanineForSequenceClassification", lambda: {"input_ids": words(time_=16), "labels": classes()},
                      **{name: value for name, value in BERT.items() if name != "vocab_size"}, num_hash_buckets=64,
                      local_transformer_stride=4, downsampling_rate=4),
    "EnCodec": hugging("EncodecConfig", "EncodecModel", lambda: {"input_values": torch.randn(ROWS, 1, 640)},
                       lambda output, _: output.audio_values.square().mean(), num_filters=4, hidden_size=16, codebook_size=16,
                       codebook_dim=16, upsampling_ratios=[4, 2], num_lstm_layers=1),
    "TAPAS": hugging("TapasConfig", "TapasForMaskedLM", lambda: text(token_type_ids=lambda: torch.zeros(ROWS, TIME, 7, dtype=torch.int64)),
                     **BERT, type_vocab_sizes=[3, 8, 8, 2, 8, 8, 4]),
    "MiniMax": hugging("MiniMaxConfig", "MiniMaxForCausalLM", **LLAMA, num_local_experts=4, block_size=4, head_dim=8,
                       layer_types=["linear_attention", "full_attention"]),
    "Chameleon": hugging("ChameleonConfig", "ChameleonForConditionalGeneration", **LLAMA, vocabulary_map={"<image>": 4},
                         vq_config={"embed_dim": 16, "num_embeddings": 8, "base_channels": 32, "channel_multiplier": [1, 1],
                                    "num_res_blocks": 1, "latent_channels": 16, "resolution": 32}),
}  # fmt: skip


def begin(module: Module) -> tuple[nn.Module, torch.optim.Optimizer]:
    """A module with the same weights each time, and what trains it."""
    torch.manual_seed(0)
    model = module.make().train()
    for part in model.modules():
        if isinstance(part, nn.Dropout):
            part.p = 0.0
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    return model, torch.optim.SGD(trained, lr=1e-3, momentum=0.9)


def eager(module: Module, batch: Batch, steps: int, dtype: torch.dtype = torch.float32) -> list[float]:
    """Losses of PyTorch alone, in this element type."""
    model, optimizer = begin(module)
    model.to(dtype)
    batch = pytree.tree_map_only(Tensor, lambda part: part.to(dtype) if part.is_floating_point() else part, batch)
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        output = model(**batch) if isinstance(batch, dict) else model(batch[0])
        loss = output.loss if module.loss is None else module.loss(output, batch)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def speed(module: Module, batch: Batch, steps: int) -> str:
    """What a step takes of the processor's time, eager and by a plan in turns: the medians."""
    (model, optimizer), (other, another) = begin(module), begin(module)
    parallel = graphc.parallelize(other, batch, loss=module.loss, optimizer=another)

    def by_hand() -> None:
        optimizer.zero_grad()
        output = model(**batch) if isinstance(batch, dict) else model(batch[0])
        loss = output.loss if module.loss is None else module.loss(output, batch)
        loss.backward()
        optimizer.step()

    took: tuple[list[float], list[float]] = ([], [])
    for _ in range(steps + 2):
        for own, work in zip(took, (by_hand, lambda: parallel.step(batch)), strict=True):
            begun = time.process_time()
            work()
            own.append(time.process_time() - begun)
    eagers, plans = (statistics.median(own[2:]) for own in took)
    return f"; a step {1e3 * plans:.1f} ms, eager {1e3 * eagers:.1f} ms, ratio {plans / eagers:.2f}"


def distance(expected: list[float], found: list[float]) -> float:
    """How far losses are apart, by their size where that is more than 1."""
    return max(abs(a - b) / max(abs(a), 1.0) for a, b in zip(expected, found, strict=True))


def planned(module: Module, batch: Batch, steps: int) -> list[float]:
    """Losses of a plan, of which each process has its rows.

    Raises:
        graphc.Error: where there is none.
    """
    model, optimizer = begin(module)
    count = ROWS // WORLD
    rows = pytree.tree_map_only(Tensor, lambda part: part[RANK * count : (RANK + 1) * count], batch)
    parallel = graphc.parallelize(model, rows, loss=module.loss, optimizer=optimizer)
    return [float(parallel.step(rows)) for _ in range(steps)]


def tried(name: str, module: Module, steps: int, timed: int) -> bool | None:
    """Whether a module trains to eager's losses; ``None`` where its package is not there."""
    begun = time.perf_counter()
    try:
        importlib.import_module(module.package)
    except ImportError:
        print(f"{name:20} passed over: {module.package} is not installed", flush=True)
        return None
    torch.manual_seed(1)
    batch = module.batch()
    try:
        expected, found = eager(module, batch, steps), planned(module, batch, steps)
    except graphc.Error as error:
        print(f"{name:20} refused: {error}", flush=True)
        return False
    apart = distance(expected, found)
    same = apart < TOLERANCE
    said = f"{found[0]:.6f} .. {found[-1]:.6f}, eager {expected[0]:.6f} .. {expected[-1]:.6f}, apart {apart:.0e}"
    if not same:
        exact = eager(module, batch, steps, torch.float64)
        own, eagers = distance(exact, found), distance(exact, expected)
        same = own <= 2.0 * eagers and distance(expected[:1], found[:1]) < TOLERANCE
        said += f"; from float64 {own:.0e}, eager {eagers:.0e}"
    said += speed(module, batch, timed) if timed else ""
    print(f"{name:20} {'trains' if same else 'APART'}: {said} ({time.perf_counter() - begun:.0f} s)", flush=True)
    return same


def main() -> int:
    """Tries the modules that are named."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="modules; default all: " + ", ".join(MODULES))
    parser.add_argument("--others", action="store_true", help="the others, default all: " + ", ".join(OTHERS))
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--speed", type=int, default=0, metavar="STEPS", help="time so many steps too, on one thread")
    given = parser.parse_args()
    if given.speed:
        torch.set_num_threads(1)
    modules = OTHERS if given.others else MODULES
    unknown = [name for name in given.names if name not in modules]
    if unknown:
        parser.error(f"there is no module `{unknown[0]}`: they are {', '.join(modules)}")
    warnings.simplefilter("ignore")
    if RANK > 0:
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115
    found = [tried(name, modules[name], given.steps, given.speed) for name in given.names or modules]
    print(f"{found.count(True)} of {len(found) - found.count(None)} modules train to eager's losses")
    return 1 if False in found else 0


if __name__ == "__main__":
    raise SystemExit(main())
