//! Modules and their functions, by handles, and launches of kernels.

use super::{Machine, Task};
use crate::code::Code;
use crate::kernel::{self, Entry, Launch, Loaded};

/// Kinds of handles.
const MODULE: u64 = 0x7;
const FUNCTION: u64 = 0xF;
/// Shared memory beside the kernel's own that a launch may have without asking.
const UNASKED_SHARED: usize = 48 << 10;

/// A kernel of a module that a program has asked for.
pub(super) struct Function {
    module: u64,
    name: String,
    /// Shared memory that launches may have.
    most_shared: usize,
}

impl Machine {
    /// Loads PTX for a card; the module's handle. What is wrong with the PTX is printed.
    pub fn load_module(&mut self, ptx: &str, device: i32) -> Result<u64, Code> {
        let loaded = kernel::load(ptx, &mut self.space, device).map_err(|malformed| {
            eprintln!("gpu double: cuModuleLoadData: {malformed}");
            Code::InvalidPtx
        })?;
        let handle = self.handle(MODULE);
        self.modules.insert(handle, loaded);
        Ok(handle)
    }

    /// A module ends, and its variables with it. Launches that wait keep what they need.
    pub fn unload_module(&mut self, module: u64) -> Result<(), Code> {
        let loaded = self.modules.remove(&module).ok_or(Code::InvalidHandle)?;
        self.functions.retain(|_, function| function.module != module);
        for (address, _) in loaded.variables.values() {
            self.free(*address)?;
        }
        Ok(())
    }

    /// A kernel of a module, by handle.
    pub fn function(&mut self, module: u64, name: &str) -> Result<u64, Code> {
        let loaded = self.modules.get(&module).ok_or(Code::InvalidHandle)?;
        if !loaded.program.entries.contains_key(name) {
            return Err(Code::NotFound);
        }
        let handle = self.handle(FUNCTION);
        let most_shared = UNASKED_SHARED;
        self.functions.insert(handle, Function { module, name: String::from(name), most_shared });
        Ok(handle)
    }

    /// Address and bytes of a module's variable.
    pub fn variable(&self, module: u64, name: &str) -> Result<(u64, usize), Code> {
        let loaded = self.modules.get(&module).ok_or(Code::InvalidHandle)?;
        loaded.variables.get(name).copied().ok_or(Code::NotFound)
    }

    /// Sizes of a kernel's arguments.
    pub fn arguments(&self, function: u64) -> Result<Vec<usize>, Code> {
        let (entry, _, _) = self.entry(function)?;
        Ok(entry.arguments.iter().map(|(_, bytes)| *bytes).collect())
    }

    /// Appends a launch, whose arguments are these bytes.
    pub fn launch(
        &mut self,
        function: u64,
        stream: u32,
        (grid, block): ([u32; 3], [u32; 3]),
        shared: usize,
        arguments: Vec<Vec<u8>>,
    ) -> Result<(), Code> {
        let (entry, loaded, function) = self.entry(function)?;
        let name = function.name.clone();
        let asked = entry.shared + shared <= function.most_shared.max(UNASKED_SHARED);
        let checked = entry.check(grid, block, shared);
        if let Err(what) = checked.and(asked.then_some(()).ok_or_else(|| unasked(entry, shared))) {
            eprintln!("gpu double: launch of kernel {name}: {what}");
            return Err(Code::InvalidValue);
        }
        let arguments = entry.pack(arguments.iter().map(Vec::as_slice));
        let program = loaded.program.clone();
        let title = format!("kernel {name}");
        let launch = Launch { program, name, grid, block, shared, arguments };
        self.append(stream, Task::Launch(Box::new(launch)), title)
    }

    /// Returns an attribute by its number of `CUfunction_attribute`.
    pub fn function_attribute(&self, function: u64, attribute: i32) -> Result<i32, Code> {
        let (entry, _, function) = self.entry(function)?;
        Ok(match attribute {
            0 => entry.most_threads as i32,
            1 => entry.shared as i32,
            3 => entry.local as i32,
            4 => entry.values.min(255) as i32,
            5 | 6 => self.settings.capability.0 * 10 + self.settings.capability.1,
            8 => function.most_shared as i32,
            _ => 0,
        })
    }

    /// Sets an attribute. It must be the limit of shared memory (8), or how memory is shared with the cache (9), which changes nothing.
    pub fn set_function_attribute(
        &mut self,
        function: u64,
        attribute: i32,
        value: i32,
    ) -> Result<(), Code> {
        let (entry, _, _) = self.entry(function)?;
        let all = entry.shared + usize::try_from(value).map_err(|_| Code::InvalidValue)?;
        match attribute {
            8 if all > kernel::MOST_SHARED => Err(Code::InvalidValue),
            8 => {
                let function = self.functions.get_mut(&function).ok_or(Code::InvalidHandle)?;
                function.most_shared = all;
                Ok(())
            }
            9 => Ok(()),
            _ => Err(Code::InvalidValue),
        }
    }

    /// Returns the number of blocks that a multiprocessor holds, by threads and shared memory.
    pub fn occupancy(&self, function: u64, threads: i32, shared: usize) -> Result<i32, Code> {
        let (entry, _, _) = self.entry(function)?;
        if threads <= 0 || threads as u32 > entry.most_threads {
            return Err(Code::InvalidValue);
        }
        let by_threads = 2048 / (threads as usize).next_multiple_of(32);
        let by_shared = (228 << 10) / (entry.shared + shared + 1024);
        Ok(by_threads.min(by_shared).min(32) as i32)
    }

    fn entry(&self, function: u64) -> Result<(&Entry, &Loaded, &Function), Code> {
        let function = self.functions.get(&function).ok_or(Code::InvalidHandle)?;
        let loaded = self.modules.get(&function.module).ok_or(Code::InvalidHandle)?;
        let entry = loaded.program.entries.get(&function.name).ok_or(Code::InvalidHandle)?;
        Ok((entry, loaded, function))
    }
}

fn unasked(entry: &Entry, shared: usize) -> String {
    let all = entry.shared + shared;
    format!("{all} bytes of shared memory, for which cuFuncSetAttribute was not asked")
}
