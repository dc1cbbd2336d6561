//! The attributes that the standard's ops have, in any version from 7 on, so that one that an op has not is found.

/// The attributes of an op; `None` where its domain says nothing of them.
pub(super) fn of(domain: &str, op_type: &str) -> Option<&'static [&'static str]> {
    match domain {
        "" | "ai.onnx" => standard(op_type),
        _ => None,
    }
}

fn standard(op_type: &str) -> Option<&'static [&'static str]> {
    Some(match op_type {
        "Abs" | "Acosh" | "Add" | "And" | "Atanh" | "BitwiseAnd" | "BitwiseNot" | "BitwiseOr"
        | "BitwiseXor" | "Ceil" | "Cos" | "Cosh" | "Div" | "Equal" | "Erf" | "Exp" | "Expand"
        | "Floor" | "GlobalAveragePool" | "GlobalMaxPool" | "Greater" | "GreaterOrEqual"
        | "HardSwish" | "Identity" | "IsNaN" | "Less" | "LessOrEqual" | "Log" | "MatMul"
        | "Max" | "Mean" | "Min" | "Mish" | "Mul" | "Neg" | "Not" | "Or" | "PRelu" | "Pow"
        | "Reciprocal" | "Relu" | "Round" | "SequenceAt" | "SequenceConstruct" | "Sigmoid"
        | "Sign" | "Sin" | "Sinh" | "Size" | "Softplus" | "Softsign" | "Sqrt" | "Sub" | "Sum"
        | "Tan" | "Tanh" | "Tile" | "Where" | "Xor" => &[],
        "ArgMax" | "ArgMin" => &["axis", "keepdims", "select_last_index"],
        "Attention" => &[
            "is_causal",
            "kv_num_heads",
            "left_window_size",
            "q_num_heads",
            "qk_matmul_output_mode",
            "right_window_size",
            "scale",
            "softcap",
            "softmax_precision",
        ],
        "AveragePool" => &[
            "auto_pad",
            "ceil_mode",
            "count_include_pad",
            "dilations",
            "kernel_shape",
            "pads",
            "strides",
        ],
        "BatchNormalization" => &["epsilon", "momentum", "spatial", "training_mode"],
        "Cast" => &["round_mode", "saturate", "to"],
        "CastLike" => &["round_mode", "saturate"],
        "Celu" | "Elu" | "LeakyRelu" | "Swish" | "ThresholdedRelu" => &["alpha"],
        "Clip" => &["max", "min"],
        "Concat" | "Flatten" | "Gather" | "GatherElements" | "LogSoftmax" | "OneHot"
        | "Scatter" | "Softmax" => &["axis"],
        "ConcatFromSequence" => &["axis", "new_axis"],
        "Constant" => &[
            "sparse_value",
            "value",
            "value_float",
            "value_floats",
            "value_int",
            "value_ints",
            "value_string",
            "value_strings",
        ],
        "ConstantOfShape" => &["value"],
        "Conv" => &["auto_pad", "dilations", "group", "kernel_shape", "pads", "strides"],
        "ConvTranspose" => &[
            "auto_pad",
            "dilations",
            "group",
            "kernel_shape",
            "output_padding",
            "output_shape",
            "pads",
            "strides",
        ],
        "CumSum" => &["exclusive", "reverse"],
        "Dropout" => &["ratio", "seed"],
        "Einsum" => &["equation"],
        "GRU" => &[
            "activation_alpha",
            "activation_beta",
            "activations",
            "clip",
            "direction",
            "hidden_size",
            "layout",
            "linear_before_reset",
        ],
        "GatherND" => &["batch_dims"],
        "Gelu" => &["approximate"],
        "Gemm" => &["alpha", "beta", "transA", "transB"],
        "GroupNormalization" => &["epsilon", "num_groups", "stash_type"],
        "HardSigmoid" => &["alpha", "beta"],
        "If" => &["else_branch", "then_branch"],
        "InstanceNormalization" => &["epsilon"],
        "IsInf" => &["detect_negative", "detect_positive"],
        "LSTM" => &[
            "activation_alpha",
            "activation_beta",
            "activations",
            "clip",
            "direction",
            "hidden_size",
            "input_forget",
            "layout",
        ],
        "LayerNormalization" | "RMSNormalization" => &["axis", "epsilon", "stash_type"],
        "Loop" => &["body"],
        "MaxPool" => &[
            "auto_pad",
            "ceil_mode",
            "dilations",
            "kernel_shape",
            "pads",
            "storage_order",
            "strides",
        ],
        "Mod" => &["fmod"],
        "Pad" => &["mode", "pads", "value"],
        "RNN" => &[
            "activation_alpha",
            "activation_beta",
            "activations",
            "clip",
            "direction",
            "hidden_size",
            "layout",
        ],
        "Range" => &["stash_type"],
        "ReduceL1" | "ReduceL2" | "ReduceLogSumExp" | "ReduceMax" | "ReduceMean" | "ReduceMin"
        | "ReduceProd" | "ReduceSum" | "ReduceSumSquare" => {
            &["axes", "keepdims", "noop_with_empty_axes"]
        }
        "Reshape" => &["allowzero"],
        "Resize" => &[
            "antialias",
            "axes",
            "coordinate_transformation_mode",
            "cubic_coeff_a",
            "exclude_outside",
            "extrapolation_value",
            "keep_aspect_ratio_policy",
            "mode",
            "nearest_mode",
        ],
        "RotaryEmbedding" => &["interleaved", "num_heads", "rotary_embedding_dim"],
        "ScatterElements" => &["axis", "reduction"],
        "ScatterND" => &["reduction"],
        "Selu" => &["alpha", "gamma"],
        "Shape" => &["end", "start"],
        "Slice" => &["axes", "ends", "starts"],
        "Split" => &["axis", "num_outputs", "split"],
        "SplitToSequence" => &["axis", "keepdims"],
        "Squeeze" | "Unsqueeze" => &["axes"],
        "TopK" => &["axis", "k", "largest", "sorted"],
        "Transpose" => &["perm"],
        "Trilu" => &["upper"],
        "Upsample" => &["mode", "scales"],
        "SimplifiedLayerNormalization" => &["axis", "epsilon", "stash_type"],
        _ => return None,
    })
}
