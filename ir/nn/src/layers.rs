//! Layers with one or two weights.

use graphc_ir::builder::{GraphBuilder, Tensor};
use graphc_ir::ops::Init;
use graphc_ir::scalar::Scalar;

use super::{Module, declare_module};

/// x W^T + b over the last dim; W is `[outputs, inputs]`, as torch has it.
///
/// ```
/// use graphc_ir::builder::GraphBuilder;
/// use graphc_nn::{Linear, Module};
/// use graphc_ir::types::DType;
///
/// let g = GraphBuilder::new("example");
/// let fc = Linear::new(&g, "fc", 5, 8);
/// let y = fc.forward(&g.input("x", DType::F32, [4, 5]));
/// assert_eq!(y.shape(), [4, 8]);
/// assert!(g.finish()?.find("fc.weight").is_some());
/// # Ok::<(), graphc_ir::builder::BuildErrors>(())
/// ```
pub struct Linear {
    /// `[outputs, inputs]`.
    pub weight: Tensor,
    /// `[outputs]`.
    pub bias: Option<Tensor>,
}

impl Linear {
    /// Makes a layer with a bias; both weight and bias are uniform in +-1/sqrt(inputs), torch's default.
    #[track_caller]
    pub fn new(g: &GraphBuilder, name: &str, inputs: usize, outputs: usize) -> Self {
        let init = uniform_init(inputs);
        Self::with_init(g, name, [inputs, outputs], init.clone(), Some(init))
    }

    /// Makes a layer without a bias.
    #[track_caller]
    pub fn without_bias(g: &GraphBuilder, name: &str, inputs: usize, outputs: usize) -> Self {
        Self::with_init(g, name, [inputs, outputs], uniform_init(inputs), None)
    }

    /// Makes a layer with these first contents of the weight and, where there is one, of the bias.
    #[track_caller]
    pub fn with_init(
        g: &GraphBuilder,
        name: &str,
        [inputs, outputs]: [usize; 2],
        weight: Init,
        bias: Option<Init>,
    ) -> Self {
        declare_module(g, name, || Self {
            weight: g.variable("weight", g.dtype(), [outputs, inputs], weight),
            bias: bias.map(|init| g.variable("bias", g.dtype(), [outputs], init)),
        })
    }
}

fn uniform_init(inputs: usize) -> Init {
    let bound = 1.0 / (inputs.max(1) as f64).sqrt();
    Init::Uniform { low: Scalar(-bound), high: Scalar(bound) }
}

impl Module for Linear {
    #[track_caller]
    fn forward(&self, x: &Tensor) -> Tensor {
        let y = x.matmul_transposed(&self.weight, false, true);
        self.bias.as_ref().map_or_else(|| y.clone(), |bias| y.add(bias))
    }

    fn parameters(&self) -> Vec<Tensor> {
        [Some(self.weight.clone()), self.bias.clone()].into_iter().flatten().collect()
    }
}

/// Rows of a table `[rows, width]`, chosen by indices (i64).
///
/// ```
/// use graphc_ir::builder::GraphBuilder;
/// use graphc_nn::{Embedding, Module};
/// use graphc_ir::types::DType;
///
/// let g = GraphBuilder::new("example");
/// let table = Embedding::new(&g, "wte", 100, 16);
/// assert_eq!(table.forward(&g.input("ids", DType::I64, [4, 7])).shape(), [4, 7, 16]);
/// ```
pub struct Embedding {
    /// `[rows, width]`.
    pub weight: Tensor,
}

impl Embedding {
    /// Makes a layer with a standard normal table, torch's default.
    #[track_caller]
    pub fn new(g: &GraphBuilder, name: &str, rows: usize, width: usize) -> Self {
        let init = Init::Normal { mean: Scalar(0.0), std: Scalar(1.0) };
        Self::with_init(g, name, rows, width, init)
    }

    /// Makes a layer with this first content.
    #[track_caller]
    pub fn with_init(g: &GraphBuilder, name: &str, rows: usize, width: usize, init: Init) -> Self {
        declare_module(g, name, || Self {
            weight: g.variable("weight", g.dtype(), [rows, width], init),
        })
    }
}

impl Module for Embedding {
    #[track_caller]
    fn forward(&self, ids: &Tensor) -> Tensor {
        self.weight.embedding(ids)
    }

    fn parameters(&self) -> Vec<Tensor> {
        vec![self.weight.clone()]
    }
}

/// Layer normalization over the last dim, with scale and shift.
///
/// ```
/// use graphc_ir::builder::GraphBuilder;
/// use graphc_nn::{LayerNorm, Module};
/// use graphc_ir::types::DType;
///
/// let g = GraphBuilder::new("example");
/// let ln = LayerNorm::new(&g, "ln", 16);
/// assert_eq!(ln.forward(&g.input("x", DType::F32, [4, 16])).shape(), [4, 16]);
/// ```
pub struct LayerNorm {
    /// The scale, `[width]`, at first 1.
    pub weight: Tensor,
    /// The shift, `[width]`, at first 0.
    pub bias: Tensor,
    /// Added to the variance.
    pub epsilon: f64,
}

impl LayerNorm {
    /// Makes a layer with an epsilon of 1e-5, torch's default.
    #[track_caller]
    pub fn new(g: &GraphBuilder, name: &str, width: usize) -> Self {
        declare_module(g, name, || Self {
            weight: g.variable("weight", g.dtype(), [width], Init::Fill(Scalar(1.0))),
            bias: g.variable("bias", g.dtype(), [width], Init::Fill(Scalar(0.0))),
            epsilon: 1e-5,
        })
    }
}

impl Module for LayerNorm {
    #[track_caller]
    fn forward(&self, x: &Tensor) -> Tensor {
        x.layer_norm(&self.weight, &self.bias, self.epsilon)
    }

    fn parameters(&self) -> Vec<Tensor> {
        vec![self.weight.clone(), self.bias.clone()]
    }
}

/// Root-mean-square normalization over the last dim, with scale.
///
/// ```
/// use graphc_ir::builder::GraphBuilder;
/// use graphc_nn::{Module, RmsNorm};
/// use graphc_ir::types::DType;
///
/// let g = GraphBuilder::new("example");
/// let norm = RmsNorm::new(&g, "norm", 16);
/// assert_eq!(norm.forward(&g.input("x", DType::F32, [4, 16])).shape(), [4, 16]);
/// ```
pub struct RmsNorm {
    /// The scale, `[width]`, at first 1.
    pub weight: Tensor,
    /// Added to the mean square.
    pub epsilon: f64,
}

impl RmsNorm {
    /// Makes a layer with an epsilon of 1e-6.
    #[track_caller]
    pub fn new(g: &GraphBuilder, name: &str, width: usize) -> Self {
        declare_module(g, name, || Self {
            weight: g.variable("weight", g.dtype(), [width], Init::Fill(Scalar(1.0))),
            epsilon: 1e-6,
        })
    }
}

impl Module for RmsNorm {
    #[track_caller]
    fn forward(&self, x: &Tensor) -> Tensor {
        x.rms_norm(&self.weight, self.epsilon)
    }

    fn parameters(&self) -> Vec<Tensor> {
        vec![self.weight.clone()]
    }
}
