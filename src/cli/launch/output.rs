//! The output of ranks: to logs, and to this process's output, line by whole line.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{IsTerminal, Read, Write};
use std::path::{Path, PathBuf};
use std::process::Child;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use graphc_runtime::data::make_folder;
use graphc_runtime::threads;

use crate::cli::args::LaunchArgs;
use crate::cli::output::for_terminal;

/// Lines of standard error that a report of a failure has.
const TAIL: usize = 20;

/// Bytes after which a line is written in parts.
const LONGEST_LINE: usize = 1 << 16;

/// The places where output goes.
pub(super) struct Logs {
    directory: Option<PathBuf>,
    redirect: bool,
    tee: bool,
}

/// The places where the output of one rank goes.
pub(super) struct Sinks {
    files: Option<[File; 2]>,
    terminal: bool,
    prefix: String,
}

/// The threads that copy the output of a rank.
pub(super) struct RankOutput {
    tail: Arc<Mutex<VecDeque<String>>>,
    done: Receiver<()>,
}

#[derive(Clone, Copy)]
enum OutputStream {
    Out,
    Err,
}

impl Logs {
    /// Logs as the command line says.
    pub(super) fn from_args(args: &LaunchArgs) -> Self {
        Self { directory: args.logdir.clone(), redirect: args.redirect, tee: args.tee }
    }

    /// Opens what a rank's output goes to. `None`: a single rank without logs prints as if it were started by hand.
    pub(super) fn sinks(&self, rank: usize, restart: u32, ranks: usize) -> Result<Option<Sinks>> {
        if self.directory.is_none() && ranks == 1 {
            return Ok(None);
        }
        let files =
            self.directory.as_deref().map(|logs| create_logs(logs, rank, restart)).transpose()?;
        let prefix = if self.tee { format!("[rank {rank}] ") } else { String::new() };
        Ok(Some(Sinks { files, terminal: !self.redirect, prefix }))
    }
}

fn create_logs(logs: &Path, rank: usize, restart: u32) -> Result<[File; 2]> {
    let mut folder = logs.join(format!("rank-{rank}"));
    if restart > 0 {
        folder.push(format!("restart-{restart}"));
    }
    let write = || format!("cannot write logs to {}", folder.display());
    make_folder(&folder).with_context(write)?;
    let create = |name: &str| File::create(folder.join(name)).with_context(write);
    Ok([create("stdout.log")?, create("stderr.log")?])
}

impl RankOutput {
    /// Copies what a child prints until it, and all that hold its ends of the pipes, have ended.
    ///
    /// # Errors
    /// Returns an error if the system has no threads for that.
    pub(super) fn copy_from(child: &mut Child, sinks: Sinks) -> Result<Self> {
        let tail = Arc::new(Mutex::new(VecDeque::new()));
        let (sender, done) = channel();
        let [out, err] = sinks.files.map_or([None, None], |files| files.map(Some));
        let copier = |stream, file, tail| OutputCopier {
            stream,
            file,
            terminal: sinks.terminal,
            prefix: sinks.prefix.clone(),
            tail,
        };
        if let Some(pipe) = child.stdout.take() {
            spawn_copier(pipe, copier(OutputStream::Out, out, None), sender.clone())?;
        }
        if let Some(pipe) = child.stderr.take() {
            spawn_copier(pipe, copier(OutputStream::Err, err, Some(Arc::clone(&tail))), sender)?;
        }
        Ok(Self { tail, done })
    }

    /// Waits until all is copied: a moment at most, since what has left its rank's group may hold the pipes.
    pub(super) fn finish(&self) {
        let end = Instant::now() + Duration::from_secs(1);
        while self.done.recv_timeout(end.saturating_duration_since(Instant::now())).is_ok() {}
    }

    /// The last lines of standard error.
    pub(super) fn last_lines(&self) -> Vec<String> {
        let tail = self.tail.lock().unwrap_or_else(PoisonError::into_inner);
        tail.iter().cloned().collect()
    }
}

fn spawn_copier(
    pipe: impl Read + Send + 'static,
    mut copier: OutputCopier,
    done: Sender<()>,
) -> std::io::Result<()> {
    let copy = move || {
        copier.copy_lines(pipe);
        // Nobody waits any more where this fails.
        let _ = done.send(());
    };
    threads::start_thread("output", copy).map(drop)
}

struct OutputCopier {
    stream: OutputStream,
    file: Option<File>,
    terminal: bool,
    prefix: String,
    tail: Option<Arc<Mutex<VecDeque<String>>>>,
}

impl OutputCopier {
    fn copy_lines(&mut self, mut pipe: impl Read) {
        let (mut buffer, mut pending) = (vec![0; LONGEST_LINE], Vec::new());
        loop {
            let read = match pipe.read(&mut buffer) {
                Ok(0) => break,
                Ok(read) => read,
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => continue,
                Err(_) => break,
            };
            pending.extend_from_slice(&buffer[..read]);
            // Progress bars end their lines with a carriage return.
            let end = pending.iter().rposition(|byte| matches!(byte, b'\n' | b'\r'));
            let end = end.map_or(0, |last| last + 1);
            let end = if pending.len() - end >= LONGEST_LINE { pending.len() } else { end };
            self.write(&pending[..end]);
            pending.drain(..end);
        }
        if !pending.is_empty() {
            pending.push(b'\n');
            self.write(&pending);
        }
    }

    /// Writes whole lines. What cannot be written is dropped: the rank goes on.
    fn write(&mut self, lines: &[u8]) {
        if lines.is_empty() {
            return;
        }
        if let Some(file) = &mut self.file
            && let Err(error) = file.write_all(lines)
        {
            super::print_note(&format!("a log cannot be written any more: {error}"));
            self.file = None;
        }
        if self.terminal {
            let text = prefix_lines(lines, &self.prefix);
            let written = match self.stream {
                OutputStream::Out => write_to(std::io::stdout().lock(), &text),
                OutputStream::Err => write_to(std::io::stderr().lock(), &text),
            };
            self.terminal = written.is_ok();
        }
        if let Some(tail) = &self.tail {
            remember_lines(&mut tail.lock().unwrap_or_else(PoisonError::into_inner), lines);
        }
    }
}

/// Writes the bytes as they are; but to a terminal, which they must not steer, escaped.
fn write_to(mut to: impl Write + IsTerminal, text: &[u8]) -> std::io::Result<()> {
    match to.is_terminal() {
        true => to.write_all(for_terminal(text).as_bytes())?,
        false => to.write_all(text)?,
    }
    to.flush()
}

fn prefix_lines(lines: &[u8], prefix: &str) -> Vec<u8> {
    if prefix.is_empty() {
        return lines.to_vec();
    }
    let line = |line: &[u8]| [prefix.as_bytes(), line].concat();
    lines.split_inclusive(|byte| matches!(byte, b'\n' | b'\r')).flat_map(line).collect()
}

fn remember_lines(tail: &mut VecDeque<String>, lines: &[u8]) {
    for line in String::from_utf8_lossy(lines).lines().filter(|line| !line.trim().is_empty()) {
        if tail.len() == TAIL {
            tail.pop_front();
        }
        tail.push_back(line.chars().take(1000).collect());
    }
}
