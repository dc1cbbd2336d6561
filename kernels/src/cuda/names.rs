//! Names of kernels as profilers list them: what the kernel does, then the op that it is for, e.g. `chain_mul_add_gelu`,
//! `attention_causal_d64`, `update_adam`, `join_reduce_sum`.
//!
//! All kernels of a call are named here. A name is the kernel's short name in its source, then those words of the op that it has
//! not. Macros in front of the source make the short name the long one. Layers are in no name, because layers that are alike
//! share one compiled kernel.

use std::collections::{BTreeMap, BTreeSet};

use graphc_ir::op::Op;
use graphc_ir::ops::Attention;
use graphc_plan::FusedOp;

use super::Shard;
use super::call::{Call, Kernel, Launch};

/// Characters of a name at most.
const LONGEST: usize = 63;

/// Names a call's kernels for an op.
pub(super) fn name_kernels(call: Call, op: &Op, operands: &[Shard]) -> Call {
    let width = operands.first().and_then(|operand| operand.shape().last().copied());
    rename_kernels(call, &op_words(op, width))
}

/// Names a call's kernels for a chain of ops.
pub(super) fn named_chain(call: Call, fused: &FusedOp) -> Call {
    let mut all: Vec<String> =
        fused.steps.iter().flat_map(|step| op_words(&step.op, None)).collect();
    all.dedup();
    rename_kernels(call, &all)
}

/// An op's name; of elementwise ops and sums their function, of attention its mask and the width of a head.
fn op_words(op: &Op, width: Option<usize>) -> Vec<String> {
    let attention = |attention: Attention| {
        let masked = [
            attention.causal.then(|| "causal".to_owned()),
            attention.window.map(|_| "window".to_owned()),
            attention.soft_cap.map(|_| "capped".to_owned()),
            attention.weight_dropout().map(|_| "dropout".to_owned()),
        ];
        masked.into_iter().flatten().chain(width.map(|width| format!("d{width}")))
    };
    let name = || op.name().split('_').map(str::to_owned);
    match op {
        Op::Unary(unary) => vec![function_word(&unary.function)],
        Op::Binary(binary) => vec![function_word(&binary.function)],
        Op::Reduce(reduce) => name().chain([function_word(&reduce.function)]).collect(),
        Op::Attention(op) => name().chain(attention(*op)).collect(),
        Op::AttentionGrad(op) => name().chain(attention(op.forward())).collect(),
        _ => name().collect(),
    }
}

/// A function's name without its numbers: `GeluTanh` as `gelu_tanh`, `PowScalar(2.0)` as `pow_scalar`.
fn function_word(function: &dyn std::fmt::Debug) -> String {
    let mut text = String::new();
    for letter in format!("{function:?}").chars().take_while(char::is_ascii_alphanumeric) {
        if letter.is_uppercase() && !text.is_empty() {
            text.push('_');
        }
        text.extend(letter.to_lowercase());
    }
    text
}

/// A kernel's short name and behind it those words that it has not: as many as there is room for.
fn kernel_name(short: &str, words: &[String]) -> String {
    let said: BTreeSet<&str> = short.split('_').collect();
    let new = |word: &&String| {
        !said.iter().any(|&said| said == word.as_str() || said.strip_suffix('s') == Some(word))
    };
    let words: Vec<&String> = words.iter().filter(new).collect();
    let mut name = short.to_owned();
    for (at, word) in words.iter().enumerate() {
        let more = format!("_and_{}_more", words.len() - at);
        let is_last = at + 1 == words.len();
        let room = LONGEST - if is_last { 0 } else { more.len() };
        if name.len() + 1 + word.len() > room {
            return name + &more;
        }
        name = format!("{name}_{word}");
    }
    name
}

/// Gives the kernels of a call their names. Those of one source stay in one source, which is compiled once.
fn rename_kernels(mut call: Call, words: &[String]) -> Call {
    let mut macros: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for Kernel { source, entry, .. } in call.launches.iter().filter_map(as_kernel) {
        let of_source = macros.entry(source.clone()).or_default();
        of_source.insert(format!("#define {entry} {}\n", kernel_name(entry, words)));
    }
    for launch in &mut call.launches {
        match launch {
            Launch::Kernel(kernel) => {
                let of_source = macros[&kernel.source].iter().map(String::as_str);
                kernel.source = of_source.chain([kernel.source.as_str()]).collect();
                kernel.entry = kernel_name(&kernel.entry, words);
            }
            Launch::Product(product) => {
                let instead = Call::from_launches(std::mem::take(&mut product.instead));
                product.instead = rename_kernels(instead, words).launches;
            }
            Launch::Clear { .. } | Launch::Copy { .. } => {}
        }
    }
    call
}

fn as_kernel(launch: &Launch) -> Option<&Kernel> {
    match launch {
        Launch::Kernel(kernel) => Some(kernel),
        Launch::Product(_) | Launch::Clear { .. } | Launch::Copy { .. } => None,
    }
}

#[cfg(test)]
mod tests {
    use graphc_ir::ops::{AttentionGrad, UnaryFunction};

    use super::*;

    #[test]
    fn functions_are_named_without_their_numbers() {
        assert_eq!(function_word(&UnaryFunction::GeluTanh), "gelu_tanh");
        assert_eq!(function_word(&UnaryFunction::PowScalar(2.0.into())), "pow_scalar");
    }

    #[test]
    fn attention_says_its_mask_and_width() {
        let attention = Op::Attention(Attention::new(true, 0.125.into()));
        assert_eq!(
            kernel_name("attention", &op_words(&attention, Some(64))),
            "attention_causal_d64"
        );
        let gradient = Op::AttentionGrad(AttentionGrad::new(false, 0.125.into()));
        assert_eq!(
            kernel_name("of_keys", &op_words(&gradient, Some(64))),
            "of_keys_attention_grad_d64"
        );
    }

    #[test]
    fn a_name_says_the_op_once_and_is_bounded() {
        let of = |short: &str, words: &[&str]| {
            kernel_name(short, &words.iter().map(|&word| word.to_owned()).collect::<Vec<_>>())
        };
        assert_eq!(of("chain", &["mul", "add", "gelu_tanh"]), "chain_mul_add_gelu_tanh");
        assert_eq!(of("update", &["adam", "update"]), "update_adam");
        assert_eq!(of("updates", &["adam", "update"]), "updates_adam");
        assert_eq!(of("attention", &["attention", "causal", "d64"]), "attention_causal_d64");
        assert_eq!(of("normalize_grad", &["normalize", "grad"]), "normalize_grad");
        let long = of("chain", &["reciprocal"; 20]);
        assert_eq!(long, "chain_reciprocal_reciprocal_reciprocal_reciprocal_and_16_more");
        for words in 0..40 {
            let long = of("convolution_tiles", &vec!["multiply"; words]);
            assert!(long.len() <= LONGEST, "{long}");
            assert!(long.chars().all(|c| c.is_ascii_alphanumeric() || c == '_'), "{long}");
        }
    }
}
