//! Rows of a table: which model on which machines in which layout.

use std::collections::BTreeMap;

use anyhow::{Context, Result, bail, ensure};

/// A table: its header and rows, as written.
pub struct Table {
    /// Names of the columns.
    pub columns: Vec<String>,
    /// Cells, row by row.
    pub cells: Vec<Vec<String>>,
    /// The rows.
    pub rows: Vec<Row>,
}

/// One training run: model, machines, layout.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// Width of the model.
    pub hidden: usize,
    /// Transformer blocks.
    pub layers: usize,
    /// Attention heads.
    pub heads: usize,
    /// Tokens of a sequence.
    pub sequence: usize,
    /// Tokens of the vocabulary.
    pub vocabulary: usize,
    /// Ranks.
    pub gpus: usize,
    /// Sequences of a step.
    pub global_batch: usize,
    /// Sequences of a microbatch on one data-parallel rank.
    pub micro_batch: usize,
    /// The layout of the model over ranks.
    pub layout: Layout,
    /// The machines, where the table names them.
    pub cluster: Option<String>,
    /// Seconds of a step, where the table has a column of that.
    pub measured: Option<f64>,
    /// A text that is equal for rows that differ in their layout alone.
    pub group: String,
}

/// The way in which ranks share a model.
#[derive(Clone, Debug, PartialEq)]
pub enum Layout {
    /// As Megatron-LM does.
    Megatron(Megatron),
    /// As PyTorch's fully sharded data parallelism does.
    Fsdp(Fsdp),
}

/// A layout of Megatron-LM.
#[derive(Clone, Debug, PartialEq)]
pub struct Megatron {
    /// Ranks that share each block.
    pub tensor_parallel: usize,
    /// Ranks that hold the same weights.
    pub data_parallel: usize,
    /// Pipeline stages.
    pub pipeline_parallel: usize,
    /// Parts of the model that each stage holds.
    pub virtual_stages: usize,
    /// Whether the head reads the table of tokens, and has no weights of its own.
    pub tied: bool,
}

/// A training with fully sharded data parallelism.
#[derive(Clone, Debug, PartialEq)]
pub struct Fsdp {
    /// Microbatches of a step.
    pub accumulation: usize,
    /// Whether shards are f32 and blocks compute in bf16; else all is bf16.
    pub mixed: bool,
    /// Whether blocks are computed again for the backward pass.
    pub recompute: bool,
}

/// Reads a table of comma-separated values with a header.
pub fn read(text: &str) -> Result<Table> {
    let mut lines = text.lines().filter(|line| !line.trim().is_empty());
    let header = lines.next().context("the table is empty: it needs a header")?;
    let split =
        |line: &str| line.split(',').map(|cell| cell.trim().to_string()).collect::<Vec<_>>();
    let columns = split(header);
    let (mut cells, mut rows) = (Vec::new(), Vec::new());
    for (index, line) in lines.enumerate() {
        let row = split(line);
        ensure!(
            row.len() == columns.len(),
            "row {} has {} cells, the header {}",
            index + 1,
            row.len(),
            columns.len()
        );
        let named =
            columns.iter().map(String::as_str).zip(row.iter().map(String::as_str)).collect();
        rows.push(parse(&named).with_context(|| format!("row {}", index + 1))?);
        cells.push(row);
    }
    Ok(Table { columns, cells, rows })
}

type Cells<'a> = BTreeMap<&'a str, &'a str>;

fn parse(cells: &Cells<'_>) -> Result<Row> {
    let (gpus, micro_batch) = (number(cells, "gpus")?, number(cells, "micro_batch")?);
    let (layout, global_batch) = match cells.contains_key("accumulation") {
        true => {
            let fsdp = fsdp(cells)?;
            let batch = micro_batch * fsdp.accumulation * gpus;
            (Layout::Fsdp(fsdp), batch)
        }
        false => (Layout::Megatron(megatron(cells, gpus)?), number(cells, "global_batch")?),
    };
    let row = Row {
        hidden: number(cells, "hidden")?,
        layers: number(cells, "layers")?,
        heads: number(cells, "heads")?,
        sequence: optional(cells, "sequence")?.unwrap_or(2048),
        vocabulary: optional(cells, "vocabulary")?.unwrap_or(51200),
        gpus,
        global_batch,
        micro_batch,
        layout,
        cluster: cells.get("cluster").map(|&name| name.to_owned()),
        measured: measured(cells)?,
        group: group(cells),
    };
    ensure!(row.hidden.is_multiple_of(row.heads), "{} heads in {}", row.heads, row.hidden);
    if let Layout::Megatron(layout) = &row.layout {
        check(&row, layout)?;
    }
    Ok(row)
}

fn optional(cells: &Cells<'_>, name: &str) -> Result<Option<usize>> {
    let Some(cell) = cells.get(name) else { return Ok(None) };
    let number: usize = cell.parse().with_context(|| format!("{name} is `{cell}`"))?;
    ensure!((1..=1 << 32).contains(&number), "{name} is {number}");
    Ok(Some(number))
}

fn number(cells: &Cells<'_>, name: &str) -> Result<usize> {
    optional(cells, name)?.with_context(|| format!("there is no column {name}"))
}

fn megatron(cells: &Cells<'_>, gpus: usize) -> Result<Megatron> {
    let tensor_parallel = number(cells, "tensor_parallel")?;
    let pipeline_parallel = number(cells, "pipeline_parallel")?;
    let left = gpus / (tensor_parallel * pipeline_parallel);
    Ok(Megatron {
        tensor_parallel,
        data_parallel: optional(cells, "data_parallel")?.unwrap_or(left),
        pipeline_parallel,
        virtual_stages: optional(cells, "virtual_stages")?.unwrap_or(1),
        tied: match cells.get("tied").copied() {
            None | Some("no") => false,
            Some("yes") => true,
            Some(other) => bail!("tied is `{other}`, not yes or no"),
        },
    })
}

fn fsdp(cells: &Cells<'_>) -> Result<Fsdp> {
    let word =
        |name: &str| cells.get(name).copied().with_context(|| format!("there is no column {name}"));
    Ok(Fsdp {
        accumulation: number(cells, "accumulation")?,
        mixed: match word("precision")? {
            "amp_bf16" => true,
            "bf16" => false,
            other => bail!("precision is `{other}`, not bf16 or amp_bf16"),
        },
        recompute: match word("recompute")? {
            "full" => true,
            "none" => false,
            other => bail!("recompute is `{other}`, not full or none"),
        },
    })
}

/// Seconds of a step with full recomputation.
fn measured(cells: &Cells<'_>) -> Result<Option<f64>> {
    for (name, unit) in [("iteration_ms", 1e-3), ("iteration_s", 1.0), ("full_recompute_s", 1.0)] {
        if let Some(cell) = cells.get(name) {
            let time: f64 = cell.parse().with_context(|| format!("{name} is `{cell}`"))?;
            ensure!(time > 0.0 && time.is_finite(), "{name} is {time}");
            return Ok(Some(time * unit));
        }
    }
    Ok(None)
}

/// Returns the text of a row's group: rows of Megatron of one model on equally many GPUs, other rows of one model on one kind of GPU.
fn group(cells: &Cells<'_>) -> String {
    let of: &[&str] = match cells.contains_key("accumulation") {
        true => &["hidden", "layers", "heads", "cluster"],
        false => &["hidden", "layers", "heads", "sequence", "gpus", "global_batch"],
    };
    of.iter().filter_map(|name| cells.get(name)).copied().collect::<Vec<_>>().join(",")
}

fn check(row: &Row, layout: &Megatron) -> Result<()> {
    let Megatron { tensor_parallel, data_parallel, pipeline_parallel, virtual_stages, .. } =
        *layout;
    if tensor_parallel * data_parallel * pipeline_parallel != row.gpus {
        bail!(
            "{tensor_parallel} x {data_parallel} x {pipeline_parallel} ranks are not {}",
            row.gpus
        );
    }
    let chunks = pipeline_parallel * virtual_stages;
    ensure!(row.layers >= chunks, "{} layers are fewer than {chunks} parts", row.layers);
    let together = row.micro_batch * data_parallel;
    ensure!(
        row.global_batch.is_multiple_of(together),
        "{} sequences are no multiple of {} on each of {data_parallel} ranks",
        row.global_batch,
        row.micro_batch
    );
    for (what, size) in [("heads", row.heads), ("hidden", row.hidden)] {
        ensure!(
            size.is_multiple_of(tensor_parallel),
            "{tensor_parallel} ranks cannot share {what} {size}"
        );
    }
    Ok(())
}
