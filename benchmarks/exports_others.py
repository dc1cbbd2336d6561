"""Further models of transformers, torchvision and timm, small and with random weights: `benchmarks/exports.py --others` exports them."""

import torch

from exports_families import DECODER, ENCODER, PLAIN, TEXT, Called, Headed, decoder, ids, image_classes, images, make, mask, seq2seq, text_classes, timm_classes


def starcoder2():
    return decoder("Starcoder2", more=dict(sliding_window=None, embedding_dropout=0.0, residual_dropout=0.0, attention_dropout=0.0), masked=True)


def gpt_bigcode():
    fields = dict(n_embd=32, n_layer=2, n_head=4, n_inner=48, n_positions=32, multi_query=True, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0)
    return decoder("GPTBigCode", more=fields)


def gpt_neo():
    fields = dict(num_layers=2, num_heads=4, attention_types=[[["global", "local"], 1]], window_size=6, resid_dropout=0.0, embed_dropout=0.0,
                  attention_dropout=0.0)
    return decoder("GPTNeo", more=fields)


def codegen():
    fields = dict(n_embd=32, n_layer=2, n_head=4, n_positions=32, n_ctx=32, rotary_dim=4, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0)
    return decoder("CodeGen", more=fields)


def olmoe():
    return decoder("Olmoe", more=dict(num_experts=4, num_experts_per_tok=2))


def phimoe():
    return decoder("Phimoe", more=dict(num_local_experts=4, num_experts_per_tok=2, router_jitter_noise=0.0, input_jitter_noise=0.0, sliding_window=None))


def nemotron():
    return decoder("Nemotron")


def glm4():
    return decoder("Glm4", more=dict(head_dim=8))


def exaone4():
    return decoder("Exaone4", more=dict(sliding_window=6, sliding_window_pattern=2))


def smollm3():
    return decoder("SmolLM3", more=dict(no_rope_layers=[1, 0]))


def helium():
    return decoder("Helium", more=dict(head_dim=8))


def diffllama():
    return decoder("DiffLlama", eager=True)


def bamba():
    fields = dict(attn_layer_indices=[1], mamba_n_heads=8, mamba_n_groups=2, mamba_d_head=8, mamba_d_state=8, mamba_d_conv=3, mamba_expand=2,
                  mamba_chunk_size=8)
    return decoder("Bamba", more=fields)


def recurrent_gemma():
    fields = dict(vocab_size=96, hidden_size=32, intermediate_size=96, num_hidden_layers=3, num_attention_heads=4, lru_width=32, attention_window_size=8,
                  conv1d_width=3, use_cache=False, pad_token_id=None)
    return decoder("RecurrentGemma", more=fields)


def lfm2():
    return decoder("Lfm2", more=dict(layer_types=["conv", "full_attention"], conv_L_cache=3, block_auto_adjust_ff_dim=False))


def qwen3_next():
    fields = dict(head_dim=8, layer_types=["linear_attention", "full_attention"], linear_conv_kernel_dim=3, linear_key_head_dim=8, linear_value_head_dim=8,
                  linear_num_key_heads=2, linear_num_value_heads=4, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=16,
                  shared_expert_intermediate_size=16)
    return decoder("Qwen3Next", more=fields)


def roformer():
    return text_classes("RoFormer", dict(embedding_size=32))


def convbert():
    return text_classes("ConvBert", dict(embedding_size=32, head_ratio=2, conv_kernel_size=3))


def mobilebert():
    return text_classes("MobileBert", dict(embedding_size=16, intra_bottleneck_size=16, true_hidden_size=16, num_feedforward_networks=2))


def squeezebert():
    return text_classes("SqueezeBert", dict(embedding_size=32, q_groups=2, k_groups=2, v_groups=2, post_attention_groups=1, intermediate_groups=2,
                                            output_groups=2))


def fnet():
    return text_classes("FNet", masked=False)


def nystromformer():
    return text_classes("Nystromformer", dict(num_landmarks=4, segment_means_seq_len=16, conv_kernel_size=3))


def mpnet():
    return text_classes("MPNet", dict(pad_token_id=1))


def layoutlm():
    return text_classes("LayoutLM", dict(max_2d_position_embeddings=32))


def esm():
    fields = {**TEXT, **PLAIN, "max_position_embeddings": 40, "num_labels": 5, "pad_token_id": 1, "position_embedding_type": "rotary", "mask_token_id": 2,
              "token_dropout": False}
    model = make("EsmForSequenceClassification", "EsmConfig", fields)
    return Called(model, lambda model, x, m: model(input_ids=x, attention_mask=m).logits), {"ids": ids(), "mask": mask()}


PAIR = dict(d_model=32, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4, decoder_attention_heads=4, encoder_ffn_dim=48, decoder_ffn_dim=48,
            max_position_embeddings=32, dropout=0.0)


def pegasus():
    return seq2seq("PegasusForConditionalGeneration", PAIR, masked=True)


def blenderbot():
    return seq2seq("BlenderbotForConditionalGeneration", PAIR, masked=True)


def m2m100():
    return seq2seq("M2M100ForConditionalGeneration", dict(PAIR, encoder_layerdrop=0.0, decoder_layerdrop=0.0, attention_dropout=0.0), masked=True)


def led():
    fields = {**PAIR, "max_encoder_position_embeddings": 32, "max_decoder_position_embeddings": 32, "attention_window": 4}
    del fields["max_position_embeddings"]
    return seq2seq("LEDForConditionalGeneration", fields)


def speech(name, config, **more):
    fields = dict(vocab_size=12, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=48, conv_dim=[16, 16], conv_stride=[4, 2],
                  conv_kernel=[6, 3], num_conv_pos_embeddings=8, num_conv_pos_embedding_groups=4, hidden_dropout=0.0, activation_dropout=0.0,
                  attention_dropout=0.0, feat_proj_dropout=0.0, final_dropout=0.0, layerdrop=0.0, apply_spec_augment=False, feat_extract_norm="layer", **more)
    model = make(name, config, fields)
    return Called(model, lambda model, x: model(input_values=x).logits), {"x": torch.randn(4, 128)}


def hubert():
    return speech("HubertForCTC", "HubertConfig", do_stable_layer_norm=True)


def wavlm():
    return speech("WavLMForCTC", "WavLMConfig", num_buckets=8, max_bucket_distance=16)


def sew():
    return speech("SEWForCTC", "SEWConfig", squeeze_factor=2)


def audio_spectrogram():
    fields = dict(ENCODER, patch_size=8, frequency_stride=8, time_stride=8, max_length=32, num_mel_bins=16, num_labels=5)
    model = make("ASTForAudioClassification", "ASTConfig", fields)
    return Called(model, lambda model, x: model(input_values=x).logits), {"x": torch.randn(4, 32, 16)}


def poolformer():
    fields = dict(num_encoder_blocks=2, depths=[1, 1], hidden_sizes=[16, 32], patch_sizes=[7, 3], strides=[4, 2], padding=[2, 1], drop_path_rate=0.0)
    return image_classes("PoolFormerForImageClassification", "PoolFormerConfig", fields)


def pvt_v2():
    fields = dict(num_encoder_blocks=2, depths=[1, 1], sr_ratios=[2, 1], hidden_sizes=[16, 32], patch_sizes=[7, 3], strides=[4, 2],
                  num_attention_heads=[2, 4], mlp_ratios=[2, 2], drop_path_rate=0.0, **PLAIN)
    return image_classes("PvtV2ForImageClassification", "PvtV2Config", fields)


def focalnet():
    fields = dict(embed_dim=16, depths=[1, 1], focal_levels=[2, 2], focal_windows=[3, 3], patch_size=4, drop_path_rate=0.0, hidden_dropout_prob=0.0)
    return image_classes("FocalNetForImageClassification", "FocalNetConfig", fields)


def mobilevit():
    fields = dict(hidden_sizes=[16, 24, 32], neck_hidden_sizes=[8, 8, 16, 16, 24, 24, 32], num_attention_heads=4, classifier_dropout_prob=0.0, **PLAIN)
    return image_classes("MobileViTForImageClassification", "MobileViTConfig", fields, 64)


def mobilevit_v2():
    return image_classes("MobileViTV2ForImageClassification", "MobileViTV2Config",
                         dict(width_multiplier=0.25, base_attn_unit_dims=[16, 24, 32], n_attn_blocks=[1, 1, 1], classifier_dropout_prob=0.0, attn_dropout=0.0,
                              ffn_dropout=0.0), 64)


def swin_v2_hf():
    return image_classes("Swinv2ForImageClassification", "Swinv2Config", dict(embed_dim=16, depths=[2, 2], num_heads=[2, 4], window_size=4, patch_size=4,
                                                                             drop_path_rate=0.0, **PLAIN))


def hiera():
    fields = dict(embed_dim=16, patch_size=[7, 7], patch_stride=[4, 4], patch_padding=[3, 3], mlp_ratio=2.0, depths=[1, 1], num_heads=[1, 2],
                  embed_dim_multiplier=2.0, num_query_pool=1, query_stride=[2, 2], masked_unit_size=[4, 4], masked_unit_attention=[True, False],
                  drop_path_rate=0.0)
    model = make("HieraForImageClassification", "HieraConfig", dict(fields, image_size=[32, 32], num_labels=5))
    return Called(model, lambda model, x: model(pixel_values=x).logits), {"x": images()}


def dinov3():
    fields = dict(hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4, image_size=32, patch_size=8, num_register_tokens=2,
                  drop_path_rate=0.0)
    model = make("DINOv3ViTModel", "DINOv3ViTConfig", fields)
    return Headed(model, lambda model, x: model(pixel_values=x).pooler_output, 32), {"x": images()}


def perceiver():
    fields = dict(num_latents=6, d_latents=32, d_model=32, num_blocks=1, num_self_attends_per_block=2, num_self_attention_heads=4, num_cross_attention_heads=4,
                  vocab_size=96, max_position_embeddings=16, attention_probs_dropout_prob=0.0, num_labels=5)
    model = make("PerceiverModel", "PerceiverConfig", fields)
    return Headed(model, lambda model, x: model(inputs=x).last_hidden_state.mean(1), 32), {"x": torch.randn(4, 16, 32)}


def dpt():
    fields = dict(ENCODER, num_hidden_layers=4, backbone_out_indices=[0, 1, 2, 3], neck_hidden_sizes=[8, 8, 16, 16], fusion_hidden_size=16, num_labels=5,
                  image_size=32, is_hybrid=False, use_auxiliary_head=False, semantic_classifier_dropout=0.0, readout_type="project")
    model = make("DPTForSemanticSegmentation", "DPTConfig", fields)
    return Called(model, lambda model, x: model(pixel_values=x).logits), {"x": images()}


def yolos():
    fields = dict(ENCODER, image_size=[32, 32], num_detection_tokens=6, num_labels=5, use_mid_position_embeddings=True)
    model = make("YolosForObjectDetection", "YolosConfig", fields)
    return Called(model, lambda model, x: model(pixel_values=x).logits), {"x": images()}


def timesformer():
    fields = dict(ENCODER, num_frames=3, num_labels=5, image_size=16, drop_path_rate=0.0)
    model = make("TimesformerForVideoClassification", "TimesformerConfig", fields)
    return Called(model, lambda model, x: model(pixel_values=x).logits), {"x": torch.randn(4, 3, 3, 16, 16)}


def videomae():
    fields = dict(ENCODER, num_frames=4, tubelet_size=2, num_labels=5, image_size=16)
    model = make("VideoMAEForVideoClassification", "VideoMAEConfig", fields)
    return Called(model, lambda model, x: model(pixel_values=x).logits), {"x": torch.randn(4, 4, 3, 16, 16)}


def patchtst():
    fields = dict(num_input_channels=2, context_length=32, patch_length=8, patch_stride=8, num_hidden_layers=2, d_model=32, num_attention_heads=4, ffn_dim=48,
                  num_targets=5, attention_dropout=0.0, ff_dropout=0.0, path_dropout=0.0, positional_dropout=0.0, head_dropout=0.0)
    model = make("PatchTSTForClassification", "PatchTSTConfig", fields)
    return Called(model, lambda model, x: model(past_values=x).prediction_logits), {"x": torch.randn(4, 32, 2)}


def blip_text():
    fields = dict(TEXT, **PLAIN, max_position_embeddings=32, is_decoder=True, use_cache=False, encoder_hidden_size=32)
    from transformers import BlipTextConfig
    from transformers.models.blip.modeling_blip_text import BlipTextLMHeadModel

    model = BlipTextLMHeadModel(BlipTextConfig(**fields))
    call = lambda model, x, m, h: model(input_ids=x, attention_mask=m, encoder_hidden_states=h, use_cache=False).logits
    return Called(model, call), {"ids": ids(), "mask": mask(), "seen": torch.randn(4, 5, 32)}


def densenet():
    import torchvision

    return torchvision.models.DenseNet(8, (2, 2), 16, num_classes=5), {"x": images()}


def shufflenet():
    import torchvision

    return torchvision.models.ShuffleNetV2([1, 2, 1], [8, 16, 16, 32, 32], num_classes=5), {"x": images(64)}


def regnet_tv():
    import torchvision
    from torchvision.models.regnet import BlockParams

    return torchvision.models.RegNet(BlockParams([1, 1], [8, 16], [4, 8], [1.0, 1.0], [2, 2], 0.25), num_classes=5, stem_width=8), {"x": images()}


def mvit():
    import torchvision
    from torchvision.models.video.mvit import MSBlockConfig

    blocks = [MSBlockConfig(2, 16, 32, [3, 3, 3], [3, 3, 3], [1, 1, 1], [1, 2, 2]), MSBlockConfig(2, 32, 32, [3, 3, 3], [3, 3, 3], [1, 2, 2], [1, 1, 1])]
    model = torchvision.models.video.MViT((32, 32), 4, blocks, residual_pool=True, residual_with_cls_embed=False, rel_pos_embed=True, proj_after_attn=True,
                                          dropout=0.0, attention_dropout=0.0, stochastic_depth_prob=0.0, num_classes=5)
    return model, {"x": torch.randn(4, 3, 4, 32, 32)}


def mixer():
    from timm.models.mlp_mixer import MlpMixer

    return MlpMixer(num_classes=5, img_size=32, patch_size=8, num_blocks=2, embed_dim=32), {"x": images()}


def xcit():
    return timm_classes("xcit_nano_12_p8_224", img_size=32, embed_dim=32, depth=2, num_heads=4)


def cait():
    return timm_classes("cait_xxs24_224", img_size=32, patch_size=8, embed_dim=32, depth=2, num_heads=4)


def coatnet():
    return timm_classes("coatnet_pico_rw_224", 64, img_size=64, depths=(1, 1), embed_dim=(16, 32), stem_width=8)


def edgenext():
    return timm_classes("edgenext_xx_small", 64, depths=(1, 1, 2, 1), dims=(8, 16, 24, 32))


def gcvit():
    return timm_classes("gcvit_xxtiny", 64, img_size=64, embed_dim=16)


def efficientvit():
    return timm_classes("efficientvit_b0", 64, widths=(8, 16), depths=(1, 1), head_dim=8, head_widths=(32, 48))


def visformer():
    return timm_classes("visformer_tiny", img_size=32, init_channels=8, embed_dim=32, depth=(1, 1, 1), num_heads=4)


def unet_condition():
    """The U-Net of Stable Diffusion: attention of an image's places to each other and to a text, in blocks of convolutions."""
    from diffusers import UNet2DConditionModel

    model = UNet2DConditionModel(sample_size=8, in_channels=4, out_channels=4, layers_per_block=1, block_out_channels=(16, 32), norm_num_groups=4,
                                 down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"), up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"),
                                 cross_attention_dim=12, attention_head_dim=2)
    call = lambda model, x, moment, text: model(x, moment, encoder_hidden_states=text, return_dict=False)[0]
    return Called(model, call), {"x": torch.randn(4, 4, 8, 8), "moment": torch.randint(0, 100, (4,)), "text": torch.randn(4, 7, 12)}


MODELS = [starcoder2, gpt_bigcode, gpt_neo, codegen, olmoe, phimoe, nemotron, glm4, exaone4, smollm3, helium, diffllama, bamba, recurrent_gemma, lfm2, qwen3_next,
          roformer, convbert, mobilebert, squeezebert, fnet, nystromformer, mpnet, layoutlm, esm, pegasus, blenderbot, m2m100, led, hubert, wavlm, sew,
          audio_spectrogram, poolformer, pvt_v2, focalnet, mobilevit, mobilevit_v2, swin_v2_hf, hiera, dinov3, perceiver, dpt, yolos, timesformer, videomae,
          patchtst, blip_text, densenet, shufflenet, regnet_tv, mvit, mixer, xcit, cait, coatnet, edgenext, gcvit, efficientvit, visformer,
          unet_condition]
