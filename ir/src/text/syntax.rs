//! Turns text into statements: what stands in each line, not yet what it means.

use super::error::ParseError;
use super::lex::{Label, TextSpan, Token, TokenKind, split_tokens};
use crate::mesh::{DeviceKind, Placement};
use crate::sbp::NdSbp;
use crate::types::DType;

/// One line.
#[derive(Debug)]
pub(super) enum Statement {
    /// `graph @name {`
    Graph(String),
    /// `stage 0 on ..`
    Stage { index: usize, span: TextSpan, placement: Option<Placement> },
    /// `%x = ..`
    Node(Box<NodeText>),
    /// `return "name" = %x, ..`
    Return(Vec<(String, TextSpan, Label, TextSpan)>),
    /// `}`
    End,
}

/// A node as written.
#[derive(Debug)]
pub(super) struct NodeText {
    pub results: Vec<(Label, TextSpan)>,
    pub op: (String, TextSpan),
    pub name: Option<(String, TextSpan)>,
    pub operands: Vec<(Label, TextSpan)>,
    pub attributes: Vec<Attribute>,
    pub stage: Option<(usize, TextSpan)>,
    pub placement: Option<Placement>,
    pub autocast: Option<DType>,
    pub pins: Option<(Vec<Option<NdSbp>>, TextSpan)>,
    pub types: Option<Vec<TypeText>>,
}

/// `key=value`
#[derive(Debug)]
pub(super) struct Attribute {
    pub key: String,
    pub span: TextSpan,
    pub value: Literal,
}

/// A value of an attribute: JSON, in which an extent may stand for a number.
#[derive(Debug)]
pub(super) enum Literal {
    Json(serde_json::Value),
    Dim(SymbolicExtent),
    Array(Vec<Literal>, TextSpan),
    Object(Vec<(String, Literal)>),
}

/// An extent: a product of numbers and names.
#[derive(Debug)]
pub(super) struct SymbolicExtent {
    pub factors: Vec<ExtentFactor>,
    pub span: TextSpan,
}

#[derive(Debug)]
pub(super) enum ExtentFactor {
    Number(usize),
    Symbol(String, TextSpan),
}

/// `f32[batch, 20]`
#[derive(Debug)]
pub(super) struct TypeText {
    pub dtype: DType,
    pub shape: Vec<SymbolicExtent>,
    pub span: TextSpan,
}

type Parsed<T> = Result<T, ParseError>;

/// The statements of a text, each with its line, and what could not be read.
pub(super) fn parse_statements(text: &str) -> (Vec<(usize, Statement)>, Vec<ParseError>) {
    let mut statements = Vec::new();
    let mut errors = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let number = index + 1;
        let statement = split_tokens(line, number).and_then(|tokens| {
            let end =
                TextSpan { line: number, column: line.trim_end().chars().count() + 1, length: 1 };
            let mut parser = Parser { tokens, position: 0, end, depth: 0 };
            if parser.tokens.is_empty() { Ok(None) } else { parser.parse_statement().map(Some) }
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
    /// The place just behind the line: where something is missing.
    end: TextSpan,
    depth: usize,
}

impl Parser {
    fn peek(&self) -> Option<&TokenKind> {
        self.tokens.get(self.position).map(|token| &token.kind)
    }

    fn next_span(&self) -> TextSpan {
        self.tokens.get(self.position).map_or(self.end, |token| token.span)
    }

    fn last_span(&self) -> TextSpan {
        self.tokens[..self.position].last().map_or(self.end, |token| token.span)
    }

    fn fail_expected<T>(&self, expected: &str) -> Parsed<T> {
        Err(self.next_span().error(format!("expected {expected}")))
    }

    fn eat(&mut self, c: char) -> bool {
        let found = self.peek() == Some(&TokenKind::Punctuation(c));
        self.position += usize::from(found);
        found
    }

    fn expect(&mut self, c: char) -> Parsed<()> {
        if self.eat(c) { Ok(()) } else { self.fail_expected(&format!("`{c}`")) }
    }

    fn is_word(&self, word: &str) -> bool {
        matches!(self.peek(), Some(TokenKind::Word(w)) if w == word)
    }

    fn eat_word(&mut self, word: &str) -> bool {
        let found = self.is_word(word);
        self.position += usize::from(found);
        found
    }

    fn parse_word(&mut self, expected: &str) -> Parsed<(String, TextSpan)> {
        let span = self.next_span();
        let Some(TokenKind::Word(word)) = self.peek() else { return self.fail_expected(expected) };
        let word = word.clone();
        self.position += 1;
        Ok((word, span))
    }

    fn parse_string(&mut self, expected: &str) -> Parsed<(String, TextSpan)> {
        let span = self.next_span();
        let Some(TokenKind::Text(text)) = self.peek() else { return self.fail_expected(expected) };
        let text = text.clone();
        self.position += 1;
        Ok((text, span))
    }

    fn parse_value(&mut self) -> Parsed<(Label, TextSpan)> {
        let span = self.next_span();
        let Some(TokenKind::Value(label)) = self.peek() else {
            return self.fail_expected("a value such as %x");
        };
        let label = label.clone();
        self.position += 1;
        Ok((label, span))
    }

    fn parse_number<T: std::str::FromStr>(&mut self, expected: &str) -> Parsed<(T, TextSpan)> {
        let (word, span) = self.parse_word(expected)?;
        match word.parse() {
            Ok(number) => Ok((number, span)),
            Err(_) => Err(span.error(format!("expected {expected}, not `{word}`"))),
        }
    }

    /// Items between commas until `close`, which is consumed.
    fn parse_list<T>(
        &mut self,
        close: char,
        item: impl Fn(&mut Self) -> Parsed<T>,
    ) -> Parsed<Vec<T>> {
        let mut items = Vec::new();
        while !self.eat(close) {
            if !items.is_empty() && !self.eat(',') {
                return self.fail_expected(&format!("`,` or `{close}`"));
            }
            items.push(item(self)?);
        }
        Ok(items)
    }

    /// Items between commas, at least one.
    fn parse_items<T>(&mut self, item: impl Fn(&mut Self) -> Parsed<T>) -> Parsed<Vec<T>> {
        let mut items = vec![item(self)?];
        while self.eat(',') {
            items.push(item(self)?);
        }
        Ok(items)
    }

    fn parse_statement(&mut self) -> Parsed<Statement> {
        let statement = match self.peek() {
            Some(TokenKind::Value(_)) => Statement::Node(Box::new(self.parse_node()?)),
            Some(TokenKind::Punctuation('}')) => {
                self.position += 1;
                Statement::End
            }
            Some(TokenKind::Word(word)) => match word.as_str() {
                "graph" => self.parse_graph()?,
                "stage" => self.parse_stage()?,
                "return" => self.parse_outputs()?,
                _ => return self.fail_expected("`%result = op ..`, `stage`, `return` or `}`"),
            },
            _ => return self.fail_expected("`graph`, `stage`, `%result = op ..`, `return` or `}`"),
        };
        if self.position < self.tokens.len() {
            return self.fail_expected("the end of the line");
        }
        Ok(statement)
    }

    fn parse_graph(&mut self) -> Parsed<Statement> {
        self.position += 1;
        let Some(TokenKind::Graph(name)) = self.peek() else {
            return self.fail_expected("the name, e.g. @model");
        };
        let name = name.clone();
        self.position += 1;
        self.expect('{')?;
        Ok(Statement::Graph(name))
    }

    fn parse_stage(&mut self) -> Parsed<Statement> {
        self.position += 1;
        let (index, span) = self.parse_number("a stage's number")?;
        let placement = if self.eat_word("on") { Some(self.parse_placement()?) } else { None };
        Ok(Statement::Stage { index, span, placement })
    }

    fn parse_outputs(&mut self) -> Parsed<Statement> {
        self.position += 1;
        let output = |parser: &mut Self| {
            let (name, span) =
                parser.parse_string("an output's name in quotes, e.g. \"logits\" = %x")?;
            parser.expect('=')?;
            let (value, at) = parser.parse_value()?;
            Ok((name, span, value, at))
        };
        self.parse_items(output).map(Statement::Return)
    }

    fn parse_node(&mut self) -> Parsed<NodeText> {
        let results = self.parse_items(Self::parse_value)?;
        self.expect('=')?;
        let op = self.parse_word("an op")?;
        let name = match self.peek() {
            Some(TokenKind::Text(_)) => Some(self.parse_string("a name")?),
            _ => None,
        };
        let operands = match self.peek() {
            Some(TokenKind::Value(_)) => self.parse_items(Self::parse_value)?,
            _ => Vec::new(),
        };
        let attributes =
            if self.eat('{') { self.parse_list('}', Self::parse_attribute)? } else { Vec::new() };
        let (mut stage, mut placement, mut autocast, mut pins) = (None, None, None, None);
        loop {
            if self.eat_word("stage") {
                stage = Some(self.parse_number("a stage's number")?);
            } else if self.eat_word("on") {
                placement = Some(self.parse_placement()?);
            } else if self.eat_word("autocast") {
                autocast = Some(self.parse_precision()?);
            } else if self.eat_word("pin") {
                pins = Some(self.parse_pins()?);
            } else {
                break;
            }
        }
        let types = if self.eat(':') { Some(self.parse_items(Self::parse_type)?) } else { None };
        if types.is_none() && self.position < self.tokens.len() {
            return self.fail_expected(
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
    fn parse_precision(&mut self) -> Parsed<DType> {
        let expected = "bf16, f16 or f32";
        let (word, span) = self.parse_word(expected)?;
        let dtype = word.parse().ok().filter(|dtype: &DType| dtype.is_float());
        dtype.ok_or_else(|| span.error(format!("expected {expected}, not `{word}`")))
    }

    fn parse_attribute(&mut self) -> Parsed<Attribute> {
        let (key, span) = self.parse_word("an attribute, e.g. axis=1")?;
        self.expect('=')?;
        Ok(Attribute { key, span, value: self.parse_literal()? })
    }

    fn parse_literal(&mut self) -> Parsed<Literal> {
        // Recursion is bounded, so that no text overflows the stack.
        if self.depth > 32 {
            return self.fail_expected("fewer brackets within brackets");
        }
        let start = self.next_span();
        self.depth += 1;
        let literal = if self.eat('[') {
            self.parse_list(']', Self::parse_literal)
                .map(|items| Literal::Array(items, start.extend_to(self.last_span())))
        } else if self.eat('{') {
            self.parse_list('}', Self::parse_entry).map(Literal::Object)
        } else if let Some(TokenKind::Text(text)) = self.peek() {
            let json = serde_json::Value::from(text.as_str());
            self.position += 1;
            Ok(Literal::Json(json))
        } else {
            self.parse_scalar()
        };
        self.depth -= 1;
        literal
    }

    fn parse_entry(&mut self) -> Parsed<(String, Literal)> {
        let (key, _) = self.parse_string("a key in quotes")?;
        self.expect(':')?;
        Ok((key, self.parse_literal()?))
    }

    /// A number, a truth value or an extent.
    fn parse_scalar(&mut self) -> Parsed<Literal> {
        let Some(TokenKind::Word(word)) = self.peek() else { return self.fail_expected("a value") };
        let product = self.tokens.get(self.position + 1).map(|t| &t.kind);
        let product = product == Some(&TokenKind::Punctuation('*'));
        // JSON reads numbers and truth values as they are printed.
        let json = serde_json::from_str(word).ok().filter(|_| !product);
        match json {
            Some(json) => {
                self.position += 1;
                Ok(Literal::Json(json))
            }
            None => self.parse_extent().map(Literal::Dim),
        }
    }

    fn parse_extent(&mut self) -> Parsed<SymbolicExtent> {
        let start = self.next_span();
        let mut factors = vec![self.parse_factor()?];
        while self.eat('*') {
            factors.push(self.parse_factor()?);
        }
        Ok(SymbolicExtent { factors, span: start.extend_to(self.last_span()) })
    }

    fn parse_factor(&mut self) -> Parsed<ExtentFactor> {
        let expected = "an extent: a number, a name or a product such as 2*batch";
        let (word, span) = self.parse_word(expected)?;
        if let Ok(number) = word.parse() {
            return Ok(ExtentFactor::Number(number));
        }
        let first = word.chars().next();
        if first.is_some_and(|c| c.is_ascii_alphabetic() || c == '_') {
            return Ok(ExtentFactor::Symbol(word, span));
        }
        Err(span.error(format!("expected {expected}, not `{word}`")))
    }

    fn parse_type(&mut self) -> Parsed<TypeText> {
        let (word, span) = self.parse_word("a type such as f32[4, 8]")?;
        let dtype = word.parse().map_err(|message: String| {
            let names: Vec<&str> = DType::ALL.iter().map(|dtype| dtype.name()).collect();
            span.error(format!("{message}: write one of {}", names.join(", ")))
        })?;
        self.expect('[')?;
        let shape = self.parse_list(']', Self::parse_extent)?;
        Ok(TypeText { dtype, shape, span: span.extend_to(self.last_span()) })
    }

    /// `cpu[0, 1] as 2x1`
    fn parse_placement(&mut self) -> Parsed<Placement> {
        let (word, start) = self.parse_word("a placement such as cpu[0, 1] as 2")?;
        let device = match word.as_str() {
            "cpu" => DeviceKind::Cpu,
            "cuda" => DeviceKind::Cuda,
            _ => return Err(start.error(format!("`{word}` is no device: write cpu or cuda"))),
        };
        self.expect('[')?;
        let ranks = self.parse_list(']', |parser| Ok(parser.parse_number("a rank")?.0))?;
        if !self.eat_word("as") {
            return self.fail_expected("the mesh: as 2 or as 2x2");
        }
        let (mesh, span) = self.parse_word("the mesh, e.g. 2 or 2x2")?;
        let axes: Result<Vec<usize>, _> = mesh.split('x').map(str::parse).collect();
        let Ok(hierarchy) = axes else {
            return Err(span.error(format!("`{mesh}` is no mesh: write e.g. 2 or 2x2")));
        };
        // The product below must not overflow.
        if hierarchy.iter().try_fold(1usize, |product, &axis| product.checked_mul(axis)).is_none() {
            return Err(span.error(format!("a mesh of {mesh} is too large")));
        }
        let whole = start.extend_to(self.last_span());
        let placement = Placement::new(ranks, hierarchy).map_err(|e| whole.error(e.to_string()))?;
        Ok(Placement { device, ..placement })
    }

    fn parse_pins(&mut self) -> Parsed<(Vec<Option<NdSbp>>, TextSpan)> {
        let start = self.next_span();
        let pins = if self.eat('(') {
            self.parse_list(')', Self::parse_pin)?
        } else {
            vec![self.parse_pin()?]
        };
        Ok((pins, start.extend_to(self.last_span())))
    }

    fn parse_pin(&mut self) -> Parsed<Option<NdSbp>> {
        if self.eat_word("_") {
            return Ok(None);
        }
        let (text, span) = self.parse_string("a layout such as \"S(0), B\", or _")?;
        text.parse().map(Some).map_err(|message: String| span.error(message))
    }
}
