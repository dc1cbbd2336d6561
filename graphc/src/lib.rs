//! graphc: a static-graph compiler for distributed deep learning.
//!
//! A network is written once, as if for one device. [`compile`] chooses how every tensor lies over the ranks, inserts
//! the communication and the pipeline stages, and gives a [`VerifiedPlan`](graphc_plan::check::VerifiedPlan), which a
//! [`Session`](graphc_runtime::Session) executes.
//!
//! ```
//! use graphc::prelude::*;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let g = GraphBuilder::new("example");
//! let x = g.input("x", DType::F32, [4, 5]);
//! let w = g.variable("w", DType::F32, [5, 8], Init::Fill(1.0.into()));
//! g.output("out", &x.matmul(&w));
//!
//! let options = CompileOptions { mesh: vec![2], ..CompileOptions::default() };
//! let plan = compile(g.finish()?, &options, &preset("cpu").expect("a preset"), None)?.plan;
//! let mut session = Session::new(&plan, &BTreeMap::new(), SessionOptions::default())?;
//! let feeds = BTreeMap::from([("x".to_string(), HostTensor::from_f32([4, 5], &[2.0; 20])?)]);
//! let outputs = session.step(feeds)?.wait()?;
//! assert_eq!(outputs["out"].to_f32()?, [10.0; 32]);
//! # Ok(())
//! # }
//! ```

#![warn(unreachable_pub)]

pub mod buckets;
pub mod calibrate;
mod data_parallel;
mod median;
pub mod models;
pub mod profile;
pub mod report;

/// Communication of the user's own, and training with it.
pub mod dist {
    pub use crate::data_parallel::{
        DEFAULT_BUCKET, DataParallel, DataParallelError, DataParallelOptions, Gradients,
    };
    pub use graphc_data::{DistributedSampler, Remainder};
    pub use graphc_runtime::dist::*;
}

/// The compiler, with the importers of model files.
pub mod compiler {
    pub use graphc_compiler::*;
    pub use graphc_import as import;
}

/// The Rust code of README, Start, guide and commands: the tests of documentation compile it, and run what has a `main`.
#[cfg(doctest)]
mod documents {
    #[doc = include_str!("../../README.md")]
    struct Readme;
    #[doc = include_str!("../../docs/start.md")]
    struct Start;
    #[doc = include_str!("../../docs/guide.md")]
    struct Guide;
    #[doc = include_str!("../../docs/commands.md")]
    struct Commands;
}

pub use graphc_compiler::compile::compile;
pub use graphc_compiler::lora;
pub use graphc_data as data;
pub use graphc_eager as eager;
pub use graphc_ir as ir;
pub use graphc_kernels as kernels;
pub use graphc_nn as nn;
pub use graphc_plan as plan;
pub use graphc_runtime as runtime;

/// The names that a program needs to build, compile and run a graph.
pub mod prelude {
    pub use std::collections::BTreeMap;

    pub use crate::data_parallel::{DataParallel, DataParallelOptions};
    pub use crate::models;
    pub use graphc_compiler::cluster::preset;
    pub use graphc_compiler::compile::{Compiled, compile};
    pub use graphc_data::{
        Augment, Dataset, DatasetError, Field, FieldKind, LastBatch, Loader, LoaderOptions,
        Normalize, Source, Split,
    };
    pub use graphc_eager::{Eager, EagerError, GlobalTensor};
    pub use graphc_import::{ImportOptions, choose_trained};
    pub use graphc_ir::builder::{GraphBuilder, Tensor};
    pub use graphc_ir::graph::Graph;
    pub use graphc_ir::learning_rate::{Curve, LrSchedule, Warmup};
    pub use graphc_ir::mesh::Placement;
    pub use graphc_ir::ops::{Init, Window};
    pub use graphc_ir::sbp::{NdSbp, Sbp};
    pub use graphc_ir::types::{DType, TensorType};
    pub use graphc_nn as nn;
    pub use graphc_nn::Module;
    pub use graphc_plan::check::VerifiedPlan;
    pub use graphc_plan::{
        Accumulation, AdamOptions, CompileOptions, ComposedOptions, Float8Recipe, Loss, Metric,
        MuonOptions, MuonRate, Optimizer, ParameterGroup, Pin, Plan, Recompute, RmspropOptions,
        Schedule, StepRule, Strategy,
    };
    pub use graphc_runtime::data::{load_safetensors, save_safetensors};
    pub use graphc_runtime::dist::{Group, ReduceOp};
    pub use graphc_runtime::job::Job;
    pub use graphc_runtime::{
        Checkpoint, Checkpoints, HostTensor, Session, SessionOptions, ShardedTensor,
    };
}
