//! Notices what else a machine did while it was measured.
//!
//! Two signs, because neither sees everything. The spread of step times shows on every system what comes and goes, and
//! misses what is there all the time. The time of all processors less that of this process, which Linux counts, shows
//! what is there all the time.

use std::cell::RefCell;

use crate::median::median;

/// Half of the steps take so many times the least where a machine is disturbed: some 1.1 where nothing else runs.
const MOST_SPREAD: f64 = 1.5;
/// Other processes take this share of the cores where a machine is disturbed.
const MOST_OTHERS: f64 = 0.15;

/// The extent to which a machine did something else while it was measured.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Disturbance {
    /// The median step over the shortest one, in the median of all plans that were timed: 1 where all took the same.
    pub spread: f64,
    /// The share of the machine's cores that others had, from 0 to 1; `None` where the system does not say.
    pub others: Option<f64>,
}

impl Disturbance {
    /// A machine of which nothing is known but what others measured on it.
    pub const NONE: Self = Self { spread: 1.0, others: None };

    /// The advice to measure again, with its reasons; `None` where little else was done.
    pub fn advice(&self) -> Option<String> {
        let others = self
            .others
            .filter(|&share| share > MOST_OTHERS)
            .map(|share| format!("other processes had {:.0} % of the cores", 100.0 * share));
        let spread = (self.spread > MOST_SPREAD)
            .then(|| format!("half of the steps took {:.1} times the quickest", self.spread));
        let reasons: Vec<String> = others.into_iter().chain(spread).collect();
        (!reasons.is_empty()).then(|| {
            let reasons = reasons.join(", and ");
            format!("this machine was disturbed while it was measured: {reasons}; its figures may be far off, so measure again when it is idle")
        })
    }
}

/// Collects both signs while a machine is measured.
pub(super) struct Observer {
    spreads: RefCell<Vec<f64>>,
    begun: Option<ProcessorTimes>,
}

impl Observer {
    /// Begins now.
    pub(super) fn begin() -> Self {
        Self { spreads: RefCell::default(), begun: ProcessorTimes::now() }
    }

    /// Adds the times of a plan's steps.
    pub(super) fn add_steps(&self, seconds: &[f64]) {
        let least = seconds.iter().copied().fold(f64::INFINITY, f64::min);
        if least > 0.0 && least.is_finite() {
            self.spreads.borrow_mut().push(median(seconds.iter().copied()) / least);
        }
    }

    /// Returns the disturbance that was noticed until now.
    pub(super) fn disturbance(&self) -> Disturbance {
        let spread = median(self.spreads.borrow().iter().copied()).max(1.0);
        let others = self.begun.zip(ProcessorTimes::now());
        Disturbance { spread, others: others.and_then(|(begun, now)| now.others_since(begun)) }
    }
}

/// Times since the system and the process began, in the system's ticks.
#[derive(Clone, Copy, Debug, PartialEq)]
struct ProcessorTimes {
    /// Of all cores.
    all: f64,
    /// Of that, idle or waiting for a disk.
    idle: f64,
    /// Of that, what this process had.
    own: f64,
}

impl ProcessorTimes {
    /// Reads Linux's counters; `None` where there are none.
    fn now() -> Option<Self> {
        let of_all = std::fs::read_to_string("/proc/stat").ok()?;
        let of_own = std::fs::read_to_string("/proc/self/stat").ok()?;
        Self::parse(&of_all, &of_own)
    }

    /// Reads the texts of `/proc/stat` and `/proc/self/stat` (proc(5)).
    fn parse(of_all: &str, of_own: &str) -> Option<Self> {
        let cores = of_all.lines().find_map(|line| line.strip_prefix("cpu "))?;
        let ticks = cores.split_whitespace().map(|field| field.parse::<f64>().ok());
        // Time of guests, which stands behind these eight, is counted in the first of them.
        let ticks: Vec<f64> = ticks.take(8).collect::<Option<_>>()?;
        // A process may be called anything; behind its name in parentheses `utime` and `stime` are the fields 11 and 12.
        let fields = of_own.rsplit_once(") ")?.1;
        let mut times = fields.split_whitespace().skip(11).map(|field| field.parse::<f64>().ok());
        let own = times.next()?? + times.next()??;
        Some(Self { all: ticks.iter().sum(), idle: ticks.get(3)? + ticks.get(4)?, own })
    }

    /// The share of all cores that other processes had since then.
    fn others_since(self, begun: Self) -> Option<f64> {
        let all = self.all - begun.all;
        let others = all - (self.idle - begun.idle) - (self.own - begun.own);
        (all > 0.0).then(|| (others / all).clamp(0.0, 1.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn others_are_all_but_the_idle_and_the_own() {
        let stat =
            |user: u64, idle: u64| format!("cpu  {user} 0 10 {idle} 5 0 0 0 7 0\ncpu0 1 2 3\n");
        let own = |ticks: u64| format!("42 (a b) c) R 1 1 1 0 -1 0 0 0 0 0 {ticks} 5 0 0 20 0\n");
        let parse = |all: &str, own: &str| ProcessorTimes::parse(all, own).expect("both are right");
        let begun = parse(&stat(100, 1000), &own(50));
        let now = parse(&stat(250, 1050), &own(125));
        assert_eq!((begun.all, begun.idle, begun.own), (1115.0, 1005.0, 55.0));
        assert_eq!(now.others_since(begun), Some(75.0 / 200.0));
        assert_eq!(begun.others_since(begun), None, "no time has passed");
        assert_eq!(ProcessorTimes::parse("cpu  1 2\n", &own(1)), None);
        assert_eq!(ProcessorTimes::parse("", ""), None);
    }

    #[test]
    fn a_machine_is_disturbed_by_steps_that_differ_or_by_others() {
        let quiet = Disturbance { spread: 1.1, others: Some(0.05) };
        assert_eq!((quiet.advice(), Disturbance::NONE.advice()), (None, None));
        let others = Disturbance { others: Some(0.4), ..quiet }.advice().expect("disturbed");
        assert!(others.contains("other processes had 40 % of the cores"), "{others}");
        let spread = Disturbance { spread: 2.19, ..quiet }.advice().expect("disturbed");
        assert!(spread.contains("half of the steps took 2.2 times the quickest"), "{spread}");
    }

    #[test]
    fn the_spread_is_that_of_most_plans() {
        let observer = Observer::begin();
        assert_eq!(observer.disturbance().spread, 1.0);
        for steps in [[1.0, 2.0, 2.0], [1.0, 1.0, 9.0], [1.0, 3.0, 3.0]] {
            observer.add_steps(&steps);
        }
        observer.add_steps(&[]);
        assert_eq!(observer.disturbance().spread, 2.0);
    }
}
