//! One line of text as tokens. Nothing spans lines, so that reading goes on after an error.

use super::error::ParseError;

/// A token and where it stands.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Token {
    pub kind: TokenKind,
    pub span: TextSpan,
}

/// A place in the text: line and column from 1, length in characters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct TextSpan {
    pub line: usize,
    pub column: usize,
    pub length: usize,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) enum TokenKind {
    /// `%name`, `%"name"`, `%3`
    Value(Label),
    /// `@name`, `@"name"`
    Graph(String),
    /// `"text"`
    Text(String),
    /// An identifier, a number, or a hierarchy such as `2x2`
    Word(String),
    /// One of `{}()[],=:*`
    Punctuation(char),
}

/// The name or number of a value in the text.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Label {
    /// The user's name.
    Name(String),
    /// A number, of a value without a name.
    Number(String),
}

impl TextSpan {
    /// Returns the span from the start of one to the end of another on the same line.
    pub(super) fn extend_to(self, end: TextSpan) -> TextSpan {
        TextSpan { length: (end.column + end.length).saturating_sub(self.column).max(1), ..self }
    }

    /// An error here.
    pub(super) fn error(self, message: impl Into<String>) -> ParseError {
        let TextSpan { line, column, length } = self;
        ParseError { line, column, length: length.max(1), message: message.into() }
    }
}

/// The tokens of line `number`.
///
/// # Errors
/// Returns an error if a character or a string cannot be read.
pub(super) fn split_tokens(line: &str, number: usize) -> Result<Vec<Token>, ParseError> {
    let mut lexer = Lexer { chars: line.chars().collect(), position: 0, line: number };
    let mut tokens = Vec::new();
    while let Some(token) = lexer.read_token()? {
        tokens.push(token);
    }
    Ok(tokens)
}

struct Lexer {
    chars: Vec<char>,
    position: usize,
    line: usize,
}

impl Lexer {
    fn peek(&self, ahead: usize) -> Option<char> {
        self.chars.get(self.position + ahead).copied()
    }

    fn span_from(&self, start: usize) -> TextSpan {
        TextSpan { line: self.line, column: start + 1, length: self.position - start }
    }

    fn read_token(&mut self) -> Result<Option<Token>, ParseError> {
        while self.peek(0).is_some_and(char::is_whitespace) {
            self.position += 1;
        }
        let start = self.position;
        let kind = match self.peek(0) {
            None => return Ok(None),
            Some('/') if self.peek(1) == Some('/') => return Ok(None),
            Some('%') => TokenKind::Value(self.read_label()?),
            Some('@') => {
                let (Label::Name(name) | Label::Number(name)) = self.read_label()?;
                TokenKind::Graph(name)
            }
            Some('"') => TokenKind::Text(self.read_string()?),
            Some(c) if is_word(c) || c == '-' => TokenKind::Word(self.read_word()),
            Some(c) if "{}()[],=:*".contains(c) => {
                self.position += 1;
                TokenKind::Punctuation(c)
            }
            Some(c) => {
                self.position += 1;
                return Err(self.span_from(start).error(format!("unexpected character `{c}`")));
            }
        };
        Ok(Some(Token { kind, span: self.span_from(start) }))
    }

    fn read_label(&mut self) -> Result<Label, ParseError> {
        let start = self.position;
        self.position += 1;
        if self.peek(0) == Some('"') {
            return self.read_string().map(Label::Name);
        }
        let name = self.take_word();
        if name.is_empty() {
            return Err(self
                .span_from(start)
                .error("a name is missing: write %name, %\"any name\" or %3"));
        }
        let number = name.bytes().all(|b| b.is_ascii_digit());
        Ok(if number { Label::Number(name) } else { Label::Name(name) })
    }

    fn take_word(&mut self) -> String {
        let start = self.position;
        while self.peek(0).is_some_and(is_word) {
            self.position += 1;
        }
        self.chars[start..self.position].iter().collect()
    }

    /// A word; of a number also the sign and that of the exponent.
    fn read_word(&mut self) -> String {
        let start = self.position;
        self.position += usize::from(self.peek(0) == Some('-'));
        let numeric = self.peek(0).is_some_and(|c| c.is_ascii_digit());
        let word = self.take_word();
        let signed = matches!(self.peek(0), Some('+' | '-'));
        let exponent = word.strip_suffix(['e', 'E']).is_some_and(|w| w.parse::<f64>().is_ok());
        if numeric && signed && exponent {
            self.position += 1;
            self.take_word();
        }
        self.chars[start..self.position].iter().collect()
    }

    /// A string with JSON's escapes.
    fn read_string(&mut self) -> Result<String, ParseError> {
        let start = self.position;
        self.position += 1;
        loop {
            match self.peek(0) {
                None => {
                    return Err(self
                        .span_from(start)
                        .error("the string has no end: a `\"` is missing"));
                }
                Some('\\') => self.position += 2,
                Some('"') => break,
                Some(_) => self.position += 1,
            }
        }
        self.position += 1;
        let text: String = self.chars[start..self.position].iter().collect();
        let bad = |error: serde_json::Error| {
            self.span_from(start).error(format!("not a string: {error}"))
        };
        // A raw control character, a tab say, is as good as its escape.
        let text: String = text.chars().map(escape_control).collect();
        serde_json::from_str(&text).map_err(bad)
    }
}

fn escape_control(c: char) -> String {
    if c.is_ascii_control() { format!("\\u{:04x}", u32::from(c)) } else { c.to_string() }
}

fn is_word(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_' || c == '.'
}
