//! Finds the constants of machines and frameworks that tables of measured steps say, `graphc_compiler::cluster::Fitted`.
//!
//! Rows whose index in their table is even are fitted to; the others are never looked at, and judge what was found. Plans are
//! made once and priced anew for each try: the layouts of fixed strategies do not depend on prices. The search is one constant
//! after the other, a step up and a step down, kept where the mean of |ln(predicted / measured)| falls; steps become smaller in
//! each round. It begins where `fitted.toml` says. What it finds is rounded as that file says, or a value kept for a reason given
//! there; constants that are held are not searched for.

use std::collections::BTreeMap;

use anyhow::Result;
use graphc_compiler::cluster::{Fitted, FittedConstant};
use graphc_compiler::cost::on_cluster;
use graphc_compiler::null_device::step_seconds;
use graphc_plan::{Cluster, Plan};

use crate::row::Row;
use crate::{judge, plan};

/// A table: its file's name and its rows.
pub struct Measured {
    pub file: String,
    pub rows: Vec<Row>,
}

/// The steps of the rounds.
const STEPS: [f64; 4] = [1.3, 1.1, 1.1, 1.03];

/// Moves of one constant in a round.
const MOST_MOVES: usize = 6;

/// A row's plan and the seconds that it took with the machines it was last priced for.
struct Case {
    /// Whether it is fitted to.
    fitted: bool,
    plan: Plan,
    measured: f64,
    cluster: Cluster,
    known: Option<(Cluster, f64)>,
}

impl Case {
    fn seconds(&mut self) -> Result<f64> {
        if let Some((_, seconds)) = self.known.as_ref().filter(|known| known.0 == self.cluster) {
            return Ok(*seconds);
        }
        let seconds = step_seconds(&on_cluster(&self.plan, &self.cluster))?;
        self.known = Some((self.cluster.clone(), seconds));
        Ok(seconds)
    }

    fn error(&mut self) -> Result<f64> {
        Ok((self.seconds()? / self.measured).ln().abs())
    }
}

type Constants = BTreeMap<Fitted, FittedConstant>;

/// Fits those of the constants that rows of these tables have, and prints what was found and how good it is.
pub fn run(
    tables: &[Measured],
    constants: &mut Constants,
    machines: impl Fn(&Row) -> Result<Cluster>,
) -> Result<()> {
    let mut cases = cases(tables, machines)?;
    search(&mut cases, constants)?;
    for (&name, constant) in constants.iter().filter(|&(&name, _)| value(&cases, name).is_some()) {
        let found = constant.found.map_or(String::new(), |found| format!(", found {found:.4e}"));
        println!("{name:?}: {:.4e}{found}", constant.value);
    }
    show(tables, &mut cases)
}

fn cases(tables: &[Measured], machines: impl Fn(&Row) -> Result<Cluster>) -> Result<Vec<Case>> {
    let mut cases = Vec::new();
    for (index, row) in tables.iter().flat_map(|table| table.rows.iter().enumerate()) {
        let Some(measured) = row.measured else { continue };
        let cluster = machines(row)?;
        let plan = plan(row, &cluster)?;
        let fitted = index.is_multiple_of(2);
        cases.push(Case { fitted, plan, measured, cluster, known: None });
    }
    Ok(cases)
}

/// Searches for all constants that are not held, and gives cases the values that graphc is to have.
fn search(cases: &mut [Case], constants: &mut Constants) -> Result<()> {
    for (&name, constant) in constants.iter() {
        set(cases, name, if constant.held.is_some() { constant.value } else { constant.begin });
    }
    println!("at first: mean |ln| {:.4}", error(cases)?);
    for step in STEPS {
        for (&name, _) in constants.iter().filter(|(_, constant)| constant.held.is_none()) {
            improve(cases, name, step)?;
        }
        println!("steps of {step}: mean |ln| {:.4}", error(cases)?);
    }
    for (&name, constant) in constants.iter_mut().filter(|(_, constant)| constant.held.is_none()) {
        constant.found = value(cases, name).or(constant.found);
        if constant.kept.is_none() {
            constant.value = constant.rounded_value().unwrap_or(constant.value);
        }
        set(cases, name, constant.value);
    }
    println!("with what is rounded and kept: mean |ln| {:.4}", error(cases)?);
    Ok(())
}

/// Returns the value of a constant in the cases; `None` if none has it.
fn value(cases: &[Case], constant: Fitted) -> Option<f64> {
    cases.iter().find_map(|case| constant.value_in_cluster(&case.cluster))
}

fn set(cases: &mut [Case], constant: Fitted, value: f64) {
    for case in cases {
        if let Some(now) = constant.value_in_cluster(&case.cluster) {
            constant.scale(&mut case.cluster, value / now);
        }
    }
}

/// Mean error over the rows that are fitted to.
fn error(cases: &mut [Case]) -> Result<f64> {
    let mut fitted: Vec<&mut Case> = cases.iter_mut().filter(|case| case.fitted).collect();
    price(&mut fitted)?;
    let errors = fitted.iter_mut().map(|case| case.error()).collect::<Result<Vec<f64>>>()?;
    Ok(errors.iter().sum::<f64>() / errors.len().max(1) as f64)
}

/// Prices cases on all processors. Rows next to each other take about equally long, so they are dealt out in turn.
fn price(cases: &mut [&mut Case]) -> Result<()> {
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let mut hands: Vec<Vec<&mut Case>> = (0..threads).map(|_| Vec::new()).collect();
    for (index, case) in cases.iter_mut().enumerate() {
        hands[index % threads].push(case);
    }
    std::thread::scope(|scope| {
        let price = |hand: Vec<&mut Case>| -> Result<()> {
            hand.into_iter().try_for_each(|case| case.seconds().map(drop))
        };
        let threads: Vec<_> =
            hands.into_iter().map(|hand| scope.spawn(move || price(hand))).collect();
        threads.into_iter().try_for_each(|thread| thread.join().expect("pricing does not panic"))
    })
}

/// Moves a constant up, or else down, as long as that helps.
fn improve(cases: &mut [Case], constant: Fitted, step: f64) -> Result<()> {
    let mut best = error(cases)?;
    for factor in [step, 1.0 / step] {
        let mut moved = false;
        for _ in 0..MOST_MOVES {
            let before: Vec<Cluster> = cases.iter().map(|case| case.cluster.clone()).collect();
            for case in cases.iter_mut() {
                constant.scale(&mut case.cluster, factor);
            }
            let now = error(cases)?;
            if now >= best {
                for (case, cluster) in cases.iter_mut().zip(before) {
                    case.cluster = cluster;
                }
                break;
            }
            (best, moved) = (now, true);
        }
        if moved {
            break;
        }
    }
    Ok(())
}

/// Prints how well the constants predict, table by table.
fn show(tables: &[Measured], cases: &mut [Case]) -> Result<()> {
    let mut predicted = cases.iter_mut().map(Case::seconds);
    for table in tables {
        let rows: Vec<Row> =
            table.rows.iter().filter(|row| row.measured.is_some()).cloned().collect();
        let predicted = predicted.by_ref().take(rows.len()).collect::<Result<Vec<f64>>>()?;
        println!("{}:", table.file);
        print!("{}", judge::summary(&rows, &predicted));
    }
    Ok(())
}
