//! What frameworks take beyond what the machines need, by name.

use graphc_ir::plan::Framework;

/// The names of all profiles.
pub const FRAMEWORKS: [&str; 3] = ["graphc", "torch-eager", "megatron"];

/// The profile of this name; `None` where there is none.
pub fn framework(name: &str) -> Option<Framework> {
    let graphc = Framework::default();
    match name {
        "graphc" => Some(graphc),
        "torch-eager" => Some(Framework {
            name: name.into(),
            dispatch: 0.0,
            elementwise_traffic: 1.77,
            attention: 0.54,
            interference: 0.8,
            ..graphc
        }),
        // Kernels are issued from Python, one by one; the chains that matter are fused by hand. Gradients are reduced behind the
        // last backward pass. The gradient of a layer's input is reduced while that of its weight is computed, so of the
        // six all-reduces of a block (two forward, two again in recomputation, two backward) four are waited for.
        "megatron" => Some(Framework {
            name: name.into(),
            dispatch: 30.3e-6,
            overlap: false,
            reduced_under_products: 1.0 / 3.0,
            ..graphc
        }),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_profile_is_there_under_its_name() {
        for name in FRAMEWORKS {
            assert_eq!(framework(name).expect("listed").name, name);
        }
        assert!(framework("graphc").expect("listed").is_graphc());
        assert_eq!(framework("abacus"), None);
    }
}
