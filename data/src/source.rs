//! Data sets by name, in the form that command lines use.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;

use graphc_host::FeedTypes;
use graphc_ir::types::{Samples, TensorType};

use crate::augment::{Augment, Normalize};
use crate::dataset::{Dataset, Split};
use crate::error::DatasetError;
use crate::loader::LoaderOptions;
use crate::text::ByteText;
use crate::{TensorSet, cifar, mnist};

/// A data set by name: `cifar10:DIR`, `cifar100:DIR`, `mnist:DIR`, `images:DIR`, `text:PATH`, `bpe:DIR`, or a safetensors file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Source {
    /// The kind of data set.
    pub kind: Kind,
    /// The path of its file or folder.
    pub path: PathBuf,
}

/// The kind of a data set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// CIFAR-10, binary.
    Cifar10,
    /// CIFAR-100, binary.
    Cifar100,
    /// MNIST, IDX.
    Mnist,
    /// A folder of a folder of images for each class; needs the feature `images`.
    Images,
    /// Text by bytes.
    Text,
    /// Text by the tokens of a `tokenizer.json`; needs the feature `bpe`.
    Bpe,
    /// A safetensors file.
    Tensors,
}

/// The kinds that have a name.
const NAMED: [(&str, Kind); 6] = [
    ("cifar10", Kind::Cifar10),
    ("cifar100", Kind::Cifar100),
    ("mnist", Kind::Mnist),
    ("images", Kind::Images),
    ("text", Kind::Text),
    ("bpe", Kind::Bpe),
];

impl FromStr for Source {
    type Err = DatasetError;

    fn from_str(text: &str) -> Result<Self, DatasetError> {
        let fail = |reason: String| Err(DatasetError::Name { text: text.to_owned(), reason });
        let Some((name, path)) = text.split_once(':') else {
            return match NAMED.iter().any(|(name, _)| *name == text) || text.is_empty() {
                true => fail(format!("write {}", describe_choices())),
                false => Ok(Self { kind: Kind::Tensors, path: text.into() }),
            };
        };
        match NAMED.iter().find(|(known, _)| *known == name) {
            Some(_) if path.is_empty() => fail(format!("write {name}:DIR")),
            Some(&(_, kind)) => Ok(Self { kind, path: path.into() }),
            None if Path::new(text).exists() => Ok(Self { kind: Kind::Tensors, path: text.into() }),
            None => {
                fail(format!("there is no `{name}` and no such file; write {}", describe_choices()))
            }
        }
    }
}

fn describe_choices() -> String {
    let names = NAMED.map(|(name, _)| format!("{name}:DIR"));
    format!("{} or a safetensors file", names.join(", "))
}

impl fmt::Display for Source {
    /// Writes the text that parses to it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some((name, _)) = NAMED.iter().find(|(_, kind)| *kind == self.kind) {
            write!(f, "{name}:")?;
        }
        write!(f, "{}", self.path.display())
    }
}

impl Source {
    /// Opens a split for a graph of these inputs, which tell the size of images and the length of windows of text. A safetensors file has no splits,
    /// so it is opened whole.
    ///
    /// # Errors
    /// Returns an error if a file is missing or damaged, or if the inputs do not tell what must be known.
    pub fn open(
        &self,
        split: Split,
        inputs: &BTreeMap<String, TensorType>,
    ) -> Result<Arc<dyn Dataset>, DatasetError> {
        self.open_kind(split, inputs, &BTreeMap::new())
    }

    /// Opens a split like [`Source::open`] for the inputs of a session, which knows the dims that count their samples.
    ///
    /// # Errors
    /// As [`Source::open`].
    pub fn open_for<S>(&self, split: Split, session: &S) -> Result<Arc<dyn Dataset>, DatasetError>
    where
        for<'a> &'a S: Into<FeedTypes>,
    {
        let FeedTypes { inputs, samples, .. } = session.into();
        self.open_kind(split, &inputs, &samples)
    }

    /// Checks that a safetensors file is none of the folders that the other kinds are.
    ///
    /// # Errors
    /// Returns an error if it is a folder, which says how its kind is named.
    pub fn check_kind(&self) -> Result<(), DatasetError> {
        if self.kind != Kind::Tensors || !self.path.is_dir() {
            return Ok(());
        }
        let text = self.path.display().to_string();
        let choices = NAMED.map(|(name, _)| format!("{name}:{text}")).join(", ");
        let reason = format!("it is a folder, and what it holds must be said: write {choices}");
        Err(DatasetError::Name { text, reason })
    }

    fn open_kind(
        &self,
        split: Split,
        inputs: &BTreeMap<String, TensorType>,
        dims: &BTreeMap<String, Samples>,
    ) -> Result<Arc<dyn Dataset>, DatasetError> {
        self.check_kind()?;
        Ok(match self.kind {
            Kind::Cifar10 => Arc::new(cifar::cifar10(&self.path, split)?),
            Kind::Cifar100 => Arc::new(cifar::cifar100(&self.path, split)?),
            Kind::Mnist => Arc::new(mnist::mnist(&self.path, split)?),
            Kind::Images => self.images(split, inputs)?,
            Kind::Text => Arc::new(ByteText::open(&self.path, split, self.window_length(inputs)?)?),
            Kind::Bpe => self.bpe(split, inputs)?,
            Kind::Tensors => Arc::new(TensorSet::open_for(&self.path, inputs, dims)?),
        })
    }

    /// Returns the usual options for training on it: shuffled, normalized, and with augmented images.
    pub fn training(&self, seed: u64) -> LoaderOptions {
        let augment = match self.kind {
            Kind::Cifar10 | Kind::Cifar100 => Augment::CIFAR,
            Kind::Images => Augment { pad: 0, flip: true },
            Kind::Mnist | Kind::Text | Kind::Bpe | Kind::Tensors => Augment::NONE,
        };
        LoaderOptions { augment, normalize: self.normalize(), ..LoaderOptions::training(seed) }
    }

    /// Returns the usual options for evaluation on it: in order and normalized.
    pub fn evaluation(&self) -> LoaderOptions {
        LoaderOptions { normalize: self.normalize(), ..LoaderOptions::evaluation() }
    }

    /// Returns mean and standard deviation of its images, if they are known. For folders of images they are those of ImageNet.
    pub fn normalize(&self) -> Option<Normalize> {
        let of = |mean: &[f32], std: &[f32]| Some(Normalize::new(mean, std));
        match self.kind {
            Kind::Cifar10 => of(&[0.4914, 0.4822, 0.4465], &[0.2470, 0.2435, 0.2616]),
            Kind::Cifar100 => of(&[0.5071, 0.4865, 0.4409], &[0.2673, 0.2564, 0.2762]),
            Kind::Mnist => of(&[0.1307], &[0.3081]),
            Kind::Images => of(&[0.485, 0.456, 0.406], &[0.229, 0.224, 0.225]),
            Kind::Text | Kind::Bpe | Kind::Tensors => None,
        }
    }

    /// Returns the length of windows of text: the extent of the second dim of the input of integers that has two dims.
    fn window_length(&self, inputs: &BTreeMap<String, TensorType>) -> Result<usize, DatasetError> {
        let tokens = |ty: &&TensorType| !ty.dtype.is_float() && ty.shape.len() == 2;
        let input = inputs.values().find(tokens);
        input
            .map(|ty| ty.shape[1])
            .ok_or_else(|| self.missing_input_error("an input of tokens, [batch, length]", inputs))
    }

    fn missing_input_error(
        &self,
        wanted: &str,
        inputs: &BTreeMap<String, TensorType>,
    ) -> DatasetError {
        let all: Vec<String> = inputs.iter().map(|(name, ty)| format!("{name} {ty}")).collect();
        let found = all.join(", ");
        DatasetError::Loader(format!("{self} needs {wanted}; the graph's inputs are: {found}"))
    }

    #[cfg(feature = "images")]
    fn images(
        &self,
        split: Split,
        inputs: &BTreeMap<String, TensorType>,
    ) -> Result<Arc<dyn Dataset>, DatasetError> {
        let image = |ty: &TensorType| match ty.shape[..] {
            [_, channels @ (1 | 3), height, width] => Some([channels, height, width]),
            _ => None,
        };
        let shape = inputs.values().find_map(image);
        let shape = shape.ok_or_else(|| {
            self.missing_input_error("an input of images, [batch, 1 or 3, height, width]", inputs)
        })?;
        Ok(Arc::new(crate::ImageFolder::open(&self.path, split, shape)?))
    }

    #[cfg(not(feature = "images"))]
    fn images(
        &self,
        _: Split,
        _: &BTreeMap<String, TensorType>,
    ) -> Result<Arc<dyn Dataset>, DatasetError> {
        Err(self.without("images"))
    }

    #[cfg(feature = "bpe")]
    fn bpe(
        &self,
        split: Split,
        inputs: &BTreeMap<String, TensorType>,
    ) -> Result<Arc<dyn Dataset>, DatasetError> {
        Ok(Arc::new(crate::BpeText::open(&self.path, split, self.window_length(inputs)?)?))
    }

    #[cfg(not(feature = "bpe"))]
    fn bpe(
        &self,
        _: Split,
        _: &BTreeMap<String, TensorType>,
    ) -> Result<Arc<dyn Dataset>, DatasetError> {
        Err(self.without("bpe"))
    }

    #[cfg(not(all(feature = "images", feature = "bpe")))]
    fn without(&self, feature: &str) -> DatasetError {
        let reason = format!("this graphc was built without it: build with `--features {feature}`");
        DatasetError::Name { text: self.to_string(), reason }
    }
}

#[cfg(test)]
mod tests {
    use graphc_ir::types::DType;

    use super::*;
    use crate::synth;

    fn inputs(all: &[(&str, DType, &[usize])]) -> BTreeMap<String, TensorType> {
        all.iter()
            .map(|&(name, dtype, shape)| (name.into(), TensorType::new(dtype, shape)))
            .collect()
    }

    #[test]
    fn names_are_parsed_and_printed() {
        for text in ["cifar10:/data", "cifar100:a:b", "mnist:.", "images:x", "text:a.txt", "bpe:x"]
        {
            let source: Source = text.parse().expect("a name");
            assert_eq!(source.to_string(), text);
            assert_ne!(source.kind, Kind::Tensors);
        }
        let file: Source = "some/file.safetensors".parse().expect("a file");
        assert_eq!(
            (file.kind, file.to_string().as_str()),
            (Kind::Tensors, "some/file.safetensors")
        );
    }

    #[test]
    fn a_file_may_have_a_colon_in_its_name() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("a:b.safetensors");
        std::fs::write(&path, "").expect("writable");
        let source: Source = path.display().to_string().parse().expect("it exists");
        assert_eq!(source.kind, Kind::Tensors);
    }

    #[test]
    fn what_is_no_name_is_an_error_that_says_what_is_one() {
        for text in ["cifra10:/data", "cifar10", "", "http://somewhere"] {
            let error = text.parse::<Source>().expect_err("no name").to_string();
            assert!(error.contains("cifar10:DIR, cifar100:DIR, mnist:DIR"), "{error}");
        }
        let folder = tempfile::tempdir().expect("a folder");
        let name = folder.path().display().to_string();
        let source: Source = name.parse().expect("a path");
        let error = source.check_kind().expect_err("a folder").to_string();
        assert!(
            error.contains("it is a folder") && error.contains(&format!("mnist:{name}")),
            "{error}"
        );
        let error = "mnist:".parse::<Source>().expect_err("no folder").to_string();
        assert!(error.ends_with("write mnist:DIR"), "{error}");
    }

    #[test]
    fn splits_are_opened_for_what_the_graph_takes() {
        let folder = tempfile::tempdir().expect("a folder");
        synth::write_set(synth::SynthSet::Mnist, folder.path(), 20, 0).expect("writable");
        std::fs::write(folder.path().join("a.txt"), "a text of some bytes").expect("writable");
        let source = |name: &str| -> Source {
            format!("{name}:{}", folder.path().display()).parse().expect("a name")
        };
        let x = inputs(&[("x", DType::F32, &[2, 1, 28, 28])]);
        assert_eq!(source("mnist").open(Split::Train, &x).expect("a set").samples(), 20);
        assert_eq!(source("mnist").open(Split::Test, &x).expect("a set").samples(), 4);
        let ids = inputs(&[("ids", DType::I64, &[2, 5])]);
        let text = source("text").open(Split::Train, &ids).expect("a text");
        assert_eq!((text.samples(), text.fields()[0].ty.shape[0]), (3, 5));
        let error = source("text").open(Split::Train, &x).err().expect("no tokens").to_string();
        assert!(
            error.contains("[batch, length]") && error.contains("x f32[2, 1, 28, 28]"),
            "{error}"
        );
        let missing = source("cifar10").open(Split::Test, &x).err().expect("none").to_string();
        assert!(missing.contains("test_batch.bin is not there"), "{missing}");
    }

    #[cfg(not(all(feature = "images", feature = "bpe")))]
    #[test]
    fn what_was_not_built_says_so() {
        let name = if cfg!(feature = "images") { "bpe" } else { "images" };
        let source: Source = format!("{name}:x").parse().expect("a name");
        let error =
            source.open(Split::Train, &BTreeMap::new()).err().expect("not built").to_string();
        assert!(error.contains(&format!("--features {name}")), "{error}");
    }
}
