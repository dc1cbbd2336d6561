//! Declarations of variables, and what else stands outside of functions.

use super::lexer::{Token, Tokens};
use super::{Malformed, Module, Place, Variable, function};

/// A whole module.
pub fn module<'a>(tokens: &mut Tokens<'a>) -> Result<Module<'a>, Malformed> {
    let mut module = Module::default();
    while tokens.peek().is_some() {
        directive(tokens, &mut module)?;
    }
    Ok(module)
}

fn directive<'a>(tokens: &mut Tokens<'a>, module: &mut Module<'a>) -> Result<(), Malformed> {
    let line = tokens.line();
    match tokens.word()? {
        ".version" | ".address_size" => drop(tokens.word()?),
        ".target" => {
            module.target = tokens.word()?;
            while tokens.eat(',') {
                tokens.word()?;
            }
        }
        ".visible" | ".extern" | ".weak" | ".common" => {}
        ".entry" => module.functions.extend(function::function(tokens, true)?),
        ".func" => module.functions.extend(function::function(tokens, false)?),
        ".file" => skip_line(tokens, line),
        ".section" => {
            tokens.skip_past('{');
            tokens.skip_past('}');
        }
        ".pragma" | ".alias" => tokens.skip_past(';'),
        word => match place(word) {
            Some(place) => {
                module.variables.push(variable(tokens, place)?);
                tokens.expect(';')?;
            }
            None => {
                let what = format!("the directive `{word}` is not known to the GPU double");
                return Err(Malformed { line, what });
            }
        },
    }
    Ok(())
}

/// Skips what is left of a line.
pub fn skip_line(tokens: &mut Tokens<'_>, line: u32) {
    while tokens.peek().is_some() && tokens.line() == line {
        tokens.next();
    }
}

/// The place that a directive names.
pub fn place(word: &str) -> Option<Place> {
    Some(match word {
        ".global" => Place::Global,
        ".const" => Place::Constant,
        ".shared" => Place::Shared,
        ".local" => Place::Local,
        ".param" => Place::Param,
        _ => return None,
    })
}

/// A variable after the word for its place, up to what ends it.
pub fn variable<'a>(tokens: &mut Tokens<'a>, place: Place) -> Result<Variable<'a>, Malformed> {
    let (mut align, mut size) = (None, 1);
    let name = loop {
        match tokens.word()? {
            ".align" if size == 1 || align.is_none() => align = Some(tokens.number()? as usize),
            ".align" | ".ptr" => {
                // What a pointer points to, not the variable.
                if tokens.eat_word(".align") {
                    tokens.number()?;
                }
            }
            ".attribute" => tokens.skip_past(')'),
            word => match bytes_of(word) {
                Some(bytes) => size = bytes,
                None if word.starts_with('.') => {}
                None => break word,
            },
        }
    };
    let count = extents(tokens)?;
    let bytes = size * count.unwrap_or(1);
    let mut variable = Variable {
        name,
        place,
        align: align.unwrap_or(size).max(1),
        bytes,
        data: None,
        addresses: Vec::new(),
    };
    if tokens.eat('=') {
        initializer(tokens, &mut variable, size)?;
    }
    Ok(variable)
}

/// The product of extents in brackets: 0 for `[]`, None where there are none.
fn extents(tokens: &mut Tokens<'_>) -> Result<Option<usize>, Malformed> {
    let mut product = None;
    while tokens.eat('[') {
        let extent = if tokens.eat(']') { 0 } else { tokens.number()? as usize };
        if extent > 0 {
            tokens.expect(']')?;
        }
        product = Some(product.unwrap_or(1) * extent);
    }
    Ok(product)
}

/// Bytes of an element of a type.
pub fn bytes_of(word: &str) -> Option<usize> {
    Some(match word {
        ".b8" | ".u8" | ".s8" => 1,
        ".b16" | ".u16" | ".s16" | ".f16" | ".bf16" => 2,
        ".b32" | ".u32" | ".s32" | ".f32" | ".f16x2" | ".bf16x2" => 4,
        ".b64" | ".u64" | ".s64" | ".f64" => 8,
        ".b128" => 16,
        _ => return None,
    })
}

fn initializer<'a>(
    tokens: &mut Tokens<'a>,
    variable: &mut Variable<'a>,
    size: usize,
) -> Result<(), Malformed> {
    let mut data = Vec::with_capacity(variable.bytes);
    let mut depth = 0;
    loop {
        if tokens.eat('{') {
            depth += 1;
        } else if tokens.eat('}') {
            depth -= 1;
        } else if !tokens.eat(',') {
            element(tokens, variable, &mut data, size)?;
        }
        if depth == 0 {
            break;
        }
    }
    data.resize(variable.bytes.max(data.len()), 0);
    variable.data = Some(data);
    Ok(())
}

fn element<'a>(
    tokens: &mut Tokens<'a>,
    variable: &mut Variable<'a>,
    data: &mut Vec<u8>,
    size: usize,
) -> Result<(), Malformed> {
    let generic = tokens.eat_word("generic") && tokens.eat('(');
    match tokens.peek() {
        Some(Token::Word(word)) if super::lexer::number(word).is_none() => {
            tokens.next();
            variable.addresses.push((data.len(), word));
            let offset = if tokens.eat('+') { tokens.number()? } else { 0 };
            data.extend_from_slice(&offset.to_le_bytes()[..size.min(8)]);
        }
        _ => data.extend_from_slice(&tokens.number()?.to_le_bytes()[..size.min(8)]),
    }
    if generic { tokens.expect(')') } else { Ok(()) }
}
