//! BERT (arXiv 1810.04805) with the head of its pretraining, or with one for classes. All tokens of a sequence are seen, of its first
//! segment.

use graphc_ir::builder::Tensor;

use super::super::ImportError;
use super::config::{HuggingFaceConfig, PerceptronActivation};
use super::parts::{HuggingFaceParts, apply_attention, apply_dropout};

/// A BERT model, as a configuration describes it.
pub(super) struct Bert {
    layers: usize,
    width: usize,
    heads: usize,
    hidden: usize,
    positions: usize,
    segments: usize,
    vocabulary: usize,
    padding: Option<usize>,
    epsilon: f64,
    activation: PerceptronActivation,
    /// The share of zeros that dropout makes in training, of all that is normalized.
    dropout: f64,
    /// The share of the weights of attention that are dropped in training.
    attention_dropout: f64,
    head: BertHead,
}

/// The head of a BERT model, behind the encoder.
enum BertHead {
    /// Predicts tokens, with the table of embeddings as its weights.
    Tokens,
    /// Predicts classes of whole sequences: their number, and the share of zeros that dropout makes before the classifier.
    Classes(usize, f64),
}

impl Bert {
    /// # Errors
    /// Returns an error if the configuration is not complete, or asks for something that is not supported.
    pub(super) fn from_config(
        config: &HuggingFaceConfig,
        class: &str,
    ) -> Result<Self, ImportError> {
        config.expect_flag("is_decoder", false)?;
        config.expect_flag("tie_word_embeddings", true)?;
        if config.text_or("position_embedding_type", "absolute")? != "absolute" {
            let reason = "`position_embedding_type` is known as absolute alone";
            return Err(config.config_error(reason.into()));
        }
        let (width, heads) =
            (config.required_size("hidden_size")?, config.required_size("num_attention_heads")?);
        if !width.is_multiple_of(heads) {
            return Err(
                config.config_error(format!("{heads} heads do not divide a width of {width}"))
            );
        }
        let vocabulary = config.required_size("vocab_size")?;
        let dropout = config.probability_or("hidden_dropout_prob", 0.1)?;
        let head = match class {
            "BertForMaskedLM" => BertHead::Tokens,
            _ => BertHead::Classes(
                config.class_count()?,
                config.probability_or("classifier_dropout", dropout)?,
            ),
        };
        Ok(Self {
            layers: config.layer_count("num_hidden_layers")?,
            width,
            heads,
            hidden: config.required_size("intermediate_size")?,
            positions: config.required_size("max_position_embeddings")?,
            segments: config.optional_size("type_vocab_size")?.unwrap_or(2),
            vocabulary,
            padding: config.padding_token(vocabulary, Some(0))?,
            epsilon: config.number_or("layer_norm_eps", 1e-12)?,
            activation: config.activation_or("hidden_act", "gelu")?,
            dropout,
            attention_dropout: config.probability_or("attention_probs_dropout_prob", 0.1)?,
            head,
        })
    }

    /// # Errors
    /// Returns an error if there are more tokens than positions.
    pub(super) fn check_time(
        &self,
        config: &HuggingFaceConfig,
        time: usize,
    ) -> Result<(), ImportError> {
        config.check_positions("max_position_embeddings", self.positions, time)
    }

    /// Computes the logits of tokens, or of the classes of sequences.
    pub(super) fn build_logits(&self, parts: &HuggingFaceParts<'_>, tokens: &Tensor) -> Tensor {
        let table = |name: &str, rows: usize| {
            parts.add_weight(
                &format!("bert.embeddings.{name}_embeddings.weight"),
                &[rows, self.width],
            )
        };
        let time = tokens.shape().last().copied().unwrap_or(0);
        let words = table("word", self.vocabulary);
        let places = table("position", self.positions).slice(0, 0..time);
        let segment = table("token_type", self.segments).slice(0, 0..1);
        let sum = parts.embedding(&words, tokens, self.padding).add(&segment).add(&places);
        let normal = parts.layer_norm(&sum, "bert.embeddings.LayerNorm", self.epsilon);
        let mut x = apply_dropout(normal, self.dropout);
        for layer in 0..self.layers {
            x = self.build_layer(parts, &x, &format!("bert.encoder.layer.{layer}"));
        }
        match self.head {
            BertHead::Tokens => self.build_token_head(parts, &x, &words),
            BertHead::Classes(classes, dropout) => {
                self.build_class_head(parts, &x, (classes, dropout))
            }
        }
    }

    fn build_layer(&self, parts: &HuggingFaceParts<'_>, x: &Tensor, name: &str) -> Tensor {
        let mixed = self.build_attention(parts, x, &format!("{name}.attention.self"));
        let (width, hidden) = (self.width, self.hidden);
        let x = self.add_and_normalize(parts, x, &mixed, &format!("{name}.attention.output"));
        let up = parts.linear(&x, &format!("{name}.intermediate.dense"), [width, hidden], true);
        self.add_and_normalize(parts, &x, &self.activation.apply(&up), &format!("{name}.output"))
    }

    /// x and a product with what was computed of it, normalized.
    fn add_and_normalize(
        &self,
        parts: &HuggingFaceParts<'_>,
        x: &Tensor,
        computed: &Tensor,
        name: &str,
    ) -> Tensor {
        let inputs = computed.shape().last().copied().unwrap_or(0);
        let sizes = [inputs, self.width];
        let y = parts.linear(computed, &format!("{name}.dense"), sizes, true);
        let sum = apply_dropout(y, self.dropout).add(x);
        parts.layer_norm(&sum, &format!("{name}.LayerNorm"), self.epsilon)
    }

    fn build_attention(&self, parts: &HuggingFaceParts<'_>, x: &Tensor, name: &str) -> Tensor {
        let [batch, time, width] = x.shape()[..] else { return x.clone() };
        let (heads, each) = (self.heads, width / self.heads);
        let [query, key, value] = ["query", "key", "value"].map(|part| {
            let y = parts.linear(x, &format!("{name}.{part}"), [width, width], true);
            y.reshape(&[batch, time, heads, each])
        });
        apply_attention([&query, &key, &value], false, self.attention_dropout)
            .reshape(&[batch, time, width])
    }

    fn build_token_head(&self, parts: &HuggingFaceParts<'_>, x: &Tensor, words: &Tensor) -> Tensor {
        const HEAD: &str = "cls.predictions";
        let sizes = [self.width, self.width];
        let y = parts.linear(x, &format!("{HEAD}.transform.dense"), sizes, true);
        let y = self.activation.apply(&y);
        let y = parts.layer_norm(&y, &format!("{HEAD}.transform.LayerNorm"), self.epsilon);
        let bias = parts.add_weight(&format!("{HEAD}.bias"), &[self.vocabulary]);
        y.matmul_transposed(words, false, true).add(&bias)
    }

    fn build_class_head(
        &self,
        parts: &HuggingFaceParts<'_>,
        x: &Tensor,
        (classes, dropout): (usize, f64),
    ) -> Tensor {
        let first = x.slice(1, 0..1).squeeze(1);
        let sizes = [self.width, self.width];
        let pooled = parts.linear(&first, "bert.pooler.dense", sizes, true).tanh();
        parts.linear(&apply_dropout(pooled, dropout), "classifier", [self.width, classes], true)
    }
}
