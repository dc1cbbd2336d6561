//! Turns text into statements: what stands in each line, not yet what it means.

use super::error::ParseError;
use super::lex::{Kind, Label, Span, Token, tokens};
use crate::mesh::{DeviceKind, Placement};
use crate::sbp::NdSbp;
use crate::types::DType;

/// One line.
#[derive(Debug)]
pub(super) enum Statement {
    /// `graph @name {`
    Graph(String),
    /// `stage 0 on ..`
    Stage { index: usize, span: Span, placement: Option<Placement> },
    /// `%x = ..`
    Node(Box<NodeText>),
    /// `return "name" = %x, ..`
    Return(Vec<(String, Span, Label, Span)>),
    /// `}`
    End,
}

/// A node as written.
#[derive(Debug)]
pub(super) struct NodeText {
    pub results: Vec<(Label, Span)>,
    pub op: (String, Span),
    pub name: Option<(String, Span)>,
    pub operands: Vec<(Label, Span)>,
    pub attributes: Vec<Attribute>,
    pub stage: Option<(usize, Span)>,
    pub placement: Option<Placement>,
    pub autocast: Option<DType>,
    pub pins: Option<(Vec<Option<NdSbp>>, Span)>,
    pub types: Option<Vec<TypeText>>,
}

/// `key=value`
#[derive(Debug)]
pub(super) struct Attribute {
    pub key: String,
    pub span: Span,
    pub value: Literal,
}

/// A value of an attribute: JSON, in which an extent may stand for a number.
#[derive(Debug)]
pub(super) enum Literal {
    Json(serde_json::Value),
    Dim(Dim),
    Array(Vec<Literal>, Span),
    Object(Vec<(String, Literal)>),
}

/// An extent: a product of numbers and names.
#[derive(Debug)]
pub(super) struct Dim {
    pub factors: Vec<Factor>,
    pub span: Span,
}

#[derive(Debug)]
pub(super) enum Factor {
    Number(usize),
    Symbol(String, Span),
}

/// `f32[batch, 20]`
#[derive(Debug)]
pub(super) struct TypeText {
    pub dtype: DType,
    pub shape: Vec<Dim>,
    pub span: Span,
}

type Parsed<T> = Result<T, ParseError>;

/// The statements of a text, each with its line, and what could not be read.
pub(super) fn statements(text: &str) -> (Vec<(usize, Statement)>, Vec<ParseError>) {
    let mut statements = Vec::new();
    let mut errors = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let number = index + 1;
        let statement = tokens(line, number).and_then(|tokens| {
            let end = Span { line: number, column: line.trim_end().chars().count() + 1, length: 1 };
            let mut parser = Parser { tokens, position: 0, end, depth: 0 };
            if parser.tokens.is_empty() { Ok(None) } else { parser.statement().map(Some) }
        });
        match statement {
            Ok(Some(statement)) => statements.push((number, statement)),
            Ok(None) => {}
            Err(error) => errors.push(error),
        }
    }
    (statements, errors)
}

struct Parser {
    tokens: Vec<Token>,
    position: usize,
    /// Just behind the line: where something is missing.
    end: Span,
    depth: usize,
}

impl Parser {
    fn peek(&self) -> Option<&Kind> {
        self.tokens.get(self.position).map(|token| &token.kind)
    }

    fn span(&self) -> Span {
        self.tokens.get(self.position).map_or(self.end, |token| token.span)
    }

    fn last(&self) -> Span {
        self.tokens[..self.position].last().map_or(self.end, |token| token.span)
    }

    fn fail<T>(&self, expected: &str) -> Parsed<T> {
        Err(self.span().error(format!("expected {expected}")))
    }

    fn eat(&mut self, c: char) -> bool {
        let found = self.peek() == Some(&Kind::Punctuation(c));
        self.position += usize::from(found);
        found
    }

    fn expect(&mut self, c: char) -> Parsed<()> {
        if self.eat(c) { Ok(()) } else { self.fail(&format!("`{c}`")) }
    }

    fn is_word(&self, word: &str) -> bool {
        matches!(self.peek(), Some(Kind::Word(w)) if w == word)
    }

    fn eat_word(&mut self, word: &str) -> bool {
        let found = self.is_word(word);
        self.position += usize::from(found);
        found
    }

    fn word(&mut self, expected: &str) -> Parsed<(String, Span)> {
        let span = self.span();
        let Some(Kind::Word(word)) = self.peek() else { return self.fail(expected) };
        let word = word.clone();
        self.position += 1;
        Ok((word, span))
    }

    fn string(&mut self, expected: &str) -> Parsed<(String, Span)> {
        let span = self.span();
        let Some(Kind::Text(text)) = self.peek() else { return self.fail(expected) };
        let text = text.clone();
        self.position += 1;
        Ok((text, span))
    }

    fn value(&mut self) -> Parsed<(Label, Span)> {
        let span = self.span();
        let Some(Kind::Value(label)) = self.peek() else { return self.fail("a value such as %x") };
        let label = label.clone();
        self.position += 1;
        Ok((label, span))
    }

    fn number<T: std::str::FromStr>(&mut self, expected: &str) -> Parsed<(T, Span)> {
        let (word, span) = self.word(expected)?;
        match word.parse() {
            Ok(number) => Ok((number, span)),
            Err(_) => Err(span.error(format!("expected {expected}, not `{word}`"))),
        }
    }

    /// Items between commas until `close`, which is consumed.
    fn list<T>(&mut self, close: char, item: impl Fn(&mut Self) -> Parsed<T>) -> Parsed<Vec<T>> {
        let mut items = Vec::new();
        while !self.eat(close) {
            if !items.is_empty() && !self.eat(',') {
                return self.fail(&format!("`,` or `{close}`"));
            }
            items.push(item(self)?);
        }
        Ok(items)
    }

    /// Items between commas, at least one.
    fn items<T>(&mut self, item: impl Fn(&mut Self) -> Parsed<T>) -> Parsed<Vec<T>> {
        let mut items = vec![item(self)?];
        while self.eat(',') {
            items.push(item(self)?);
        }
        Ok(items)
    }

    fn statement(&mut self) -> Parsed<Statement> {
        let statement = match self.peek() {
            Some(Kind::Value(_)) => Statement::Node(Box::new(self.node()?)),
            Some(Kind::Punctuation('}')) => {
                self.position += 1;
                Statement::End
            }
            Some(Kind::Word(word)) => match word.as_str() {
                "graph" => self.graph()?,
                "stage" => self.stage()?,
                "return" => self.outputs()?,
                _ => return self.fail("`%result = op ..`, `stage`, `return` or `}`"),
            },
            _ => return self.fail("`graph`, `stage`, `%result = op ..`, `return` or `}`"),
        };
        if self.position < self.tokens.len() {
            return self.fail("the end of the line");
        }
        Ok(statement)
    }

    fn graph(&mut self) -> Parsed<Statement> {
        self.position += 1;
        let Some(Kind::Graph(name)) = self.peek() else {
            return self.fail("the name, e.g. @model");
        };
        let name = name.clone();
        self.position += 1;
        self.expect('{')?;
        Ok(Statement::Graph(name))
    }

    fn stage(&mut self) -> Parsed<Statement> {
        self.position += 1;
        let (index, span) = self.number("a stage's number")?;
        let placement = if self.eat_word("on") { Some(self.placement()?) } else { None };
        Ok(Statement::Stage { index, span, placement })
    }

    fn outputs(&mut self) -> Parsed<Statement> {
        self.position += 1;
        let output = |parser: &mut Self| {
            let (name, span) = parser.string("an output's name in quotes, e.g. \"logits\" = %x")?;
            parser.expect('=')?;
            let (value, at) = parser.value()?;
            Ok((name, span, value, at))
        };
        self.items(output).map(Statement::Return)
    }

    fn node(&mut self) -> Parsed<NodeText> {
        let results = self.items(Self::value)?;
        self.expect('=')?;
        let op = self.word("an op")?;
        let name = match self.peek() {
            Some(Kind::Text(_)) => Some(self.string("a name")?),
            _ => None,
        };
        let operands = match self.peek() {
            Some(Kind::Value(_)) => self.items(Self::value)?,
            _ => Vec::new(),
        };
        let attributes = if self.eat('{') { self.list('}', Self::attribute)? } else { Vec::new() };
        let (mut stage, mut placement, mut autocast, mut pins) = (None, None, None, None);
        loop {
            if self.eat_word("stage") {
                stage = Some(self.number("a stage's number")?);
            } else if self.eat_word("on") {
                placement = Some(self.placement()?);
            } else if self.eat_word("autocast") {
                autocast = Some(self.precision()?);
            } else if self.eat_word("pin") {
                pins = Some(self.pins()?);
            } else {
                break;
            }
        }
        let types = if self.eat(':') { Some(self.items(Self::ty)?) } else { None };
        if types.is_none() && self.position < self.tokens.len() {
            return self.fail(
                "operands, `{attributes}`, `stage`, `on`, `autocast`, `pin`, `: type` or the end of the line",
            );
        }
        Ok(NodeText {
            results,
            op,
            name,
            operands,
            attributes,
            stage,
            placement,
            autocast,
            pins,
            types,
        })
    }

    /// The element type of automatic mixed precision.
    fn precision(&mut self) -> Parsed<DType> {
        let expected = "bf16, f16 or f32";
        let (word, span) = self.word(expected)?;
        let dtype = word.parse().ok().filter(|dtype: &DType| dtype.is_float());
        dtype.ok_or_else(|| span.error(format!("expected {expected}, not `{word}`")))
    }

    fn attribute(&mut self) -> Parsed<Attribute> {
        let (key, span) = self.word("an attribute, e.g. axis=1")?;
        self.expect('=')?;
        Ok(Attribute { key, span, value: self.literal()? })
    }

    fn literal(&mut self) -> Parsed<Literal> {
        // Recursion is bounded, so that no text overflows the stack.
        if self.depth > 32 {
            return self.fail("fewer brackets within brackets");
        }
        let start = self.span();
        self.depth += 1;
        let literal = if self.eat('[') {
            self.list(']', Self::literal).map(|items| Literal::Array(items, start.to(self.last())))
        } else if self.eat('{') {
            self.list('}', Self::entry).map(Literal::Object)
        } else if let Some(Kind::Text(text)) = self.peek() {
            let json = serde_json::Value::from(text.as_str());
            self.position += 1;
            Ok(Literal::Json(json))
        } else {
            self.scalar()
        };
        self.depth -= 1;
        literal
    }

    fn entry(&mut self) -> Parsed<(String, Literal)> {
        let (key, _) = self.string("a key in quotes")?;
        self.expect(':')?;
        Ok((key, self.literal()?))
    }

    /// A number, a truth value or an extent.
    fn scalar(&mut self) -> Parsed<Literal> {
        let Some(Kind::Word(word)) = self.peek() else { return self.fail("a value") };
        let product = self.tokens.get(self.position + 1).map(|t| &t.kind);
        let product = product == Some(&Kind::Punctuation('*'));
        // JSON reads numbers and truth values as they are printed.
        let json = serde_json::from_str(word).ok().filter(|_| !product);
        match json {
            Some(json) => {
                self.position += 1;
                Ok(Literal::Json(json))
            }
            None => self.dim().map(Literal::Dim),
        }
    }

    fn dim(&mut self) -> Parsed<Dim> {
        let start = self.span();
        let mut factors = vec![self.factor()?];
        while self.eat('*') {
            factors.push(self.factor()?);
        }
        Ok(Dim { factors, span: start.to(self.last()) })
    }

    fn factor(&mut self) -> Parsed<Factor> {
        let expected = "an extent: a number, a name or a product such as 2*batch";
        let (word, span) = self.word(expected)?;
        if let Ok(number) = word.parse() {
            return Ok(Factor::Number(number));
        }
        let first = word.chars().next();
        if first.is_some_and(|c| c.is_ascii_alphabetic() || c == '_') {
            return Ok(Factor::Symbol(word, span));
        }
        Err(span.error(format!("expected {expected}, not `{word}`")))
    }

    fn ty(&mut self) -> Parsed<TypeText> {
        let (word, span) = self.word("a type such as f32[4, 8]")?;
        let dtype = word.parse().map_err(|message: String| {
            let names: Vec<&str> = DType::ALL.iter().map(|dtype| dtype.name()).collect();
            span.error(format!("{message}: write one of {}", names.join(", ")))
        })?;
        self.expect('[')?;
        let shape = self.list(']', Self::dim)?;
        Ok(TypeText { dtype, shape, span: span.to(self.last()) })
    }

    /// `cpu[0, 1] as 2x1`
    fn placement(&mut self) -> Parsed<Placement> {
        let (word, start) = self.word("a placement such as cpu[0, 1] as 2")?;
        let device = match word.as_str() {
            "cpu" => DeviceKind::Cpu,
            "cuda" => DeviceKind::Cuda,
            _ => return Err(start.error(format!("`{word}` is no device: write cpu or cuda"))),
        };
        self.expect('[')?;
        let ranks = self.list(']', |parser| Ok(parser.number("a rank")?.0))?;
        if !self.eat_word("as") {
            return self.fail("the mesh: as 2 or as 2x2");
        }
        let (mesh, span) = self.word("the mesh, e.g. 2 or 2x2")?;
        let axes: Result<Vec<usize>, _> = mesh.split('x').map(str::parse).collect();
        let Ok(hierarchy) = axes else {
            return Err(span.error(format!("`{mesh}` is no mesh: write e.g. 2 or 2x2")));
        };
        // The product below must not overflow.
        if hierarchy.iter().try_fold(1usize, |product, &axis| product.checked_mul(axis)).is_none() {
            return Err(span.error(format!("a mesh of {mesh} is too large")));
        }
        let whole = start.to(self.last());
        let placement = Placement::new(ranks, hierarchy).map_err(|e| whole.error(e.to_string()))?;
        Ok(Placement { device, ..placement })
    }

    fn pins(&mut self) -> Parsed<(Vec<Option<NdSbp>>, Span)> {
        let start = self.span();
        let pins = if self.eat('(') { self.list(')', Self::pin)? } else { vec![self.pin()?] };
        Ok((pins, start.to(self.last())))
    }

    fn pin(&mut self) -> Parsed<Option<NdSbp>> {
        if self.eat_word("_") {
            return Ok(None);
        }
        let (text, span) = self.string("a layout such as \"S(0), B\", or _")?;
        text.parse().map(Some).map_err(|message: String| span.error(message))
    }
}
