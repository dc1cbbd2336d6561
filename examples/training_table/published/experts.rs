//! The experts of a row, as its remarks describe them: `MoE 256 experts top-8 + 1 shared; first 3 layers dense ffn 18432; MLA`.

use std::num::NonZeroU32;

use anyhow::{Context, Result, bail, ensure};

use super::row::Published;

/// The experts of a row, and all else of its blocks that columns do not say.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Experts {
    /// Experts of a block.
    pub experts: usize,
    /// Experts that a token takes.
    pub chosen: usize,
    /// Experts that every token takes besides.
    pub shared: usize,
    /// The number of first layers that have none, and the width of the perceptron in their place.
    pub dense: (usize, usize),
    /// Whether keys and values are made from latent vectors.
    pub latent: bool,
    /// The width of a head, if it is not the model's by the number of heads.
    pub head: Option<usize>,
    /// The number of keys that each query of every other layer sees.
    pub window: Option<NonZeroU32>,
    /// Whether further tokens are predicted.
    pub further: bool,
}

/// Beginnings of words by which a remark speaks of the model. One that has such a word and is not understood is an error.
const OF_MODELS: [&str; 11] = [
    "expert", "layer", "dense", "ffn", "head", "width", "window", "latent", "mla", "top-", "shared",
];

impl Experts {
    /// Reads the remarks of a row; `None` if they speak of no experts.
    ///
    /// # Errors
    /// Returns an error with the remark, if it speaks of the model in a way that is not understood.
    pub fn of_row(row: &Published) -> Result<Option<Self>> {
        let remarks = || row.comment.split(';').map(str::trim);
        let Some(first) = remarks().find(|remark| is_mixture(remark)) else {
            ensure!(row.experts == 1, "ep is {}, and no remark says `MoE N experts`", row.experts);
            return Ok(None);
        };
        let mut experts = Self::default();
        experts.read_mixture(first).with_context(|| unknown(first))?;
        for remark in remarks().filter(|remark| *remark != first) {
            experts.read_remark(remark).with_context(|| unknown(remark))?;
        }
        Ok(Some(experts))
    }

    /// Reads `MoE 256 experts top-8 + 1 shared`.
    fn read_mixture(&mut self, remark: &str) -> Result<()> {
        let words: Vec<&str> = remark.split_whitespace().collect();
        let [_, experts, _, chosen, ref more @ ..] = words[..] else {
            bail!("it is to be `MoE N experts top-K`, and `+ S shared` where there are any");
        };
        self.experts = number(experts)?;
        self.chosen = number(chosen.strip_prefix("top-").context("there is no top-K")?)?;
        self.shared = match more {
            [] => 0,
            ["+", shared, "shared"] => number(shared)?,
            _ => bail!("behind top-K there is to be `+ S shared` or nothing"),
        };
        Ok(())
    }

    fn read_remark(&mut self, remark: &str) -> Result<()> {
        let words: Vec<&str> = remark.split_whitespace().collect();
        match words[..] {
            ["first", layers, "layers" | "layer", "dense", "ffn", width] => {
                self.dense = (number(layers)?, number(width)?);
            }
            ["first", "layer", "dense", "ffn", width] => self.dense = (1, number(width)?),
            ["MLA"] => self.latent = true,
            ["head", "width", width] => self.head = Some(number(width)?),
            ["every", "other", "layer", "window", keys] => {
                self.window = NonZeroU32::new(keys.parse()?);
            }
            ["row:", ..] => self.further = remark.contains("w/ MTP"),
            _ => {
                let lower = remark.to_lowercase();
                let speaks = |word: &str| OF_MODELS.iter().any(|known| word.starts_with(known));
                let of_model = lower.split_whitespace().any(speaks);
                ensure!(!of_model, "it speaks of the model in words that are not known");
            }
        }
        Ok(())
    }
}

fn is_mixture(remark: &str) -> bool {
    remark.starts_with("MoE ") && remark.contains(" experts")
}

fn unknown(remark: &str) -> String {
    format!("experts are not understood from `{remark}`")
}

fn number(text: &str) -> Result<usize> {
    let number: usize = text.parse().with_context(|| format!("`{text}` is no number"))?;
    ensure!(number > 0, "`{text}` is not more than 0");
    Ok(number)
}
