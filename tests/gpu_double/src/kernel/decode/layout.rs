//! The layout of a module: registers and memory of functions, shared memory, arguments.

use std::collections::{BTreeMap, HashMap};

use crate::kernel::program::{Entry, Room};
use crate::ptx::{Function, Malformed, Module, Place, Variable};

/// Names of a function's variables, and where its registers begin.
pub struct Frame<'a> {
    /// First instruction.
    pub start: u32,
    /// First register.
    pub values: u16,
    /// First predicate.
    pub predicates: u16,
    /// Memory and address of variables, parameters and results.
    pub names: HashMap<&'a str, (Room, u64)>,
    /// Offsets and sizes of parameters, in order.
    pub parameters: Vec<(usize, usize)>,
    /// Offsets and sizes of results, in order.
    pub returns: Vec<(usize, usize)>,
}

/// See the module.
pub struct Layout<'a> {
    /// Frames of functions, in the module's order.
    pub frames: Vec<Frame<'a>>,
    /// Numbers of functions by name.
    pub functions: HashMap<&'a str, usize>,
    /// The entries of kernels, which launches need to know.
    pub entries: BTreeMap<String, Entry>,
}

/// The registers, predicates and bytes of a thread's memory that are taken so far.
#[derive(Clone, Copy, Default)]
struct Taken {
    values: u32,
    predicates: u32,
    local: usize,
}

impl<'a> Layout<'a> {
    /// Device functions come first, each with registers and memory of its own; entries share what is behind.
    pub fn of(module: &Module<'a>) -> Result<Layout<'a>, Malformed> {
        let mut layout = Layout {
            frames: Vec::new(),
            functions: (0..).zip(&module.functions).map(|(n, f)| (f.name, n)).collect(),
            entries: BTreeMap::new(),
        };
        let mut functions = Taken::default();
        let mut shared = Shared::default();
        let mut frames: HashMap<&'a str, Frame<'a>> = HashMap::new();
        for function in module.functions.iter().filter(|function| !function.entry) {
            shared.add_outer(module, function);
            frames.insert(function.name, frame(function, &mut functions, &mut shared)?);
        }
        for function in module.functions.iter().filter(|function| function.entry) {
            let (mut taken, mut shared) = (functions, shared.clone());
            shared.add_outer(module, function);
            let frame = frame(function, &mut taken, &mut shared)?;
            let entry = entry(function, &frame, taken, &shared);
            layout.entries.insert(String::from(function.name), entry);
            frames.insert(function.name, frame);
        }
        layout.finish(module, frames);
        Ok(layout)
    }

    /// The frame of a function.
    pub fn frame(&self, name: &str) -> Option<&Frame<'a>> {
        self.functions.get(name).map(|number| &self.frames[*number])
    }

    /// Puts frames in the order of functions, and says where their code begins.
    fn finish(&mut self, module: &Module<'a>, mut frames: HashMap<&'a str, Frame<'a>>) {
        let mut start = 0;
        for function in &module.functions {
            let mut frame = frames.remove(function.name).expect("each function has a frame");
            frame.start = start;
            if let Some(entry) = self.entries.get_mut(function.name) {
                entry.start = start;
            }
            start += function.body.len() as u32 + 1;
            self.frames.push(frame);
        }
    }
}

/// Shared memory of an entry, with that of all device functions.
#[derive(Clone, Default)]
struct Shared<'a> {
    bytes: usize,
    at: HashMap<&'a str, usize>,
    dynamic: HashMap<&'a str, usize>,
}

impl<'a> Shared<'a> {
    /// Takes in what stands outside of functions and is used by this one.
    fn add_outer(&mut self, module: &Module<'a>, function: &Function<'a>) {
        let used = function.names();
        for variable in module.variables.iter().filter(|v| v.place == Place::Shared) {
            if used.contains(variable.name) {
                self.add(variable);
            }
        }
    }

    fn add(&mut self, variable: &Variable<'a>) {
        if variable.bytes == 0 {
            self.dynamic.insert(variable.name, variable.align);
        } else if !self.at.contains_key(variable.name) {
            let at = self.bytes.next_multiple_of(variable.align);
            self.bytes = at + variable.bytes;
            self.at.insert(variable.name, at);
        }
    }

    fn dynamic_start(&self) -> usize {
        let align = self.dynamic.values().copied().max().unwrap_or(16).max(16);
        self.bytes.next_multiple_of(align)
    }

    fn names(&self) -> impl Iterator<Item = (&'a str, (Room, u64))> {
        let dynamic = self.dynamic.keys().map(|name| (*name, self.dynamic_start()));
        let fixed = self.at.iter().map(|(name, at)| (*name, *at));
        fixed.chain(dynamic).map(|(name, at)| (name, (Room::Shared, at as u64)))
    }
}

fn frame<'a>(
    function: &Function<'a>,
    taken: &mut Taken,
    shared: &mut Shared<'a>,
) -> Result<Frame<'a>, Malformed> {
    let first = *taken;
    let mut names = HashMap::new();
    let mut arguments = 0;
    let room = if function.entry { Room::Arguments } else { Room::Local };
    let mut parameters = Vec::new();
    for variable in &function.parameters {
        let top = if function.entry { &mut arguments } else { &mut taken.local };
        let at = place(top, variable);
        names.insert(variable.name, (room, at as u64));
        parameters.push((at, variable.bytes));
    }
    let mut returns = Vec::new();
    for variable in &function.returns {
        let at = place(&mut taken.local, variable);
        names.insert(variable.name, (Room::Local, at as u64));
        returns.push((at, variable.bytes));
    }
    for variable in &function.variables {
        match variable.place {
            Place::Shared => shared.add(variable),
            _ => {
                let at = place(&mut taken.local, variable) as u64;
                names.insert(variable.name, (Room::Local, at));
            }
        }
    }
    names.extend(shared.names());
    taken.values += function.registers.values;
    taken.predicates += function.registers.predicates;
    if taken.values.max(taken.predicates) > u32::from(u16::MAX) {
        let what = format!("`{}` has more registers than the GPU double counts", function.name);
        return Err(Malformed { line: 0, what });
    }
    let (values, predicates) = (first.values as u16, first.predicates as u16);
    Ok(Frame { start: 0, values, predicates, names, parameters, returns })
}

fn place(top: &mut usize, variable: &Variable<'_>) -> usize {
    let at = top.next_multiple_of(variable.align);
    *top = at + variable.bytes;
    at
}

fn entry(function: &Function<'_>, frame: &Frame<'_>, taken: Taken, shared: &Shared<'_>) -> Entry {
    Entry {
        start: 0,
        arguments: frame.parameters.clone(),
        values: taken.values as usize,
        predicates: taken.predicates as usize,
        local: taken.local.next_multiple_of(16),
        shared: shared.bytes,
        most_threads: function.most_threads.unwrap_or(1024),
        dynamic: shared.dynamic_start(),
    }
}
