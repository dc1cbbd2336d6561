//! Rows of the table of published trainings, as their columns say them.

use std::collections::BTreeMap;

use anyhow::{Context, Result, ensure};

/// One training as its publisher measured it. What the source does not state is `None`.
#[derive(Clone, Debug, PartialEq)]
pub struct Published {
    /// Its place in the file, counted from 0.
    pub index: usize,
    /// The source that published it.
    pub source: String,
    /// The model's name.
    pub model: String,
    /// Its parameters in 1e9.
    pub parameters: Option<f64>,
    /// Transformer blocks.
    pub layers: usize,
    /// Width.
    pub hidden: usize,
    /// Heads of queries.
    pub heads: usize,
    /// Heads of keys and values.
    pub shared: usize,
    /// Width of the feed-forward layers.
    pub wide: usize,
    /// Tokens of the vocabulary.
    pub vocabulary: usize,
    /// Tokens of a sequence.
    pub sequence: usize,
    /// Sequences of a step.
    pub global_batch: usize,
    /// Ranks.
    pub gpus: usize,
    /// The card, as the source calls it.
    pub gpu: String,
    /// Gbit/s between nodes for each card.
    pub fabric: Option<f64>,
    /// Ranks that share each block.
    pub tensor: usize,
    /// Pipeline stages.
    pub stages: usize,
    /// Ranks that share each sequence.
    pub context: usize,
    /// Ranks that share experts.
    pub experts: usize,
    /// Ranks that hold the same blocks: those that the others leave of all.
    pub data: usize,
    /// The number of these that the source states.
    pub stated_data: usize,
    /// The way in which these share what all of them hold.
    pub sharding: String,
    /// Parts of the model that each stage holds.
    pub virtual_stages: Option<usize>,
    /// Sequences of a microbatch.
    pub micro_batch: Option<usize>,
    /// The element type of products.
    pub precision: String,
    /// The part that is computed again.
    pub recompute: String,
    /// The framework that ran it.
    pub framework: String,
    /// Seconds of a step.
    pub step: Option<f64>,
    /// Whether it did not fit its cards.
    pub too_large: bool,
    /// Further remarks of the source.
    pub comment: String,
}

impl Published {
    /// Whether the source counts other ranks that hold the same blocks than there are.
    pub fn states_other_data(&self) -> bool {
        self.stated_data != self.data
    }

    /// The release of the software that its source names at the end: year, month and patch, as in `26.04.01`.
    pub fn release(&self) -> Option<[u32; 3]> {
        let mut parts = self.source.split_whitespace().last()?.split('.').map(str::parse);
        let (year, month) = (parts.next()?.ok()?, parts.next()?.ok()?);
        let patch = parts.next().map_or(Ok(0), |patch| patch).ok()?;
        Some([year, month, patch])
    }

    /// Whether its source, model or framework has a word.
    pub fn names(&self, word: &str) -> bool {
        [&self.source, &self.model, &self.framework].iter().any(|name| name.contains(word))
    }
}

/// Whether a table has the columns of published trainings.
pub fn is_published(text: &str) -> bool {
    let header = text.lines().next().unwrap_or_default();
    header.starts_with("source,model,") && header.contains("fabric_gbps_per_gpu")
}

/// Reads the table.
///
/// # Errors
/// Returns an error if a row has another number of cells than the header, or a cell that must be a number is none.
pub fn read(text: &str) -> Result<Vec<Published>> {
    let mut lines = text.lines().filter(|line| !line.trim().is_empty());
    let header = cells(lines.next().context("the table is empty: it needs a header")?);
    let row = |(index, line): (usize, &str)| {
        let cells = cells(line);
        let (found, wanted) = (cells.len(), header.len());
        ensure!(found == wanted, "row {index} has {found} cells, the header {wanted}");
        let names = header.iter().map(String::as_str);
        let cells = Cells(names.zip(cells.iter().map(String::as_str)).collect());
        parse(index, &cells).with_context(|| format!("row {index}"))
    };
    lines.enumerate().map(row).collect()
}

/// The cells of a line; quotes hold commas together.
fn cells(line: &str) -> Vec<String> {
    let (mut cells, mut quoted) = (vec![String::new()], false);
    for character in line.chars() {
        match character {
            '"' => quoted = !quoted,
            ',' if !quoted => cells.push(String::new()),
            other => cells.last_mut().expect("there is a first cell").push(other),
        }
    }
    cells
}

/// The cells of a row by the names of their columns.
struct Cells<'a>(BTreeMap<&'a str, &'a str>);

impl Cells<'_> {
    fn text(&self, name: &str) -> Result<String> {
        let cell = self.0.get(name).with_context(|| format!("there is no column {name}"))?;
        Ok(cell.trim().to_owned())
    }

    fn real(&self, name: &str) -> Result<Option<f64>> {
        let cell = self.text(name)?;
        if cell.is_empty() {
            return Ok(None);
        }
        let number: f64 = cell.parse().with_context(|| format!("{name} is `{cell}`"))?;
        ensure!(number > 0.0 && number.is_finite(), "{name} is {number}");
        Ok(Some(number))
    }

    fn optional(&self, name: &str) -> Result<Option<usize>> {
        let Some(number) = self.real(name)? else { return Ok(None) };
        ensure!(number.fract() == 0.0 && number < 2f64.powi(32), "{name} is {number}");
        Ok(Some(number as usize))
    }

    fn number(&self, name: &str) -> Result<usize> {
        self.optional(name)?.with_context(|| format!("{name} is empty"))
    }
}

fn parse(index: usize, cells: &Cells<'_>) -> Result<Published> {
    let heads = cells.number("heads")?;
    let gpus = cells.number("gpus")?;
    let [tensor, stages, context] =
        ["tp", "pp", "cp"].map(|name| cells.optional(name).map(|ranks| ranks.unwrap_or(1)));
    let (tensor, stages, context) = (tensor?, stages?, context?);
    let left = (gpus / (tensor * stages * context)).max(1);
    let stated = cells.optional("dp")?;
    Ok(Published {
        index,
        source: cells.text("source")?,
        model: cells.text("model")?,
        parameters: cells.real("params_b")?,
        layers: cells.number("layers")?,
        hidden: cells.number("hidden")?,
        heads,
        shared: cells.optional("kv_heads")?.unwrap_or(heads),
        wide: cells.number("ffn")?,
        vocabulary: cells.number("vocab")?,
        sequence: cells.number("seq")?,
        global_batch: cells.number("global_batch")?,
        gpus,
        gpu: cells.text("gpu")?,
        fabric: cells.real("fabric_gbps_per_gpu")?,
        tensor,
        stages,
        context,
        experts: cells.optional("ep")?.unwrap_or(1),
        data: left,
        stated_data: stated.unwrap_or(left),
        sharding: cells.text("sharding")?,
        virtual_stages: cells.optional("vp")?,
        micro_batch: cells.optional("micro_batch")?,
        precision: cells.text("precision")?,
        recompute: cells.text("recompute")?,
        framework: cells.text("framework")?,
        step: cells.real("step_s")?,
        too_large: cells.text("oom")? == "1",
        comment: cells.text("comment")?,
    })
}
