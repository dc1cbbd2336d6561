//! Rows of a table: which model on which machines in which layout.

use std::collections::BTreeMap;

use anyhow::{Context, Result, bail, ensure};

/// A table: its header and rows, as written.
pub struct Table {
    /// Names of the columns.
    pub columns: Vec<String>,
    /// Cells, row by row.
    pub cells: Vec<Vec<String>>,
    /// What the rows say.
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
    /// Ranks that share each block.
    pub tensor_parallel: usize,
    /// Ranks that hold the same weights.
    pub data_parallel: usize,
    /// Pipeline stages.
    pub pipeline_parallel: usize,
    /// Parts of the model that each stage holds.
    pub virtual_stages: usize,
    /// Sequences of a step.
    pub global_batch: usize,
    /// Sequences of a microbatch on one data-parallel rank.
    pub micro_batch: usize,
    /// Seconds of a step, where the table has a column of that.
    pub measured: Option<f64>,
    /// What rows that differ in their layout alone have in common.
    pub group: String,
}

impl Row {
    /// Parts of a step's batch.
    pub fn microbatches(&self) -> usize {
        self.global_batch / (self.micro_batch * self.data_parallel)
    }
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

fn parse(cells: &BTreeMap<&str, &str>) -> Result<Row> {
    let optional = |name: &str| -> Result<Option<usize>> {
        let Some(cell) = cells.get(name) else { return Ok(None) };
        let number: usize = cell.parse().with_context(|| format!("{name} is `{cell}`"))?;
        ensure!((1..=1 << 32).contains(&number), "{name} is {number}");
        Ok(Some(number))
    };
    let number = |name: &str| optional(name)?.with_context(|| format!("there is no column {name}"));
    let (gpus, tensor_parallel) = (number("gpus")?, number("tensor_parallel")?);
    let pipeline_parallel = number("pipeline_parallel")?;
    let model_parallel = tensor_parallel * pipeline_parallel;
    let row = Row {
        hidden: number("hidden")?,
        layers: number("layers")?,
        heads: number("heads")?,
        sequence: optional("sequence")?.unwrap_or(2048),
        vocabulary: optional("vocabulary")?.unwrap_or(51200),
        gpus,
        tensor_parallel,
        data_parallel: optional("data_parallel")?.unwrap_or(gpus / model_parallel),
        pipeline_parallel,
        virtual_stages: optional("virtual_stages")?.unwrap_or(1),
        global_batch: number("global_batch")?,
        micro_batch: number("micro_batch")?,
        measured: measured(cells)?,
        group: group(cells),
    };
    check(&row)?;
    Ok(row)
}

/// Seconds of a step with full recomputation.
fn measured(cells: &BTreeMap<&str, &str>) -> Result<Option<f64>> {
    for (name, unit) in [("iteration_ms", 1e-3), ("iteration_s", 1.0), ("full_recompute_s", 1.0)] {
        if let Some(cell) = cells.get(name) {
            let time: f64 = cell.parse().with_context(|| format!("{name} is `{cell}`"))?;
            ensure!(time > 0.0 && time.is_finite(), "{name} is {time}");
            return Ok(Some(time * unit));
        }
    }
    Ok(None)
}

fn group(cells: &BTreeMap<&str, &str>) -> String {
    let of = ["hidden", "layers", "heads", "sequence", "gpus", "global_batch"];
    of.iter().filter_map(|name| cells.get(name)).copied().collect::<Vec<_>>().join(",")
}

fn check(row: &Row) -> Result<()> {
    let Row { gpus, tensor_parallel, data_parallel, pipeline_parallel, virtual_stages, .. } = *row;
    if tensor_parallel * data_parallel * pipeline_parallel != gpus {
        bail!("{tensor_parallel} x {data_parallel} x {pipeline_parallel} ranks are not {gpus}");
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
    ensure!(row.hidden.is_multiple_of(row.heads), "{} heads in {}", row.heads, row.hidden);
    Ok(())
}
