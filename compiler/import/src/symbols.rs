//! The symbolic extents of a model, and which dim of each input counts samples.
//!
//! The batch is a symbol: one whose name begins with `batch`, else that of the first input's first dim, else the only one that
//! there is. An input counts its samples along the dim of that symbol, wherever it stands; an input without it is the same in
//! every step, unless its first dim is a symbol of another name and the same extent. Where no symbol is the batch it is the first
//! extent of the first input, and inputs that begin with another one are the same in every step.

use std::collections::{BTreeMap, BTreeSet};

use graphc_ir::types::Samples;

/// The symbolic extents of a model.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Symbols {
    /// The symbol of the batch, if there is one.
    pub batch: Option<String>,
    /// All symbols, that of the batch first.
    pub all: Vec<String>,
    inputs: Vec<InputDims>,
}

/// An input, and the names of its dims where they have one.
pub(super) type InputDims = (String, Vec<Option<String>>);

impl Symbols {
    /// Collects the symbols of inputs, and `others` that stand elsewhere in the model.
    pub(super) fn new(inputs: Vec<InputDims>, others: Vec<String>) -> Self {
        let mut names: Vec<String> = Vec::new();
        let of_inputs = inputs.iter().flat_map(|(_, dims)| dims).flatten();
        for name in of_inputs.chain(&others) {
            if !names.contains(name) {
                names.push(name.clone());
            }
        }
        let batch = find_batch_symbol(&inputs);
        names.sort_by_key(|name| Some(name) != batch.as_ref());
        Self { batch, all: names, inputs }
    }

    /// The inputs in which the symbol of the batch stands, and the dim.
    pub fn sampled_inputs(&self) -> impl Iterator<Item = (&str, usize)> {
        self.inputs.iter().filter_map(|(name, dims)| Some((name.as_str(), self.batch_dim(dims)?)))
    }

    /// Returns the extents that symbols other than the batch's have in tensors of these shapes by name. A symbol that has several is left out.
    pub fn extents_in<'a>(
        &self,
        shape_of: impl Fn(&str) -> Option<&'a [usize]>,
    ) -> BTreeMap<String, usize> {
        let mut found: BTreeMap<&String, BTreeSet<usize>> = BTreeMap::new();
        for (name, dims) in &self.inputs {
            let Some(shape) = shape_of(name).filter(|shape| shape.len() == dims.len()) else {
                continue;
            };
            for (symbol, extent) in dims.iter().zip(shape) {
                let Some(symbol) =
                    symbol.as_ref().filter(|name| Some(*name) != self.batch.as_ref())
                else {
                    continue;
                };
                found.entry(symbol).or_default().insert(*extent);
            }
        }
        let only = |(symbol, extents): (&String, BTreeSet<usize>)| match Vec::from_iter(extents)[..]
        {
            [extent] => Some((symbol.clone(), extent)),
            _ => None,
        };
        found.into_iter().filter_map(only).collect()
    }

    /// Returns, for inputs of these shapes, the dims that count samples.
    pub(super) fn samples(&self, shapes: &[Vec<usize>]) -> Vec<Samples> {
        let inputs = || self.inputs.iter().map(|(_, dims)| dims).zip(shapes);
        let by_symbol =
            inputs().find_map(|(dims, shape)| shape.get(self.batch_dim(dims)?).copied());
        let batch = by_symbol.or_else(|| shapes.iter().find_map(|shape| shape.first().copied()));
        let along = |(dims, shape): (&Vec<Option<String>>, &Vec<usize>)| {
            if let Some(dim) = self.batch_dim(dims) {
                return Samples::along_dim(dim);
            }
            let may_count = self.batch.is_none() || dims.first().is_some_and(Option::is_some);
            match shape.first().copied() {
                extent if extent == batch && may_count => Samples::First,
                Some(_) => Samples::Whole,
                None => Samples::First,
            }
        };
        inputs().map(along).collect()
    }

    fn batch_dim(&self, dims: &[Option<String>]) -> Option<usize> {
        let batch = self.batch.as_ref()?;
        dims.iter().position(|name| name.as_ref() == Some(batch))
    }
}

/// The symbol that counts samples.
fn find_batch_symbol(inputs: &[InputDims]) -> Option<String> {
    let all = || inputs.iter().flat_map(|(_, dims)| dims).flatten();
    let named = all().find(|name| name.to_ascii_lowercase().starts_with("batch"));
    let first = || inputs.first().and_then(|(_, dims)| dims.first()?.as_ref());
    let only = || all().next().filter(|one| all().all(|name| name == *one));
    named.or_else(first).or_else(only).cloned()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Inputs as their dims are written, e.g. `2 batch 12`, and what counts their samples.
    fn found(inputs: &[&str], values: &[(&str, usize)]) -> (Option<String>, Vec<Samples>) {
        let words = |text: &&str| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        let is_name = |word: &String| word.parse::<usize>().is_err();
        let named = |(at, text): (usize, &&str)| {
            let dims = words(text).into_iter().map(|word| Some(word).filter(is_name)).collect();
            (at.to_string(), dims)
        };
        let symbols = Symbols::new(inputs.iter().enumerate().map(named).collect(), Vec::new());
        let value = |word: String| {
            let known = values.iter().find(|(name, _)| *name == word).map(|(_, value)| *value);
            known.or_else(|| word.parse().ok()).expect("it has a value")
        };
        let shapes: Vec<Vec<usize>> =
            inputs.iter().map(|text| words(text).into_iter().map(value).collect()).collect();
        (symbols.batch.clone(), symbols.samples(&shapes))
    }

    #[test]
    fn data_says_what_symbols_are() {
        let dims = |text: &str| text.split(' ').map(|word| Some(word.to_owned())).collect();
        let inputs = ["batch time", "batch width", "time", "width"].into_iter().enumerate();
        let inputs = inputs.map(|(at, text)| (at.to_string(), dims(text))).collect();
        let symbols = Symbols::new(inputs, Vec::new());
        let shapes: [&[usize]; 4] = [&[5, 7], &[6, 8], &[7], &[9]];
        let of = |name: &str| name.parse::<usize>().ok().and_then(|at| shapes.get(at).copied());
        assert_eq!(symbols.extents_in(of), [("time".into(), 7)].into());
        let without = |name: &str| of(name).filter(|_| name != "3");
        assert_eq!(symbols.extents_in(without), [("time".into(), 7), ("width".into(), 8)].into());
    }

    #[test]
    fn samples_are_counted_where_the_symbol_stands() {
        use Samples::{Dim, First, Whole};
        let of = |inputs: &[&str]| found(inputs, &[("batch", 4), ("n", 4), ("time", 9), ("m", 4)]);
        assert_eq!(
            of(&["batch 9 6", "2 batch 12", "7 3"]),
            (Some("batch".into()), vec![First, Dim(1), Whole])
        );
        assert_eq!(of(&["2 batch 12", "batch 9 6", ""]).1, [Dim(1), First, First]);
        assert_eq!(of(&["time batch 6"]), (Some("batch".into()), vec![Dim(1)]));
        assert_eq!(of(&["9 n 6", "4 6"]), (Some("n".into()), vec![Dim(1), Whole]));
        // Two names of one number, as exporters give them.
        assert_eq!(of(&["n 9", "m 3", "time 3"]), (Some("n".into()), vec![First, First, Whole]));
        assert_eq!(of(&["4 9", "4", "7 3"]), (None, vec![First, First, Whole]));
    }
}
