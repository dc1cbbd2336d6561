//! Words, numbers and signs of PTX, with their lines.

use super::Malformed;

/// One token.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Token<'a> {
    /// A name, an opcode with its modifiers, a number.
    Word(&'a str),
    /// Any other character.
    Sign(char),
    /// Text between quotes.
    Text,
}

/// Tokens that are read from the front.
pub struct Tokens<'a> {
    all: Vec<(Token<'a>, u32)>,
    at: usize,
}

impl<'a> Tokens<'a> {
    /// Takes all tokens of a text. Comments are left out.
    ///
    /// # Errors
    /// A comment or a quoted text without an end.
    pub fn new(text: &'a str) -> Result<Tokens<'a>, Malformed> {
        let mut all = Vec::with_capacity(text.len() / 4);
        let (mut rest, mut line) = (text, 1);
        while let Some(first) = rest.chars().next() {
            let length = match first {
                '\n' => 1,
                _ if first.is_whitespace() => first.len_utf8(),
                '/' if rest.starts_with("//") => rest.find('\n').unwrap_or(rest.len()),
                '/' if rest.starts_with("/*") => ended(rest, "*/", 2, line)?,
                '"' => ended(rest, "\"", 1, line)?,
                _ if is_word(first) => rest.find(|c| !is_word(c)).unwrap_or(rest.len()),
                _ => first.len_utf8(),
            };
            match first {
                '"' => all.push((Token::Text, line)),
                '/' if length > 1 => {}
                _ if is_word(first) => all.push((Token::Word(&rest[..length]), line)),
                _ if !first.is_whitespace() => all.push((Token::Sign(first), line)),
                _ => {}
            }
            line += rest[..length].matches('\n').count() as u32;
            rest = &rest[length..];
        }
        Ok(Tokens { all, at: 0 })
    }

    /// The next token, which stays.
    pub fn peek(&self) -> Option<Token<'a>> {
        self.all.get(self.at).map(|(token, _)| *token)
    }

    /// The token after the next one.
    pub fn peek_second(&self) -> Option<Token<'a>> {
        self.all.get(self.at + 1).map(|(token, _)| *token)
    }

    /// Line of the next token.
    pub fn line(&self) -> u32 {
        self.all.get(self.at).or(self.all.last()).map_or(1, |(_, line)| *line)
    }

    /// The next token.
    pub fn next(&mut self) -> Option<Token<'a>> {
        let token = self.peek();
        self.at += 1;
        token
    }

    /// Takes the next token if it is this sign.
    pub fn eat(&mut self, sign: char) -> bool {
        let found = self.peek() == Some(Token::Sign(sign));
        self.at += usize::from(found);
        found
    }

    /// Takes the next token if it is this word.
    pub fn eat_word(&mut self, word: &str) -> bool {
        let found = self.peek() == Some(Token::Word(word));
        self.at += usize::from(found);
        found
    }

    /// The next token must be this sign.
    pub fn expect(&mut self, sign: char) -> Result<(), Malformed> {
        if self.eat(sign) { Ok(()) } else { Err(self.wrong(&format!("`{sign}`"))) }
    }

    /// The next token must be a word.
    pub fn word(&mut self) -> Result<&'a str, Malformed> {
        match self.peek() {
            Some(Token::Word(word)) => {
                self.at += 1;
                Ok(word)
            }
            _ => Err(self.wrong("a word")),
        }
    }

    /// An integer or the bits of a float, with its sign.
    pub fn number(&mut self) -> Result<u64, Malformed> {
        let negative = self.eat('-');
        let word = self.word()?;
        let value = number(word).ok_or_else(|| self.wrong("a number"))?;
        Ok(if negative { value.wrapping_neg() } else { value })
    }

    /// Skips all up to a sign, and it.
    pub fn skip_past(&mut self, sign: char) {
        while let Some(token) = self.next() {
            if token == Token::Sign(sign) {
                return;
            }
        }
    }

    /// Returns an error that names what was expected, and what is there.
    pub fn wrong(&self, expected: &str) -> Malformed {
        let found = self.peek().map_or(String::from("the end"), |token| format!("{token:?}"));
        Malformed { line: self.line(), what: format!("{expected} is expected, not {found}") }
    }
}

/// An integer, or the bits of a float.
pub fn number(word: &str) -> Option<u64> {
    let word = word.strip_suffix('U').unwrap_or(word);
    for prefix in ["0f", "0F", "0d", "0D", "0x", "0X"] {
        if let Some(digits) = word.strip_prefix(prefix) {
            return u64::from_str_radix(digits, 16).ok();
        }
    }
    word.parse().ok()
}

fn is_word(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '$' | '%')
}

fn ended(rest: &str, end: &str, from: usize, line: u32) -> Result<usize, Malformed> {
    let found = rest[from..].find(end).map(|at| from + at + end.len());
    found.ok_or_else(|| Malformed { line, what: format!("`{end}` is missing") })
}
