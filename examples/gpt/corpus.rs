//! A text as tokens: characters, the last tenth held out; batches; the bigram model to beat.

use anyhow::{Result, ensure};
use graphc::ir::random::RandomStream;

/// A tokenized text.
pub struct Corpus {
    characters: Vec<char>,
    train: Vec<i64>,
    held_out: Vec<i64>,
}

impl Corpus {
    /// Tokens are the distinct characters of the text.
    pub fn new(text: &str) -> Result<Self> {
        let mut characters: Vec<char> = text.chars().collect();
        characters.sort_unstable();
        characters.dedup();
        ensure!(characters.len() > 1, "the text needs at least two different characters");
        let tokens: Vec<i64> = text
            .chars()
            .map(|c| characters.binary_search(&c).map_or(0, |token| token as i64))
            .collect();
        let cut = tokens.len() / 10 * 9;
        let (train, held_out) = tokens.split_at(cut);
        Ok(Self { characters, train: train.to_vec(), held_out: held_out.to_vec() })
    }

    /// Number of tokens of the vocabulary.
    pub fn vocabulary(&self) -> usize {
        self.characters.len()
    }

    /// An error where training or held-out text has no window of this many tokens and one more.
    pub fn check_length(&self, sequence: usize) -> Result<()> {
        let held_out = self.held_out.len();
        ensure!(
            held_out > sequence,
            "the text is too short: its last tenth has {held_out} characters, and {} are needed",
            sequence + 1
        );
        Ok(())
    }

    /// Training windows at random places, a function of seed and step: (tokens, next tokens).
    pub fn batch(
        &self,
        seed: u64,
        step: u64,
        batch: usize,
        sequence: usize,
    ) -> (Vec<i64>, Vec<i64>) {
        let stream = RandomStream { seed, key: 0x7E87, step };
        let room = self.train.len() - sequence;
        let place =
            |row: usize| (f64::from(stream.uniform(row as u64)) * room as f64) as usize % room;
        let places: Vec<usize> = (0..batch).map(place).collect();
        windows(&self.train, &places, sequence)
    }

    /// `count` windows spread evenly over the held-out text.
    pub fn held_out(&self, count: usize, sequence: usize) -> (Vec<i64>, Vec<i64>) {
        let room = self.held_out.len() - sequence;
        let places: Vec<usize> = (0..count).map(|i| i * room / count).collect();
        windows(&self.held_out, &places, sequence)
    }

    /// The first tokens of the held-out text.
    pub fn prompt(&self, length: usize) -> &[i64] {
        &self.held_out[..length]
    }

    /// Tokens as text.
    pub fn text(&self, tokens: &[i64]) -> String {
        tokens.iter().map(|&token| self.characters[token as usize]).collect()
    }

    /// Nats per token of a bigram model with add-one smoothing, on the held-out text.
    pub fn bigram_loss(&self) -> f64 {
        let size = self.vocabulary();
        let mut counts = vec![1.0f64; size * size];
        for pair in self.train.windows(2) {
            counts[pair[0] as usize * size + pair[1] as usize] += 1.0;
        }
        let totals: Vec<f64> = counts.chunks(size).map(|row| row.iter().sum()).collect();
        let loss = |pair: &[i64]| {
            let row = pair[0] as usize;
            -(counts[row * size + pair[1] as usize] / totals[row]).ln()
        };
        let pairs = self.held_out.windows(2);
        pairs.map(loss).sum::<f64>() / (self.held_out.len() - 1) as f64
    }
}

fn windows(tokens: &[i64], places: &[usize], sequence: usize) -> (Vec<i64>, Vec<i64>) {
    let window = |shift: usize| {
        places
            .iter()
            .flat_map(|&p| tokens[p + shift..p + shift + sequence].iter().copied())
            .collect()
    };
    (window(0), window(1))
}
