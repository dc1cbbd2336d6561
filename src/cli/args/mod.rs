//! The command line: what is said, not what is done.

mod advise;
mod check;
pub(crate) mod command_line;
mod compile_options;
mod eval;
mod hyperparameters;
mod launch;
mod loss;
mod machine;
mod train;
mod values;

use std::path::{Path, PathBuf};

use clap::{Args, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;
use graphc_ir::mesh::DeviceKind;
use graphc_plan::{Framework, MuonRate, Pin, Recompute, Schedule, Strategy};

use super::numbers::{parse_positive, parse_whole};
pub(crate) use advise::AdviseArgs;
pub(crate) use check::CheckArgs;
pub(crate) use compile_options::{compile_options, default_rate};
pub(crate) use eval::EvalArgs;
pub(crate) use hyperparameters::{HyperparameterArgs, Measure, OnNan};
pub(crate) use launch::LaunchArgs;
pub(crate) use loss::{LossChoice, LossParser};
pub(crate) use machine::{
    CalibrateArgs, Capability, ClustersArgs, DevicesArgs, DoctorArgs, KernelsArgs,
};
pub(crate) use train::{BestBy, CheckpointArgs, TrainArgs};
pub(crate) use values::{Coefficients, Precision, value_name};
use values::{
    not_negative, parse_bytes, parse_coefficients, parse_count, parse_dim, parse_effort,
    parse_emit, parse_framework, parse_mesh, parse_pin, parse_precision, parse_recompute,
    parse_schedule, parse_seconds, parse_share, parse_strategy, parse_threads,
};

/// A static-graph compiler for distributed deep learning.
#[derive(Parser)]
#[command(name = "graphc", version, about, max_term_width = 100)]
pub(crate) struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// The commands.
#[derive(Subcommand)]
pub(crate) enum Command {
    /// Plan a model for a mesh and write the plan
    Compile(CompileArgs),
    /// The meshes, stages and microbatches with the shortest steps on so many ranks, and what binds each; or the fewest
    /// ranks on which a training fits
    Advise(Box<AdviseArgs>),
    /// Show what is where in a plan: tensors, layouts, programs, boxing, memory
    Inspect(InspectArgs),
    /// Why a tensor lies as it does: the alternatives and what the best plan with each costs; with --memory what fills
    /// each rank at its peak
    Explain(ExplainArgs),
    /// What differs between two plans, and what it costs
    Diff(DiffArgs),
    /// Check every invariant of a plan, its objective and bound recomputed; with MODEL, that it computes the same
    Verify(VerifyArgs),
    /// Compare values that another program computed of a model with graphc's, and name the first that differs
    Check(Box<CheckArgs>),
    /// Run a plan on the null device: step time, shares of computing, communication and waiting, MFU, peak memory
    Simulate(SimulateArgs),
    /// What there is to compute on: processors, cards, and the libraries that cards need
    Devices(DevicesArgs),
    /// Machines known by name, which plans can be made for: what they are taken to do
    Clusters(ClustersArgs),
    /// Whether all of it works: small models of every kind trained on the device and on the processor, and speeds
    Doctor(DoctorArgs),
    /// Compile all kernels that plans need on cards, which need not be here, into a folder to take along
    Kernels(KernelsArgs),
    /// Write a plan, or two beside each other, as one page to look at: what goes where, what it costs, when, how much
    /// memory, why, and how a run went
    Report(ReportArgs),
    /// Measure this machine into a cluster file
    Calibrate(CalibrateArgs),
    /// Run inference
    Run(RunArgs),
    /// Train
    Train(Box<TrainArgs>),
    /// Loss and metrics over a data set, in inference form
    Eval(EvalArgs),
    /// Write the weights of a checkpoint as one safetensors file with the model's names
    Export(ExportArgs),
    /// Data sets: write a synthetic one
    Data(super::data::DataArgs),
    /// Print what completes commands and options in a shell
    Completions(CompletionsArgs),
    /// Write a manual page of each command
    Man(ManArgs),
    /// Start one process per rank, on one machine or many, and end all of them where one fails
    Launch(LaunchArgs),
    /// What `launch` starts beside the ranks: kills their process groups where `launch` itself is killed
    #[command(hide = true)]
    LaunchGuard,
}

/// `graphc compile`
#[derive(Args)]
pub(crate) struct CompileArgs {
    /// The model: .onnx, .gir or hf:DIR
    pub model: PathBuf,
    /// Where the plan goes; without it nothing is written
    #[arg(short, long, value_name = "PLAN")]
    pub output: Option<PathBuf>,
    /// Write the page of the plan too, as `graphc report` does, or, where there is no plan, a page that shows why
    #[arg(long, value_name = "PAGE.html", conflicts_with_all = ["compare", "emit"])]
    pub report: Option<PathBuf>,
    /// Plan with each of these strategies and print a table, e.g. data,zero3,auto; writes no plan
    #[arg(long, value_name = "STRATEGIES", value_delimiter = ',', value_parser = parse_strategy,
          conflicts_with_all = ["output", "emit", "strategy"])]
    pub compare: Vec<Strategy>,
    /// Print the graph after this pass, as text, and stop
    #[arg(long, value_name = "after:PASS", value_parser = parse_emit)]
    pub emit: Option<String>,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub shared: SharedArgs,
}

/// `graphc completions`
#[derive(Args)]
pub(crate) struct CompletionsArgs {
    /// The shell
    pub shell: Shell,
}

/// `graphc man`
#[derive(Args)]
pub(crate) struct ManArgs {
    /// Where the pages go: a folder, e.g. ~/.local/share/man/man1
    pub folder: PathBuf,
}

/// `graphc inspect`
#[derive(Args)]
pub(crate) struct InspectArgs {
    /// The plan
    pub plan: PathBuf,
    /// Form of what is printed
    #[arg(long, value_enum, default_value_t)]
    pub format: Format,
}

/// `graphc explain`
#[derive(Args)]
#[command(group = clap::ArgGroup::new("what").required(true).args(["tensor", "memory"]))]
pub(crate) struct ExplainArgs {
    /// The plan
    pub plan: PathBuf,
    /// The tensor, by the name that `inspect` shows
    pub tensor: Option<String>,
    /// What fills each program's ranks at their peak, instead
    #[arg(long)]
    pub memory: bool,
    /// Form of what is printed
    #[arg(long, value_enum, default_value_t)]
    pub format: Format,
}

/// `graphc diff`
#[derive(Args)]
pub(crate) struct DiffArgs {
    /// A plan
    pub before: PathBuf,
    /// Another
    pub after: PathBuf,
    /// Form of what is printed
    #[arg(long, value_enum, default_value_t)]
    pub format: Format,
}

/// `graphc verify`
#[derive(Args)]
pub(crate) struct VerifyArgs {
    /// The plan
    pub plan: PathBuf,
    /// The model that it must compute the same as
    pub model: Option<PathBuf>,
    /// Write the plan anew with the seal that graphc_torch asks for, if it is valid
    #[arg(long)]
    pub seal: bool,
    /// Form of what is printed
    #[arg(long, value_enum, default_value_t)]
    pub format: Format,
}

/// `graphc simulate`
#[derive(Args)]
pub(crate) struct SimulateArgs {
    /// The plan
    pub plan: PathBuf,
    /// Judge the plan on these machines: a preset or a TOML file; default those that it was compiled for
    #[arg(long, value_name = "NAME|FILE")]
    pub cluster: Option<String>,
    /// Judge the plan as this framework would run it: graphc, torch-eager, torch-compile, internevo, megatron, megatron-core or megatron-core-2025
    #[arg(long, value_parser = parse_framework)]
    pub framework: Option<Framework>,
    /// Write a trace (Chrome's JSON, which Perfetto reads): a process for each kind of rank, a thread for each stream
    #[arg(long, value_name = "FILE")]
    pub trace: Option<PathBuf>,
    /// Put what `train --profile` or `graphc_torch profile` measured beside what is predicted, by kinds of ops
    #[arg(long, value_name = "FILE")]
    pub measured: Option<PathBuf>,
    /// Form of what is printed
    #[arg(long, value_enum, default_value_t)]
    pub format: Format,
}

/// `graphc report`
#[derive(Args)]
pub(crate) struct ReportArgs {
    /// The plan; two stand beside each other
    #[arg(required = true, num_args = 1..=2, value_name = "PLAN")]
    pub plans: Vec<PathBuf>,
    /// Where the page goes: one HTML file, which needs no other and no network
    #[arg(short, long, value_name = "PAGE.html")]
    pub output: PathBuf,
    /// Show how a run of the first plan went: what `train --metrics` wrote
    #[arg(long, value_name = "FILE")]
    pub metrics: Option<PathBuf>,
    /// Show measured seconds of the first plan beside predicted ones: what `train --profile` or `graphc_torch profile` wrote
    #[arg(long, value_name = "FILE")]
    pub measured: Option<PathBuf>,
    /// Tensors whose alternatives are planned, heaviest first, each as often as it has layouts; default: 6, as far as 10 seconds
    /// allow
    #[arg(long, value_name = "N", value_parser = parse_whole::<usize>)]
    pub explain: Option<usize>,
}

/// `graphc run`
#[derive(Args)]
pub(crate) struct RunArgs {
    /// The model (.onnx, .gir, hf:DIR) or a plan (.json)
    pub model: PathBuf,
    /// The inputs: a safetensors file with one tensor per graph input
    #[arg(long, value_name = "FILE")]
    pub inputs: PathBuf,
    /// Where the outputs go: a safetensors file
    #[arg(long, value_name = "FILE")]
    pub outputs: PathBuf,
    /// Measure the first batch once more, action by action, and write the seconds of each to this file
    #[arg(long, value_name = "FILE")]
    pub profile: Option<PathBuf>,
    /// Weights in the place of the model's: a safetensors file with the model's names, or a checkpoint
    #[arg(long, value_name = "FILE|CHECKPOINT")]
    pub weights_from: Option<PathBuf>,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub shared: SharedArgs,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub runtime: RuntimeArgs,
}

/// `graphc export`
#[derive(Args)]
pub(crate) struct ExportArgs {
    /// The checkpoint, or a directory of which the latest is taken, or a safetensors file of weights
    pub checkpoint: PathBuf,
    /// Where the weights go: a safetensors file, or with --model an ONNX file
    #[arg(short, long, value_name = "FILE")]
    pub output: PathBuf,
    /// Write this ONNX model again, with the weights in it, for onnxruntime and others
    #[arg(long, value_name = "MODEL.onnx", conflicts_with = "all")]
    pub model: Option<PathBuf>,
    /// The optimizer's states too
    #[arg(long)]
    pub all: bool,
    /// Of trained weights their moving averages (`train --ema`)
    #[arg(long, conflicts_with = "all")]
    pub ema: bool,
}

/// Options of execution.
#[derive(Args)]
pub(crate) struct RuntimeArgs {
    /// Seed of initial parameters and dropout; default 0, or a resumed checkpoint's
    #[arg(long, value_parser = parse_whole::<u64>)]
    pub seed: Option<u64>,
    /// What ranks compute on; default what the plan was made for. cpu runs a plan for GPUs on the processor
    #[arg(long, value_enum)]
    pub device: Option<DeviceName>,
    /// Threads of each rank; default: the cores shared by the ranks
    #[arg(long, value_parser = parse_threads)]
    pub threads: Option<usize>,
    /// Seconds after which a rank that waits gives up
    #[arg(long, default_value_t = 300.0, value_parser = parse_seconds)]
    pub timeout: f64,
}

/// Options that compile, run, train and eval share.
#[derive(Args, Clone)]
pub(crate) struct SharedArgs {
    /// Whether the weights of a folder that has none are drawn, because they are trained or replaced: no option
    #[arg(skip)]
    pub draws_missing: bool,
    /// Take options from this file too: keys are their long names, as in `lr = 3e-4`, and what the command line says counts before it.
    /// Relative paths are relative to the working directory, as on the command line
    #[arg(long, value_name = "RUN.toml")]
    pub config: Option<PathBuf>,
    /// The machines: a preset (`graphc clusters` lists them) or a TOML file; default cpu
    #[arg(long, value_name = "NAME|FILE.toml")]
    pub cluster: Option<String>,
    /// What predicted times are of: graphc, torch-eager, torch-compile, internevo, megatron, megatron-core or megatron-core-2025; default what the cluster file says, else graphc
    #[arg(long, value_parser = parse_framework)]
    pub framework: Option<Framework>,
    /// All ranks of the job, row-major: 4 or 2x4; default 1, or WORLD_SIZE under launch
    #[arg(long, value_parser = parse_mesh)]
    pub mesh: Option<Mesh>,
    /// Pipeline stages, or auto; divides the first axis of the mesh; default 1
    #[arg(long, value_name = "N|auto", value_parser = parse_count)]
    pub stages: Option<Count>,
    /// Parts of a step's batch, gradients accumulated, or auto; default 1
    #[arg(long, value_name = "M|auto", value_parser = parse_count)]
    pub microbatches: Option<Count>,
    /// Order of microbatches: 1f1b (default), gpipe, or interleaved:V with V chunks of layers for each stage
    #[arg(long, value_parser = parse_schedule)]
    pub schedule: Option<Schedule>,
    /// Value of a symbolic first dim of the model
    #[arg(long, value_parser = parse_positive::<usize>)]
    pub batch: Option<usize>,
    /// Value of another symbolic dim
    #[arg(long = "dim", value_name = "NAME=VALUE", value_parser = parse_dim)]
    pub dims: Vec<(String, usize)>,
    /// Loss on the first output, or output:NAME where the model computes its loss itself
    #[arg(long, value_parser = LossParser)]
    pub loss: Option<LossChoice>,
    /// Outputs of the model that the plan gives besides its loss, by pattern; * matches any characters. Default: none where it trains on
    /// --loss, else all
    #[arg(long, value_name = "PATTERN")]
    pub fetch: Vec<String>,
    /// Tensors by pattern, inputs say, whose gradients of the loss are outputs grad.NAME; with run, of --loss
    #[arg(long, value_name = "PATTERN")]
    pub gradients_of: Vec<String>,
    /// Optimizer
    #[arg(long, value_enum)]
    pub optimizer: Option<OptimizerName>,
    /// Learning rate; default 0.001, of rmsprop, adagrad and adafactor 0.01, of adadelta 1, of adamax and nadam 0.002, of lion 0.0001
    #[arg(long, value_parser = not_negative)]
    pub lr: Option<f64>,
    /// Steps go up the gradients instead of down, so that the loss grows
    #[arg(long)]
    pub maximize: bool,
    /// Each trained weight counts its own updates, by which its moments are corrected, for weights that are trained from different steps on
    #[arg(long)]
    pub own_counts: bool,
    /// Momentum of SGD, RMSprop and Muon
    #[arg(long, value_parser = not_negative)]
    pub momentum: Option<f64>,
    /// The part of each gradient but the first that SGD's momentum does not take
    #[arg(long, value_parser = not_negative)]
    pub dampening: Option<f64>,
    /// Nesterov's momentum
    #[arg(long)]
    pub nesterov: bool,
    /// Weight decay
    #[arg(long, value_parser = not_negative)]
    pub weight_decay: Option<f64>,
    /// Decay of the first moment; of Lion the share of its momentum in the direction
    #[arg(long, value_parser = parse_share)]
    pub beta1: Option<f64>,
    /// Decay of the second moment; of Adamax that of the greatest gradient, of Lion that of its momentum
    #[arg(long, value_parser = parse_share)]
    pub beta2: Option<f64>,
    /// The addend to the root of the second moment, or to a gradient's size; Muon's least norm, Adafactor's least root of a moment
    #[arg(long, value_parser = not_negative)]
    pub eps: Option<f64>,
    /// RMSprop's and Adadelta's decay of means of squares
    #[arg(long, value_parser = parse_share)]
    pub alpha: Option<f64>,
    /// RMSprop divides by the deviation of gradients, not by their mean square
    #[arg(long)]
    pub centered: bool,
    /// Adam divides by the greatest second moment of all steps
    #[arg(long)]
    pub amsgrad: bool,
    /// Weights of NAdam and RAdam decay by themselves, as AdamW's do
    #[arg(long)]
    pub decoupled: bool,
    /// How fast NAdam's momentum rises; default 0.004
    #[arg(long, value_parser = not_negative)]
    pub momentum_decay: Option<f64>,
    /// How much Adagrad's learning rate falls with each step
    #[arg(long, value_parser = not_negative)]
    pub lr_decay: Option<f64>,
    /// What Adagrad's sums of squares begin with
    #[arg(long, value_parser = not_negative)]
    pub initial_accumulator: Option<f64>,
    /// Adafactor's moments take a share of n^-EXPONENT at update n; default 0.8
    #[arg(long, value_name = "EXPONENT", value_parser = not_negative)]
    pub decay_exponent: Option<f64>,
    /// The least size of a weight by which Adafactor's steps are scaled; default 0.001
    #[arg(long, value_parser = not_negative)]
    pub least_scale: Option<f64>,
    /// The greatest root mean square of Adafactor's steps before they are scaled; default 1
    #[arg(long, value_parser = not_negative)]
    pub clip_step: Option<f64>,
    /// Adafactor's rate is not limited to 1 / sqrt(n) at update n, --eps is added to squares (default 1e-30), and weights decay by the scaled
    /// rate, as in transformers with relative_step=False
    #[arg(long)]
    pub fixed_rate: bool,
    /// Adafactor's steps are not scaled by the sizes of weights
    #[arg(long)]
    pub unscaled: bool,
    /// The factor of Muon's learning rate: match_rms_adamw (default), 0.2 times the root of a matrix's greater extent, so that AdamW takes
    /// the same rate, or original, the root of rows over columns
    #[arg(long, value_enum)]
    pub adjust_lr: Option<AdjustLr>,
    /// Muon's momentum is not Nesterov's
    #[arg(long)]
    pub plain_momentum: bool,
    /// Newton-Schulz iterations of Muon; default 5
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..100))]
    pub iterations: Option<u32>,
    /// Coefficients of Muon's iterations; default 3.4445,-4.775,2.0315
    #[arg(long, value_name = "A,B,C", value_parser = parse_coefficients, allow_hyphen_values = true)]
    pub coefficients: Option<Coefficients>,
    /// Weights that AdamW updates beside Muon, by pattern: embeddings and the head, usually
    #[arg(long, value_name = "PATTERN")]
    pub by_adamw: Vec<String>,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub hyperparameters: HyperparameterArgs,
    /// Keep a moving average of each trained weight too, which keeps this share of itself at a step: e.g. 0.999
    #[arg(long, value_name = "DECAY", requires = "optimizer", value_parser = parse_share)]
    pub ema: Option<f64>,
    /// How layouts are chosen: auto (default) is the planner, the others are fixed plans to compare with: data, zero1, zero2, zero3, hsdp, megatron,
    /// megatron:sp, or one for each axis, e.g. zero3,megatron. With :cp behind data or zero1..3 the innermost axis splits sequences
    #[arg(long, value_parser = parse_strategy)]
    pub strategy: Option<Strategy>,
    /// Activations: kept (none, the default), computed again in the backward pass where that is cheap (selective) or all of each
    /// block (full), or as little as the memory needs (auto)
    #[arg(long, value_parser = parse_recompute)]
    pub recompute: Option<Recompute>,
    /// Automatic mixed precision: products, convolutions and attention in bf16 or f16, the rest in f32; weights and states
    /// stay f32. fp8 is bf16 with products of weights in 8 bits, each row with a scale; fp8:tensorwise has one for each tensor.
    /// Default: as the model is written
    #[arg(long, value_name = "f32|bf16|f16|fp8", value_parser = parse_precision)]
    pub precision: Option<Precision>,
    /// Ask for a layout: NAME=S(0),B with one SBP per mesh axis; * matches any characters
    #[arg(long = "pin", value_name = "NAME=SBP", value_parser = parse_pin)]
    pub pins: Vec<Pin>,
    /// Weights that are not trained, by pattern
    #[arg(long, value_name = "PATTERN")]
    pub freeze: Vec<String>,
    /// Weights that are trained, by pattern
    #[arg(long, value_name = "PATTERN")]
    pub train: Vec<String>,
    /// Tensors at which gradients end, by pattern: what is before them learns nothing through them
    #[arg(long, value_name = "PATTERN")]
    pub stop_gradient: Vec<String>,
    /// Train as Module.eval() leaves a model: batch norms go by their running statistics, which stay as they are, and dropout drops nothing
    #[arg(long)]
    pub keep_eval: bool,
    /// Keep attention as the model writes it, with its scores in memory, instead of computing it by one op
    #[arg(long)]
    pub keep_attention: bool,
    /// Leave sequences that ranks share in one piece on each rank, instead of giving each early and late chunks, as much of a causal mask as the others
    #[arg(long)]
    pub keep_order: bool,
    /// Memory per rank, e.g. 16GiB; default the device's
    #[arg(long, value_parser = parse_bytes)]
    pub memory: Option<u64>,
    /// The work that the search for a plan may take, in percent of all that it would: with less, the best plan that was found by
    /// then is taken, with a larger proven gap. Default 100
    #[arg(long, value_name = "1..100", value_parser = parse_effort)]
    pub effort: Option<u32>,
    /// Form of what is printed
    #[arg(long, value_enum, default_value_t)]
    pub format: Format,
}

impl SharedArgs {
    /// Returns the options for a model whose weights a file replaces, if one does: then the model's own may be missing.
    pub(crate) fn with_weights_from(&self, file: Option<&Path>) -> Self {
        Self { draws_missing: file.is_some(), ..self.clone() }
    }
}

/// A mesh of the command line.
#[derive(Clone, Debug)]
pub(crate) struct Mesh(pub Vec<usize>);

/// Form of what is printed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// For people
    #[default]
    Text,
    /// For programs
    Json,
}

/// Names of devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum DeviceName {
    /// The processor
    Cpu,
    /// NVIDIA's GPUs
    Cuda,
}

impl From<DeviceName> for DeviceKind {
    fn from(name: DeviceName) -> Self {
        match name {
            DeviceName::Cpu => Self::Cpu,
            DeviceName::Cuda => Self::Cuda,
        }
    }
}

/// Names of optimizers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum OptimizerName {
    /// Stochastic gradient descent
    Sgd,
    /// Adam
    Adam,
    /// AdamW
    Adamw,
    /// LAMB
    Lamb,
    /// RMSprop
    Rmsprop,
    /// Muon for matrices, and AdamW for all else
    Muon,
    /// Adagrad
    Adagrad,
    /// Adadelta
    Adadelta,
    /// Adamax
    Adamax,
    /// NAdam
    Nadam,
    /// RAdam
    Radam,
    /// Lion
    Lion,
    /// Adafactor
    Adafactor,
}

/// Factors of Muon's learning rate, by torch.optim's names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "snake_case")]
pub(crate) enum AdjustLr {
    /// The root of rows over columns, at least 1
    Original,
    /// 0.2 times the root of the greater extent
    MatchRmsAdamw,
}

impl From<AdjustLr> for MuonRate {
    fn from(adjust: AdjustLr) -> Self {
        match adjust {
            AdjustLr::Original => Self::Original,
            AdjustLr::MatchRmsAdamw => Self::MatchRmsAdamw,
        }
    }
}

/// A number that the compiler may be asked to choose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Count {
    /// The compiler's choice.
    Auto,
    /// This one.
    Of(usize),
}

/// More threads than any machine has cores; their number is that of each rank.
pub(crate) const MOST_THREADS: usize = 1024;
