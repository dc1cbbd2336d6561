//! The process that starts those of the groups, follows what they say, and goes on behind a trial that has ended one of them.

use std::collections::{BTreeSet, VecDeque};
use std::io::{BufRead, BufReader, Read};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::Mutex;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use serde_json::{Value, json};

use crate::coverage;

/// The limits of time.
#[derive(Clone, Copy)]
pub struct Limits {
    /// The time after which nothing is begun: what has not begun by then is left out.
    pub deadline: Instant,
    /// The longest time for a trial, with all that makes it.
    pub patience: Duration,
}

impl Limits {
    /// Returns the time to wait for a trial that has begun at `begun`.
    fn left(&self, begun: Instant) -> Wait {
        let now = Instant::now();
        let of_all = self.deadline.saturating_duration_since(now);
        let of_trial = (begun + self.patience).saturating_duration_since(now);
        if of_all <= of_trial { Wait::All(of_all) } else { Wait::Trial(of_trial) }
    }
}

/// The time that is left, and which time ends first: that of all trials, or that of this one.
enum Wait {
    All(Duration),
    Trial(Duration),
}

/// The results so far.
#[derive(Default)]
pub struct Summary {
    right: usize,
    wrong: Vec<Value>,
    /// Groups that have not ended.
    left_out: Vec<String>,
    /// The greatest shares of what is allowed, of trials that are right.
    nearest: Vec<(f64, String)>,
    /// Ops of which there was a trial.
    tried: BTreeSet<String>,
    /// Ops of which there was none, though all groups have ended, and it is not known why.
    untried: Vec<String>,
}

/// The number of right trials whose shares are told.
const TOLD: usize = 12;

impl Summary {
    pub fn is_well(&self) -> bool {
        self.wrong.is_empty() && self.left_out.is_empty() && self.untried.is_empty()
    }

    /// Takes account of ops without a trial, where all groups were asked for and have ended.
    pub fn look_for_untried(&mut self) {
        if self.left_out.is_empty() {
            self.untried = coverage::untried(&self.tried);
        }
    }

    /// A line of JSON; what is wrong comes first.
    pub fn value(&self) -> Value {
        let nearest: Vec<Value> = self
            .nearest
            .iter()
            .map(|(share, name)| json!({ "share": share, "trial": name }))
            .collect();
        json!({ "summary": {
            "right": self.right,
            "wrong": self.wrong.len(),
            "worst": self.wrong,
            "left_out": self.left_out,
            "nearest_to_wrong": nearest,
            "ops": self.tried.len(),
            "untried": self.untried,
            "without_trials": coverage::reasons(),
        }})
    }

    fn take(&mut self, line: &Value) {
        let share = line["share"].as_f64().unwrap_or(f64::INFINITY);
        self.tried.extend(line["op"].as_str().map(str::to_owned));
        if line["verdict"] != "right" {
            self.wrong.push(line.clone());
            let share = |line: &Value| line["share"].as_f64().unwrap_or(f64::INFINITY);
            self.wrong.sort_by(|a, b| share(b).total_cmp(&share(a)));
            return;
        }
        self.right += 1;
        self.nearest.push((share, line["trial"].as_str().unwrap_or_default().to_owned()));
        self.nearest.sort_by(|a, b| b.0.total_cmp(&a.0));
        self.nearest.truncate(TOLD);
    }
}

/// Runs groups, so many at a time, in processes that are given `options`; tells each line of theirs to `print`.
///
/// # Errors
/// Returns an error if no process can be started or nothing can be printed.
pub fn run(
    names: &[String],
    jobs: usize,
    limits: Limits,
    options: &[String],
    print: &(dyn Fn(&Value) -> Result<()> + Sync),
) -> Result<Summary> {
    let queue: Mutex<VecDeque<&String>> = Mutex::new(names.iter().collect());
    let summary = Mutex::new(Summary::default());
    let next = || queue.lock().ok().and_then(|mut queue| queue.pop_front());
    let work = || -> Result<()> {
        while let Some(name) = next() {
            let done = Instant::now() < limits.deadline
                && follow(name, limits, options, &|line| {
                    if let Ok(mut summary) = summary.lock() {
                        summary.take(line);
                    }
                    print(line)
                })?;
            if let (false, Ok(mut summary)) = (done, summary.lock()) {
                summary.left_out.push(name.clone());
            }
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..jobs).map(|_| scope.spawn(work)).collect();
        let joined = threads.into_iter().map(|thread| thread.join().expect("no panic"));
        joined.collect::<Result<()>>()
    })?;
    Ok(summary.into_inner().unwrap_or_default())
}

/// Runs one group to its end, in as many processes as it takes; whether it has come to its end.
fn follow(
    name: &str,
    limits: Limits,
    options: &[String],
    tell: &dyn Fn(&Value) -> Result<()>,
) -> Result<bool> {
    let mut from = 0;
    while Instant::now() < limits.deadline {
        let mut process = Process::start(name, from, options)?;
        let Ended { number, trial, how } = match process.hear(limits, tell)? {
            End::Group => return Ok(true),
            End::Time => return Ok(false),
            End::Trial(ended) => ended,
        };
        // What was told of the last trial stands; of one that took the process with it nothing was.
        if let Some(how) = how {
            let error = format!("{how}{}", process.last_words());
            let trial = trial.unwrap_or_else(|| format!("{name}, trial {number}"));
            let line = json!({
                "trial": trial, "verdict": "failed", "error": error, "group": name, "number": number,
            });
            tell(&line)?;
        }
        from = number + 1;
    }
    Ok(false)
}

/// The extent of the work that has ended with a process.
enum End {
    /// Its group.
    Group,
    /// The time.
    Time,
    /// The trial that it was at.
    Trial(Ended),
}

/// A process that has ended before its group.
struct Ended {
    /// Its last trial.
    number: usize,
    trial: Option<String>,
    /// The reason that the process has ended; `None` if it has told of that trial itself.
    how: Option<String>,
}

struct Process {
    child: Child,
    /// The other process's standard input. It is closed when this process ends, however that happens, and the other one ends then.
    leash: Option<ChildStdin>,
    lines: Receiver<String>,
    errors: Receiver<String>,
}

impl Process {
    fn start(name: &str, from: usize, options: &[String]) -> Result<Self> {
        let program = std::env::current_exe().context("this program has a path")?;
        let mut command = Command::new(program);
        command.args(["--group", name, "--from", &from.to_string()]);
        command.args(options);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().context("it cannot be started again")?;
        let leash = child.stdin.take();
        let (out, err) = (child.stdout.take(), child.stderr.take());
        let (to_lines, lines) = channel();
        let (to_errors, errors) = channel();
        std::thread::spawn(move || {
            let reader = out.into_iter().flat_map(|out| BufReader::new(out).lines());
            let _ = reader.map_while(Result::ok).try_for_each(|line| to_lines.send(line));
        });
        std::thread::spawn(move || {
            let mut text = String::new();
            let _ = err.map(|mut err| err.read_to_string(&mut text));
            let _ = to_errors.send(text);
        });
        Ok(Self { child, leash, lines, errors })
    }

    /// Hears what the process tells to its end.
    fn hear(&mut self, limits: Limits, tell: &dyn Fn(&Value) -> Result<()>) -> Result<End> {
        let mut last = Ended { number: 0, trial: None, how: None };
        let mut told = false;
        let mut begun = Instant::now();
        loop {
            let wait = limits.left(begun);
            let (Wait::All(longest) | Wait::Trial(longest)) = wait;
            let line = match self.lines.recv_timeout(longest) {
                Ok(line) => serde_json::from_str(&line).unwrap_or(Value::Null),
                Err(RecvTimeoutError::Timeout) => {
                    self.child.kill()?;
                    self.child.wait()?;
                    last.how = Some(format!("no end within {:?}", limits.patience));
                    return Ok(match wait {
                        Wait::All(_) => End::Time,
                        Wait::Trial(_) => End::Trial(last),
                    });
                }
                Err(RecvTimeoutError::Disconnected) => break,
            };
            if let Some(number) = line["begins"].as_u64() {
                last.number = number as usize;
                last.trial = line["trial"].as_str().map(str::to_owned);
                // It begins to be made, and says so again when it is executed.
                begun = if last.trial.is_none() { Instant::now() } else { begun };
                told = false;
            } else if line["verdict"].is_string() {
                told = true;
                tell(&line)?;
            }
        }
        let status = self.child.wait()?;
        drop(self.leash.take());
        if status.success() {
            return Ok(End::Group);
        }
        last.how = (!told).then(|| format!("the process has ended: {status}"));
        Ok(End::Trial(last))
    }

    /// Returns the last lines that it has written to standard error, cut off if they are long.
    fn last_words(&self) -> String {
        let text = self.errors.recv_timeout(Duration::from_secs(1)).unwrap_or_default();
        let lines: Vec<&str> = text.lines().rev().take(6).collect();
        let lines: Vec<&str> = lines.into_iter().rev().collect();
        let text: String = lines.join(" | ").chars().take(1500).collect();
        if text.is_empty() { text } else { format!(": {text}") }
    }
}
