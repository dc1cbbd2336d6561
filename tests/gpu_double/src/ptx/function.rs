//! Functions: their parameters and their instructions.

use std::collections::HashSet;

use super::declarations::{place, skip_line, variable};
use super::lexer::{Token, Tokens, number};
use super::scopes::{Registers, Scopes};
use super::{Malformed, Place, Variable};

/// An entry or a device function.
#[derive(Debug)]
pub struct Function<'a> {
    /// Its name, as the compiler has mangled it.
    pub name: &'a str,
    /// Whether it can be launched.
    pub entry: bool,
    /// Its results, in order.
    pub returns: Vec<Variable<'a>>,
    /// Its parameters, in order.
    pub parameters: Vec<Variable<'a>>,
    /// Shared and local memory, arguments and results of calls.
    pub variables: Vec<Variable<'a>>,
    /// The number of its registers of both kinds.
    pub registers: Registers,
    /// Most threads of a block, where the source says so.
    pub most_threads: Option<u32>,
    /// The instructions.
    pub body: Vec<Instruction<'a>>,
}

/// A predicate that must hold, or must not.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Guard {
    /// Number of the predicate.
    pub predicate: u16,
    /// Whether it must not hold.
    pub negated: bool,
}

/// One instruction.
#[derive(Clone, Debug)]
pub struct Instruction<'a> {
    /// Line in the PTX, from 1.
    pub line: u32,
    /// The predicate under which it is executed; always if there is none.
    pub guard: Option<Guard>,
    /// The opcode with all modifiers, e.g. `ld.global.f32`.
    pub opcode: &'a str,
    /// The operands as they stand.
    pub operands: Vec<Operand<'a>>,
    scope: u32,
}

/// An operand.
#[derive(Clone, Debug, PartialEq)]
pub enum Operand<'a> {
    /// A register.
    Register(u16),
    /// A predicate, and whether it is negated.
    Predicate(u16, bool),
    /// An integer or the bits of a float.
    Number(u64),
    /// A variable, a function or a register of the machine.
    Name(&'a str),
    /// A place among the instructions.
    Target(u32),
    /// Base and offset in brackets.
    Address(Box<Operand<'a>>, i64),
    /// Several in braces or parentheses.
    Group(Vec<Operand<'a>>),
    /// Two results of one instruction.
    Pair(Box<Operand<'a>>, Box<Operand<'a>>),
}

impl<'a> Function<'a> {
    /// Returns all names that its instructions use beside registers and labels.
    pub fn names(&self) -> HashSet<&'a str> {
        let mut names = HashSet::new();
        let operands = self.body.iter().flat_map(|instruction| &instruction.operands);
        operands.for_each(|operand| operand.names(&mut names));
        names
    }
}

impl<'a> Operand<'a> {
    fn names(&self, names: &mut HashSet<&'a str>) {
        match self {
            Operand::Name(name) => drop(names.insert(name)),
            Operand::Address(base, _) => base.names(names),
            Operand::Group(group) => group.iter().for_each(|operand| operand.names(names)),
            _ => {}
        }
    }
}

/// A function after `.entry` or `.func`; None for one without a body.
pub fn function<'a>(
    tokens: &mut Tokens<'a>,
    entry: bool,
) -> Result<Option<Function<'a>>, Malformed> {
    let returns = if tokens.peek() == Some(Token::Sign('(')) { list(tokens)? } else { Vec::new() };
    let name = tokens.word()?;
    let with_list = tokens.peek() == Some(Token::Sign('('));
    let parameters = if with_list { list(tokens)? } else { Vec::new() };
    let mut most_threads = None;
    while !tokens.eat('{') {
        match tokens.next() {
            Some(Token::Sign(';')) => return Ok(None),
            Some(Token::Word(".maxntid" | ".reqntid")) => most_threads = Some(product(tokens)?),
            Some(_) => {}
            None => return Err(tokens.wrong("a body")),
        }
    }
    let mut body = Body::default();
    body.scopes.enter();
    while body.statement(tokens)? {}
    let (registers, variables, body) = body.finish()?;
    let function =
        Function { name, entry, returns, parameters, variables, registers, most_threads, body };
    Ok(Some(function))
}

fn product(tokens: &mut Tokens<'_>) -> Result<u32, Malformed> {
    let mut product = tokens.number()? as u32;
    while tokens.eat(',') {
        product *= tokens.number()? as u32;
    }
    Ok(product)
}

fn list<'a>(tokens: &mut Tokens<'a>) -> Result<Vec<Variable<'a>>, Malformed> {
    tokens.expect('(')?;
    let mut list = Vec::new();
    while !tokens.eat(')') {
        if !tokens.eat(',') && tokens.word()? == ".param" {
            list.push(variable(tokens, Place::Param)?);
        }
    }
    Ok(list)
}

#[derive(Default)]
struct Body<'a> {
    scopes: Scopes<'a>,
    variables: Vec<Variable<'a>>,
    instructions: Vec<Instruction<'a>>,
}

/// A body as it is handed on.
type Parts<'a> = (Registers, Vec<Variable<'a>>, Vec<Instruction<'a>>);

impl<'a> Body<'a> {
    /// Reads one statement; returns whether the function goes on.
    fn statement(&mut self, tokens: &mut Tokens<'a>) -> Result<bool, Malformed> {
        if tokens.eat('{') {
            self.scopes.enter();
            return Ok(true);
        }
        if tokens.eat('}') {
            return Ok(self.scopes.leave());
        }
        if tokens.eat(';') {
            return Ok(true);
        }
        if let (Some(Token::Word(name)), Some(Token::Sign(':'))) =
            (tokens.peek(), tokens.peek_second())
        {
            self.scopes.label(name, self.instructions.len() as u32);
            tokens.next();
            tokens.next();
            self.branch_targets(tokens, name)?;
            return Ok(true);
        }
        match tokens.peek() {
            Some(Token::Word(word)) if word.starts_with('.') => self.directive(tokens, word)?,
            Some(_) => self.instruction(tokens)?,
            None => return Err(tokens.wrong("`}`")),
        }
        Ok(true)
    }

    /// A table of labels after its own label, for `brx.idx`: kept as an instruction that does nothing.
    fn branch_targets(&mut self, tokens: &mut Tokens<'a>, _: &'a str) -> Result<(), Malformed> {
        if !tokens.eat_word(".branchtargets") {
            return Ok(());
        }
        let line = tokens.line();
        let operands = self.operands(tokens)?;
        let scope = self.scopes.current();
        let opcode = ".branchtargets";
        self.instructions.push(Instruction { line, guard: None, opcode, operands, scope });
        Ok(())
    }

    fn directive(&mut self, tokens: &mut Tokens<'a>, word: &'a str) -> Result<(), Malformed> {
        let line = tokens.line();
        tokens.next();
        match word {
            ".reg" => self.registers(tokens),
            ".loc" => {
                skip_line(tokens, line);
                Ok(())
            }
            ".pragma" => {
                tokens.skip_past(';');
                Ok(())
            }
            _ => match place(word) {
                Some(place) => {
                    self.variables.push(variable(tokens, place)?);
                    tokens.expect(';')
                }
                None => Err(Malformed {
                    line,
                    what: format!("the directive `{word}` is not known to the GPU double"),
                }),
            },
        }
    }

    fn registers(&mut self, tokens: &mut Tokens<'a>) -> Result<(), Malformed> {
        let predicate = tokens.word()? == ".pred";
        loop {
            let name = tokens.word()?;
            let count = if tokens.eat('<') { Some(tokens.number()? as u32) } else { None };
            if count.is_some() {
                tokens.expect('>')?;
            }
            self.scopes.declare(name, predicate, count);
            if !tokens.eat(',') {
                return tokens.expect(';');
            }
        }
    }

    fn instruction(&mut self, tokens: &mut Tokens<'a>) -> Result<(), Malformed> {
        let line = tokens.line();
        let guard = if tokens.eat('@') { Some(self.guard(tokens)?) } else { None };
        let opcode = tokens.word()?;
        let operands = self.operands(tokens)?;
        let scope = self.scopes.current();
        self.instructions.push(Instruction { line, guard, opcode, operands, scope });
        Ok(())
    }

    fn guard(&mut self, tokens: &mut Tokens<'a>) -> Result<Guard, Malformed> {
        let negated = tokens.eat('!');
        match self.operand(tokens)? {
            Operand::Predicate(predicate, _) => Ok(Guard { predicate, negated }),
            _ => Err(tokens.wrong("a predicate before this")),
        }
    }

    fn operands(&mut self, tokens: &mut Tokens<'a>) -> Result<Vec<Operand<'a>>, Malformed> {
        let mut operands = Vec::new();
        while !tokens.eat(';') {
            let operand = self.operand(tokens)?;
            if tokens.eat('|') {
                let second = self.operand(tokens)?;
                operands.push(Operand::Pair(Box::new(operand), Box::new(second)));
            } else {
                operands.push(operand);
            }
            if !tokens.eat(',') && tokens.peek() != Some(Token::Sign(';')) {
                return Err(tokens.wrong("`,` or `;`"));
            }
        }
        Ok(operands)
    }

    fn operand(&mut self, tokens: &mut Tokens<'a>) -> Result<Operand<'a>, Malformed> {
        match tokens.peek() {
            Some(Token::Sign('{')) => self.group(tokens, '}'),
            Some(Token::Sign('(')) => self.group(tokens, ')'),
            Some(Token::Sign('[')) => self.address(tokens),
            Some(Token::Sign('!')) => {
                tokens.next();
                match self.operand(tokens)? {
                    Operand::Predicate(number, negated) => Ok(Operand::Predicate(number, !negated)),
                    _ => Err(tokens.wrong("a predicate before this")),
                }
            }
            Some(Token::Sign('-')) => Ok(Operand::Number(tokens.number()?)),
            _ => {
                let word = tokens.word()?;
                Ok(self.named(word))
            }
        }
    }

    fn named(&self, word: &'a str) -> Operand<'a> {
        if let Some(register) = self.scopes.find(word) {
            return register;
        }
        number(word).map_or(Operand::Name(word), Operand::Number)
    }

    fn group(&mut self, tokens: &mut Tokens<'a>, end: char) -> Result<Operand<'a>, Malformed> {
        tokens.next();
        let mut group = Vec::new();
        while !tokens.eat(end) {
            if !tokens.eat(',') {
                group.push(self.operand(tokens)?);
            }
        }
        Ok(Operand::Group(group))
    }

    fn address(&mut self, tokens: &mut Tokens<'a>) -> Result<Operand<'a>, Malformed> {
        tokens.expect('[')?;
        let base = self.operand(tokens)?;
        let offset = if tokens.eat('+') || tokens.peek() == Some(Token::Sign('-')) {
            tokens.number()? as i64
        } else {
            0
        };
        tokens.expect(']')?;
        Ok(Operand::Address(Box::new(base), offset))
    }

    /// Labels become places among the instructions.
    fn finish(mut self) -> Result<Parts<'a>, Malformed> {
        for instruction in &mut self.instructions {
            let branches = instruction.opcode.starts_with("br");
            if branches || instruction.opcode == ".branchtargets" {
                for operand in &mut instruction.operands {
                    resolve(operand, &self.scopes, instruction.scope, instruction.line)?;
                }
            }
        }
        Ok((self.scopes.registers, self.variables, self.instructions))
    }
}

fn resolve(
    operand: &mut Operand<'_>,
    scopes: &Scopes<'_>,
    scope: u32,
    line: u32,
) -> Result<(), Malformed> {
    if let Operand::Name(name) = operand {
        let missing = || Malformed { line, what: format!("there is no label `{name}`") };
        *operand = Operand::Target(scopes.target(scope, name).ok_or_else(missing)?);
    }
    Ok(())
}
