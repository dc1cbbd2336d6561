"""Families of models of transformers, torchvision and timm, small and with random weights: `benchmarks/exports.py` exports them."""

import torch
from torch import nn

TEXT = dict(vocab_size=96, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4)
DECODER = dict(TEXT, num_key_value_heads=2, max_position_embeddings=32, use_cache=False, pad_token_id=None, bos_token_id=1, eos_token_id=2)
PLAIN = dict(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)


class Called(nn.Module):
    """A model and what is computed with it."""

    def __init__(self, model, call):
        super().__init__()
        self.model, self.call = model, call

    def forward(self, *inputs):
        return self.call(self.model, *inputs)


class Headed(nn.Module):
    """Classes of what a model computes."""

    def __init__(self, model, call, width, classes=5):
        super().__init__()
        self.model, self.call, self.head = model, call, nn.Linear(width, classes)

    def forward(self, *inputs):
        return self.head(self.call(self.model, *inputs))


def ids(batch=4, time=16, vocabulary=96):
    return torch.randint(3, vocabulary, (batch, time))


def mask(batch=4, time=16):
    lengths = torch.tensor([time, time - 3, time - 1, time - 6])[:batch]
    return (torch.arange(time) < lengths[:, None]).long()


def images(size=32, batch=4):
    return torch.randn(batch, 3, size, size)


def make(name, config, fields, eager=False):
    """A model of transformers by its name, with the fields of its configuration."""
    import transformers

    kind, built = getattr(transformers, name), getattr(transformers, config)(**fields)
    if eager:
        built._attn_implementation = "eager"
    # Experts in groups are no op of ONNX.
    built._experts_implementation = "batched_mm"
    return kind._from_config(built)


def decoder(name, config=None, more=None, masked=False, eager=False):
    fields = {**DECODER, **(more or {})}
    model = make(name + "ForCausalLM", config or name + "Config", fields, eager)
    if masked:
        return Called(model, lambda model, x, m: model(input_ids=x, attention_mask=m).logits), {"ids": ids(), "mask": mask()}
    return Called(model, lambda model, x: model(input_ids=x).logits), {"ids": ids()}


def qwen3():
    return decoder("Qwen3", more=dict(head_dim=8), masked=True)


def qwen3_moe():
    experts = dict(head_dim=8, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=16, decoder_sparse_step=1, norm_topk_prob=True)
    return decoder("Qwen3Moe", more=experts)


def mixtral():
    return decoder("Mixtral", more=dict(num_local_experts=4, num_experts_per_tok=2))


def llama4():
    fields = dict(head_dim=8, num_local_experts=4, num_experts_per_tok=1, intermediate_size_mlp=48, interleave_moe_layer_step=1,
                  attention_chunk_size=8, no_rope_layers=[1, 0])
    return decoder("Llama4", "Llama4TextConfig", fields)


def gemma3():
    return decoder("Gemma3", "Gemma3TextConfig", dict(head_dim=8, sliding_window=6, query_pre_attn_scalar=8))


def phi3():
    return decoder("Phi3", more=dict(sliding_window=None), masked=True)


def olmo2():
    return decoder("Olmo2")


def granite():
    return decoder("Granite")


def cohere():
    return decoder("Cohere")


def gpt_oss():
    return decoder("GptOss", more=dict(head_dim=8, num_local_experts=4, num_experts_per_tok=2, sliding_window=6,
                                       rope_parameters=dict(rope_type="default", rope_theta=10000.0)), eager=True)


def deepseek_v3():
    return decoder("DeepseekV3", more=dict(num_key_value_heads=4, moe_intermediate_size=16, n_routed_experts=4, num_experts_per_tok=2, n_group=2, topk_group=1,
                                           q_lora_rank=16, kv_lora_rank=16, qk_rope_head_dim=4, qk_nope_head_dim=8, v_head_dim=8,
                                           first_k_dense_replace=1, n_shared_experts=1))


def bloom():
    fields = dict(vocab_size=96, hidden_size=32, n_layer=2, n_head=4, use_cache=False, hidden_dropout=0.0, attention_dropout=0.0)
    return decoder("Bloom", more=fields, masked=True)


def falcon():
    return decoder("Falcon", more=dict(alibi=False, multi_query=True, new_decoder_architecture=False, parallel_attn=True, bias=False))


def falcon_alibi():
    return decoder("Falcon", more=dict(alibi=True, multi_query=False, parallel_attn=False, bias=True), masked=True)


def opt():
    return decoder("OPT", more=dict(ffn_dim=48, word_embed_proj_dim=32, dropout=0.0, attention_dropout=0.0), masked=True)


def mpt():
    return decoder("Mpt", more=dict(d_model=32, n_heads=4, n_layers=2, expansion_ratio=2, max_seq_len=32), masked=True)


def gpt_neox():
    return decoder("GPTNeoX", more=dict(hidden_dropout=0.0, attention_dropout=0.0), masked=True)


def gpt_j():
    return decoder("GPTJ", more=dict(n_embd=32, n_layer=2, n_head=4, n_positions=32, rotary_dim=4, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0))


def stablelm():
    return decoder("StableLm", more=dict(partial_rotary_factor=0.5))


def mamba():
    return decoder("Mamba", more=dict(state_size=4, expand=2, conv_kernel=3, time_step_rank=4))


def mamba2():
    return decoder("Mamba2", more=dict(state_size=8, expand=2, conv_kernel=3, num_heads=8, head_dim=8, n_groups=2, chunk_size=8))


def rwkv():
    model = make("RwkvForCausalLM", "RwkvConfig", dict(vocab_size=96, hidden_size=32, num_hidden_layers=2, context_length=32,
                                                              attention_hidden_size=32, intermediate_size=48, use_cache=False))
    return Called(model, lambda model, x: model(input_ids=x, use_cache=False).logits), {"ids": ids(time=6)}


def xlnet():
    model = make("XLNetLMHeadModel", "XLNetConfig", dict(vocab_size=96, d_model=32, n_layer=2, n_head=4, d_inner=48, dropout=0.0, summary_last_dropout=0.0))
    return Called(model, lambda model, x, m: model(input_ids=x, attention_mask=m.float()).logits), {"ids": ids(), "mask": mask()}


def text_classes(name, more=None, masked=True):
    fields = {**TEXT, **PLAIN, "max_position_embeddings": 40, "num_labels": 5, "pad_token_id": 0, **(more or {})}
    model = make(name + "ForSequenceClassification", name + "Config", fields)
    if masked:
        return Called(model, lambda model, x, m: model(input_ids=x, attention_mask=m).logits), {"ids": ids(), "mask": mask()}
    return Called(model, lambda model, x: model(input_ids=x).logits), {"ids": ids()}


def electra():
    return text_classes("Electra", dict(embedding_size=16))


def albert():
    return text_classes("Albert", dict(embedding_size=16, classifier_dropout_prob=0.0))


def deberta_v1():
    return text_classes("Deberta", dict(relative_attention=True, pos_att_type=["c2p", "p2c"], max_relative_positions=8))


def longformer():
    return text_classes("Longformer", dict(attention_window=4, pad_token_id=1), masked=False)


def modernbert():
    fields = dict(vocab_size=96, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4, max_position_embeddings=32,
                  local_attention=6, global_attn_every_n_layers=2, pad_token_id=0, bos_token_id=1, eos_token_id=2, cls_token_id=1, sep_token_id=2)
    model = make("ModernBertForMaskedLM", "ModernBertConfig", fields)
    return Called(model, lambda model, x, m: model(input_ids=x, attention_mask=m).logits), {"ids": ids(), "mask": mask()}


def big_bird():
    return text_classes("BigBird", dict(attention_type="original_full"))


def funnel():
    fields = dict(vocab_size=96, d_model=32, n_head=4, d_head=8, d_inner=48, block_sizes=[1, 1], num_decoder_layers=1, num_labels=5, hidden_dropout=0.0,
                  attention_dropout=0.0, activation_dropout=0.0)
    model = make("FunnelForSequenceClassification", "FunnelConfig", fields)
    return Called(model, lambda model, x: model(input_ids=x).logits), {"ids": ids()}


def seq2seq(name, fields, masked=False):
    fields = dict(vocab_size=96, pad_token_id=0, bos_token_id=1, eos_token_id=2, decoder_start_token_id=1, forced_eos_token_id=None, use_cache=False, **fields)
    model = make(name, name.replace("ForConditionalGeneration", "").replace("MTModel", "") + "Config", fields)
    if masked:
        return (Called(model, lambda model, x, m, y: model(input_ids=x, attention_mask=m, decoder_input_ids=y, use_cache=False).logits),
                {"ids": ids(), "mask": mask(), "decoder_ids": ids(time=8)})
    return Called(model, lambda model, x, y: model(input_ids=x, decoder_input_ids=y, use_cache=False).logits), {"ids": ids(), "decoder_ids": ids(time=8)}


def bart():
    return seq2seq("BartForConditionalGeneration", dict(d_model=32, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4, decoder_attention_heads=4,
                                                        encoder_ffn_dim=48, decoder_ffn_dim=48, max_position_embeddings=32, dropout=0.0), masked=True)


def marian():
    return seq2seq("MarianMTModel", dict(d_model=32, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4, decoder_attention_heads=4,
                                         encoder_ffn_dim=48, decoder_ffn_dim=48, max_position_embeddings=32, dropout=0.0))


def t5_whole():
    return seq2seq("T5ForConditionalGeneration", dict(d_model=32, d_kv=8, d_ff=48, num_layers=2, num_heads=4, dropout_rate=0.0, feed_forward_proj="gated-gelu"),
                   masked=True)


def whisper():
    fields = dict(vocab_size=96, d_model=32, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4, decoder_attention_heads=4, encoder_ffn_dim=48,
                  decoder_ffn_dim=48, num_mel_bins=8, max_source_positions=16, max_target_positions=16, dropout=0.0, pad_token_id=0, bos_token_id=1,
                  eos_token_id=2, decoder_start_token_id=1, use_cache=False, suppress_tokens=[], begin_suppress_tokens=[])
    model = make("WhisperForConditionalGeneration", "WhisperConfig", fields)
    call = lambda model, x, y: model(input_features=x, decoder_input_ids=y, use_cache=False).logits
    return Called(model, call), {"features": torch.randn(4, 8, 32), "decoder_ids": ids(time=8)}


def wav2vec2():
    fields = dict(vocab_size=12, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=48, conv_dim=[16, 16], conv_stride=[4, 2],
                  conv_kernel=[6, 3], num_conv_pos_embeddings=8, num_conv_pos_embedding_groups=4, hidden_dropout=0.0, activation_dropout=0.0,
                  attention_dropout=0.0, feat_proj_dropout=0.0, final_dropout=0.0, layerdrop=0.0, apply_spec_augment=False, feat_extract_norm="layer",
                  do_stable_layer_norm=True)
    model = make("Wav2Vec2ForCTC", "Wav2Vec2Config", fields)
    return Called(model, lambda model, x: model(input_values=x).logits), {"x": torch.randn(4, 128)}


def image_classes(name, config, fields, size=32):
    model = make(name, config, dict(num_labels=5, image_size=size, **fields))
    return Called(model, lambda model, x: model(pixel_values=x).logits), {"x": images(size)}


ENCODER = dict(hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=48, patch_size=8, **PLAIN)


def swin_hf():
    return image_classes("SwinForImageClassification", "SwinConfig", dict(embed_dim=16, depths=[2, 2], num_heads=[2, 4], window_size=4, patch_size=4,
                                                                          drop_path_rate=0.0, **PLAIN))


def beit():
    return image_classes("BeitForImageClassification", "BeitConfig", dict(ENCODER, drop_path_rate=0.0, use_relative_position_bias=True))


def dinov2():
    return image_classes("Dinov2ForImageClassification", "Dinov2Config", dict(ENCODER, mlp_ratio=2, drop_path_rate=0.0))


def convnext():
    return image_classes("ConvNextForImageClassification", "ConvNextConfig", dict(hidden_sizes=[8, 16], depths=[1, 2], num_stages=2, patch_size=4, drop_path_rate=0.0))


def segformer():
    fields = dict(num_encoder_blocks=2, depths=[1, 1], sr_ratios=[2, 1], hidden_sizes=[16, 32], patch_sizes=[7, 3], strides=[4, 2], num_attention_heads=[2, 4],
                  mlp_ratios=[2, 2], decoder_hidden_size=32, classifier_dropout_prob=0.0, drop_path_rate=0.0, num_labels=5, **PLAIN)
    model = make("SegformerForSemanticSegmentation", "SegformerConfig", fields)
    return Called(model, lambda model, x: model(pixel_values=x).logits), {"x": images()}


def detr():
    fields = dict(d_model=32, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4, decoder_attention_heads=4, encoder_ffn_dim=48, decoder_ffn_dim=48,
                  num_queries=6, num_labels=5, dropout=0.0, use_timm_backbone=False, use_pretrained_backbone=False, backbone=None)
    from transformers import DetrConfig, DetrForObjectDetection, ResNetConfig

    backbone = ResNetConfig(embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], layer_type="basic", out_features=["stage2"])
    model = DetrForObjectDetection(DetrConfig(backbone_config=backbone, **fields))
    return Called(model, lambda model, x: model(pixel_values=x).logits), {"x": images(64)}


VISION = dict(hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4, image_size=32, patch_size=8)
WORDS = dict(vocab_size=96, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4, max_position_embeddings=16, pad_token_id=0,
             bos_token_id=1, eos_token_id=2)


def clip():
    from transformers import CLIPConfig, CLIPModel

    model = CLIPModel(CLIPConfig(text_config=WORDS, vision_config=VISION, projection_dim=16))
    return Called(model, lambda model, x, p: model(input_ids=x, pixel_values=p).logits_per_image), {"ids": ids(), "pixels": images()}


def siglip():
    from transformers import SiglipConfig, SiglipModel

    model = SiglipModel(SiglipConfig(text_config=WORDS, vision_config=VISION))
    return Called(model, lambda model, x, p: model(input_ids=x, pixel_values=p).logits_per_image), {"ids": ids(), "pixels": images()}


def timm_classes(name, size=32, **options):
    import timm

    return timm.create_model(name, num_classes=5, **options), {"x": images(size)}


def efficientnet():
    import torchvision
    from torchvision.models.efficientnet import MBConvConfig

    blocks = [MBConvConfig(1, 3, 1, 16, 8, 1, 1.0, 1.0), MBConvConfig(4, 3, 2, 8, 16, 2, 1.0, 1.0)]
    return torchvision.models.EfficientNet(blocks, dropout=0.0, stochastic_depth_prob=0.0, num_classes=5), {"x": images()}


def mobilenet_v3():
    import torchvision
    from torchvision.models.mobilenetv3 import InvertedResidualConfig

    blocks = [InvertedResidualConfig(16, 3, 16, 16, True, "RE", 2, 1, 0.5), InvertedResidualConfig(16, 5, 32, 16, True, "HS", 1, 1, 0.5)]
    return torchvision.models.MobileNetV3(blocks, 32, num_classes=5, dropout=0.0), {"x": images()}


def convnext_tv():
    import torchvision
    from torchvision.models.convnext import CNBlockConfig

    blocks = [CNBlockConfig(8, 16, 1), CNBlockConfig(16, None, 1)]
    return torchvision.models.ConvNeXt(blocks, stochastic_depth_prob=0.0, num_classes=5), {"x": images()}


def maxvit():
    return timm_classes("maxvit_rmlp_pico_rw_256", 64, img_size=64, depths=(1, 1), embed_dim=(32, 32), stem_width=8)


def deit3():
    return timm_classes("deit3_small_patch16_224", img_size=32, patch_size=8, embed_dim=32, depth=2, num_heads=4)


def eva02():
    return timm_classes("eva02_tiny_patch14_224", img_size=32, patch_size=8, embed_dim=32, depth=2, num_heads=4)


class Denoiser(nn.Module):
    """A U-Net of images at a time under a condition of tokens, as diffusion models have it."""

    def __init__(self, width=16):
        super().__init__()
        self.width = width
        self.time = nn.Sequential(nn.Linear(width, 32), nn.SiLU(), nn.Linear(32, width))
        self.first, self.last = nn.Conv2d(3, width, 3, padding=1), nn.Conv2d(width, 5, 3, padding=1)
        self.down, self.up = nn.Conv2d(width, width, 3, stride=2, padding=1), nn.Conv2d(2 * width, width, 3, padding=1)
        self.norms = nn.ModuleList(nn.GroupNorm(4, width) for _ in range(3))
        self.blocks = nn.ModuleList(nn.Conv2d(width, width, 3, padding=1) for _ in range(2))
        self.q, self.k, self.v, self.o = (nn.Linear(size, width) for size in (width, 12, 12, width))
        self.normed = nn.LayerNorm(width)

    def block(self, h, t, which):
        shifted = self.blocks[which](nn.functional.silu(self.norms[which](h)))
        return h + shifted + t[:, :, None, None]

    def cross(self, h, condition):
        n, c, rows, columns = h.shape
        tokens = self.normed(h.flatten(2).transpose(1, 2))
        heads = lambda x: x.unflatten(-1, (4, -1)).transpose(1, 2)
        mixed = nn.functional.scaled_dot_product_attention(heads(self.q(tokens)), heads(self.k(condition)), heads(self.v(condition)))
        return h + self.o(mixed.transpose(1, 2).flatten(2)).transpose(1, 2).reshape(n, c, rows, columns)

    def forward(self, x, moment, condition):
        rates = torch.exp(torch.arange(self.width // 2) * -0.5)
        angles = moment[:, None].float() * rates
        t = self.time(torch.cat([angles.sin(), angles.cos()], -1).to(x.dtype))
        outer = self.block(self.first(x), t, 0)
        inner = self.cross(self.block(self.down(outer), t, 1), condition)
        wide = nn.functional.interpolate(inner, scale_factor=2.0, mode="nearest")
        return self.last(nn.functional.silu(self.norms[2](self.up(torch.cat([wide, outer], 1))))).permute(0, 2, 3, 1)


def unet():
    return Denoiser(), {"x": images(16), "moment": torch.randint(0, 100, (4,)), "condition": torch.randn(4, 7, 12)}


MODELS = [qwen3, qwen3_moe, mixtral, llama4, gemma3, phi3, olmo2, granite, cohere, gpt_oss, deepseek_v3, bloom, falcon, falcon_alibi, opt, mpt, gpt_neox, gpt_j,
          stablelm, mamba, mamba2, rwkv, xlnet, electra, albert, deberta_v1, longformer, modernbert, big_bird, funnel, bart, marian, t5_whole, whisper, wav2vec2,
          swin_hf, beit, dinov2, convnext, segformer, detr, clip, siglip, efficientnet, mobilenet_v3, convnext_tv, maxvit, deit3, eva02, unet]
