//! What NVIDIA's assembler has said of kernels before, kept in a file of the repository. To assemble a kernel takes a third of a second,
//! and most kernels are as they were.
//!
//! The file's first line names the compiler, whose words are taken from no other one. Each line behind it is of one kernel: a digest of
//! its source, architecture and options, its name, registers of a thread, bytes of shared memory, bytes of registers kept in memory.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};

use sha2::{Digest, Sha256};

use super::{Resources, resources};

/// The answers of a file by their digests, and those that were asked for.
#[derive(Debug)]
pub struct Record {
    path: PathBuf,
    compiler: String,
    known: Answers,
    asked: Mutex<Answers>,
}

type Answers = BTreeMap<String, Vec<Resources>>;

impl Record {
    /// Reads a file. Nothing is known from one that is missing, that another compiler than the installed one has filled, or that
    /// `UPDATE_EXPECT` has written anew.
    pub fn open(path: impl Into<PathBuf>) -> Self {
        let path = path.into();
        let compiler = super::path().map_or(0, |library| super::kept::hash_file(&library));
        let compiler = format!("{compiler:016x}");
        let text = match is_to_be_written() {
            true => String::new(),
            false => std::fs::read_to_string(&path).unwrap_or_default(),
        };
        let known = text.strip_prefix(&format!("compiler {compiler}\n")).map(read);
        Self { path, compiler, known: known.unwrap_or_default(), asked: Mutex::default() }
    }

    /// Returns what the kernels of a source need, as [`fn@resources`] does. One answer in sixteen is asked for again, so that the file is
    /// held to what the assembler says.
    ///
    /// # Errors
    /// The compiler's log, that there is no compiler, or that the file says something else.
    pub fn resources(
        &self,
        source: &str,
        architecture: &str,
        options: &[&str],
    ) -> Result<Vec<Resources>, String> {
        let digest = digest(source, architecture, options);
        let answer = match self.known.get(&digest) {
            Some(known) if !digest.starts_with('0') => known.clone(),
            known => {
                let found = resources(source, architecture, options)?;
                if let Some(known) = known.filter(|known| **known != found) {
                    let path = self.path.display();
                    return Err(format!("{digest} is {found:?}, and {known:?} in {path}"));
                }
                found
            }
        };
        self.asked().insert(digest, answer.clone());
        Ok(answer)
    }

    /// Writes what was asked for into the file where `UPDATE_EXPECT` is set; else says how much of it the file lacked.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn finish(&self) -> std::io::Result<()> {
        if is_to_be_written() {
            return self.write();
        }
        let asked = self.asked();
        let lacking = asked.keys().filter(|digest| !self.known.contains_key(*digest)).count();
        if lacking > 0 {
            let (all, path) = (asked.len(), self.path.display());
            println!("{lacking} of {all} were assembled: UPDATE_EXPECT=1 has {path} remember them");
        }
        Ok(())
    }

    /// Writes what was asked for into the file.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn write(&self) -> std::io::Result<()> {
        std::fs::write(&self.path, write(&self.compiler, &self.asked()))
    }

    fn asked(&self) -> MutexGuard<'_, Answers> {
        self.asked.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn is_to_be_written() -> bool {
    std::env::var_os("UPDATE_EXPECT").is_some()
}

fn digest(source: &str, architecture: &str, options: &[&str]) -> String {
    let mut hash = Sha256::new();
    for part in [source, architecture].iter().chain(options) {
        hash.update(part.len().to_le_bytes());
        hash.update(part);
    }
    hash.finalize().iter().take(8).fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

fn read(text: &str) -> Answers {
    let mut all = Answers::new();
    for line in text.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [digest, entry, registers, shared, spills] = words[..] else { continue };
        let number = |word: &str| word.parse().ok();
        let (Some(registers), Some(shared), Some(spills)) =
            (number(registers), number(shared), number(spills))
        else {
            continue;
        };
        let needs = Resources { entry: entry.to_owned(), registers, shared, spills };
        all.entry(digest.to_owned()).or_default().push(needs);
    }
    all
}

fn write(compiler: &str, answers: &Answers) -> String {
    let mut text = format!("compiler {compiler}\n");
    for (digest, all) in answers {
        for Resources { entry, registers, shared, spills } in all {
            let _ = writeln!(text, "{digest} {entry} {registers} {shared} {spills}");
        }
    }
    text
}
