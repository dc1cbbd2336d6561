//! A model's `config.json`: numbers and texts by their keys, with the defaults of transformers where they are left out.

use std::path::{Path, PathBuf};

use graphc_ir::builder::Tensor;
use graphc_ir::types::DType;
use serde_json::{Map, Value};

use super::super::{ImportError, file};

/// Bytes of the longest configuration.
const LONGEST: u64 = 1 << 22;

/// The greatest size that makes sense: the bytes of all tensors are far from overflowing.
pub(super) const GREATEST: u64 = 1 << 20;

/// The most layers of a model.
const MOST_LAYERS: usize = 4096;

/// A configuration, or an object in it.
#[derive(Clone, Debug)]
pub(super) struct HuggingFaceConfig {
    path: PathBuf,
    values: Map<String, Value>,
}

impl HuggingFaceConfig {
    /// # Errors
    /// Returns an error if the file cannot be read or is no JSON object.
    pub(super) fn read(path: &Path) -> Result<Self, ImportError> {
        let error = |reason: String| ImportError::Read { path: path.into(), reason };
        let bytes = file::read_file(path, LONGEST).map_err(|reason| error(reason.to_string()))?;
        let values = serde_json::from_slice(&bytes).map_err(|reason| error(reason.to_string()))?;
        Ok(Self { path: path.into(), values })
    }

    /// Makes an error of this file.
    pub(super) fn config_error(&self, reason: String) -> ImportError {
        ImportError::Config { path: self.path.clone(), reason }
    }

    /// Returns a value that is there and not null.
    fn find_value(&self, key: &str) -> Option<&Value> {
        self.values.get(key).filter(|value| !value.is_null())
    }

    fn wrong_value(&self, key: &str, expected: &str) -> ImportError {
        let found = self.find_value(key).map(Value::to_string).unwrap_or_default();
        self.config_error(format!("`{key}` is {expected}, not {found}"))
    }

    /// Reads a size, which may be left out.
    ///
    /// # Errors
    /// Returns an error if the value is no whole number from 1 to 2^20.
    pub(super) fn optional_size(&self, key: &str) -> Result<Option<usize>, ImportError> {
        let Some(value) = self.find_value(key) else { return Ok(None) };
        let size = value.as_u64().filter(|size| (1..=GREATEST).contains(size));
        let size = size.ok_or_else(|| self.wrong_value(key, "a whole number from 1 to 2^20"))?;
        Ok(Some(size as usize))
    }

    /// Reads a size.
    ///
    /// # Errors
    /// Returns an error if there is none.
    pub(super) fn required_size(&self, key: &str) -> Result<usize, ImportError> {
        let missing = || self.config_error(format!("it does not say `{key}`"));
        self.optional_size(key)?.ok_or_else(missing)
    }

    /// Reads a number of layers.
    ///
    /// # Errors
    /// Returns an error if there is none, or it is larger than any model's.
    pub(super) fn layer_count(&self, key: &str) -> Result<usize, ImportError> {
        let layers = self.required_size(key)?;
        match layers <= MOST_LAYERS {
            true => Ok(layers),
            false => Err(self.wrong_value(key, &format!("at most {MOST_LAYERS}"))),
        }
    }

    /// Reads a finite number, or returns `otherwise` if it is left out.
    ///
    /// # Errors
    /// Returns an error if the value is no finite number.
    pub(super) fn number_or(&self, key: &str, otherwise: f64) -> Result<f64, ImportError> {
        let Some(value) = self.find_value(key) else { return Ok(otherwise) };
        let number = value.as_f64().filter(|number| number.is_finite());
        number.ok_or_else(|| self.wrong_value(key, "a number"))
    }

    /// Reads the probability of a dropout, or returns `otherwise` if it is left out.
    ///
    /// # Errors
    /// Returns an error if the value is no number of at least 0 and below 1.
    pub(super) fn probability_or(&self, key: &str, otherwise: f64) -> Result<f64, ImportError> {
        let number = self.number_or(key, otherwise)?;
        match (0.0..1.0).contains(&number) {
            true => Ok(number),
            false => Err(self.wrong_value(key, "a probability of at least 0 and below 1")),
        }
    }

    /// Reads a truth value, or returns `otherwise` if it is left out.
    ///
    /// # Errors
    /// Returns an error if the value is neither true nor false.
    pub(super) fn flag_or(&self, key: &str, otherwise: bool) -> Result<bool, ImportError> {
        let Some(value) = self.find_value(key) else { return Ok(otherwise) };
        value.as_bool().ok_or_else(|| self.wrong_value(key, "true or false"))
    }

    /// Reads a text, or returns `otherwise` if it is left out.
    ///
    /// # Errors
    /// Returns an error if the value is no text.
    pub(super) fn text_or(&self, key: &str, otherwise: &str) -> Result<String, ImportError> {
        let Some(value) = self.find_value(key) else { return Ok(otherwise.into()) };
        value.as_str().map(str::to_owned).ok_or_else(|| self.wrong_value(key, "a text"))
    }

    /// Returns an object within this one; `None` if it is left out.
    ///
    /// # Errors
    /// Returns an error if the value is no object.
    pub(super) fn object(&self, key: &str) -> Result<Option<Self>, ImportError> {
        match self.find_value(key) {
            None => Ok(None),
            Some(Value::Object(values)) => {
                Ok(Some(Self { path: self.path.clone(), values: values.clone() }))
            }
            Some(_) => Err(self.wrong_value(key, "an object")),
        }
    }

    /// Returns the name of the model's class.
    ///
    /// # Errors
    /// Returns an error if the configuration names no class.
    pub(super) fn architecture(&self) -> Result<String, ImportError> {
        let first = self.find_value("architectures").and_then(|list| list.get(0)?.as_str());
        let missing = || self.config_error("it does not say its class as `architectures`".into());
        first.map(str::to_owned).ok_or_else(missing)
    }

    /// Returns the element type of weights that are in no file.
    ///
    /// # Errors
    /// Returns an error if the configuration names a type that is not supported.
    pub(super) fn default_dtype(&self) -> Result<DType, ImportError> {
        let key = if self.find_value("dtype").is_some() { "dtype" } else { "torch_dtype" };
        match self.text_or(key, "float32")?.as_str() {
            "float32" => Ok(DType::F32),
            "float16" => Ok(DType::F16),
            "bfloat16" => Ok(DType::BF16),
            _ => Err(self.wrong_value(key, "float32, float16 or bfloat16")),
        }
    }

    /// Reads an activation, or returns that of the name `otherwise` if it is left out.
    ///
    /// # Errors
    /// Returns an error if the activation is not supported.
    pub(super) fn activation_or(
        &self,
        key: &str,
        otherwise: &str,
    ) -> Result<PerceptronActivation, ImportError> {
        match self.text_or(key, otherwise)?.as_str() {
            "silu" | "swish" => Ok(PerceptronActivation::Silu),
            "gelu" => Ok(PerceptronActivation::Gelu),
            "gelu_new" | "gelu_pytorch_tanh" => Ok(PerceptronActivation::GeluTanh),
            "relu" => Ok(PerceptronActivation::Relu),
            _ => Err(self.wrong_value(key, "silu, gelu, gelu_new, gelu_pytorch_tanh or relu")),
        }
    }

    /// Returns the token of padding, if there is one, of a vocabulary of that many tokens. It is `usual` if the configuration has no such key.
    ///
    /// # Errors
    /// Returns an error if the value is no token of the vocabulary.
    pub(super) fn padding_token(
        &self,
        vocabulary: usize,
        usual: Option<usize>,
    ) -> Result<Option<usize>, ImportError> {
        const KEY: &str = "pad_token_id";
        let Some(value) = self.values.get(KEY) else { return Ok(usual) };
        let Some(token) = value.as_i64() else {
            return if value.is_null() { Ok(None) } else { Err(self.wrong_value(KEY, "a token")) };
        };
        // Negative ones count from the end.
        let from_start = if token < 0 { token.saturating_add(vocabulary as i64) } else { token };
        let token = usize::try_from(from_start).ok().filter(|&token| token < vocabulary);
        token.map(Some).ok_or_else(|| self.wrong_value(KEY, &format!("one of {vocabulary} tokens")))
    }

    /// Returns the number of classes of a head, which is 2 if the configuration does not give it.
    ///
    /// # Errors
    /// Returns an error if the value is not valid.
    pub(super) fn class_count(&self) -> Result<usize, ImportError> {
        let named = self.object("id2label")?.map(|labels| labels.values.len());
        Ok(self.optional_size("num_labels")?.or(named).unwrap_or(2))
    }

    /// Refuses sequences of more tokens than a model has positions. `key` is the key that gives the positions, for the message.
    ///
    /// # Errors
    /// Returns an error if there are more tokens than positions.
    pub(super) fn check_positions(
        &self,
        key: &str,
        positions: usize,
        time: usize,
    ) -> Result<(), ImportError> {
        match time <= positions {
            true => Ok(()),
            false => Err(self.config_error(format!(
                "the model has {positions} positions (`{key}`), and sequences have {time} tokens"
            ))),
        }
    }

    /// Refuses a switch that asks for something that is not supported. A switch that is left out is as expected.
    ///
    /// # Errors
    /// Returns an error if the switch is not as expected.
    pub(super) fn expect_flag(&self, key: &str, expected: bool) -> Result<(), ImportError> {
        match self.flag_or(key, expected)? == expected {
            true => Ok(()),
            false => Err(self.config_error(format!("`{key}` is known as {expected} alone"))),
        }
    }
}

/// Functions of perceptrons.
#[derive(Clone, Copy, Debug)]
pub(super) enum PerceptronActivation {
    Silu,
    Gelu,
    GeluTanh,
    Relu,
}

impl PerceptronActivation {
    pub(super) fn apply(self, x: &Tensor) -> Tensor {
        match self {
            Self::Silu => x.silu(),
            Self::Gelu => x.gelu(),
            Self::GeluTanh => x.gelu_tanh(),
            Self::Relu => x.relu(),
        }
    }
}
