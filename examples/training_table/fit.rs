//! Finds the constants of machines and framework that a table of measured steps says.
//!
//! Rows whose index in the table is even are fitted to; the others are never looked at, and judge what was found. Plans are
//! made once, with the constants that the search begins with, and priced anew for each try: the layouts of fixed strategies
//! do not depend on prices. The search is one constant after the other, a step up and a step down, kept where the mean of
//! |ln(predicted / measured)| falls; steps become smaller in each round.

use anyhow::Result;
use graphc_compiler::cost::on_cluster;
use graphc_compiler::null_device::step_seconds;
use graphc_ir::plan::{Cluster, Plan};

use crate::row::Row;
use crate::{judge, plan};

/// A constant: its name, the machines that it belongs to (empty: all, as it is the framework's), what it is, and how it is
/// multiplied.
struct Constant {
    name: &'static str,
    clusters: &'static [&'static str],
    value: fn(&Cluster) -> f64,
    scale: fn(&mut Cluster, f64),
}

const H100: &[&str] = &["dgx-h100"];

/// The bandwidth between nodes.
fn network(name: &'static str, clusters: &'static [&'static str]) -> Constant {
    Constant {
        name,
        clusters,
        value: |cluster| cluster.levels.last().map_or(0.0, |level| level.bandwidth),
        scale: |cluster, factor| {
            if let Some(level) = cluster.levels.last_mut() {
                level.bandwidth *= factor;
            }
        },
    }
}

/// What is fitted, in the order of the search.
fn constants() -> Vec<Constant> {
    vec![
        Constant {
            name: "attention",
            clusters: &[],
            value: |cluster| cluster.framework.attention,
            scale: |cluster, factor| cluster.framework.attention *= factor,
        },
        Constant {
            name: "traffic of elementwise ops",
            clusters: &[],
            value: |cluster| cluster.framework.elementwise_traffic,
            scale: |cluster, factor| cluster.framework.elementwise_traffic *= factor,
        },
        Constant {
            name: "dispatch in microseconds",
            clusters: &[],
            value: |cluster| 1e6 * cluster.framework.dispatch,
            // No row of MPT is bound by the host.
            scale: |cluster, factor| {
                if cluster.framework.name == "megatron" {
                    cluster.framework.dispatch *= factor;
                }
            },
        },
        Constant {
            name: "interference",
            clusters: &[],
            value: |cluster| cluster.framework.interference,
            scale: |cluster, factor| {
                let share = &mut cluster.framework.interference;
                *share = (*share * factor).min(1.0);
            },
        },
        Constant {
            name: "between nodes of groups that share them",
            clusters: &["dgx-a100-4hdr"],
            value: |cluster| cluster.framework.shared_nodes,
            scale: |cluster, factor| {
                let share = &mut cluster.framework.shared_nodes;
                *share = (*share * factor).min(1.0);
            },
        },
        Constant {
            name: "largest products of H100",
            clusters: H100,
            value: |cluster| cluster.device.matmul_efficiency.last().map_or(0.0, |point| point.1),
            scale: |cluster, factor| {
                for point in &mut cluster.device.matmul_efficiency {
                    point.1 *= factor;
                }
            },
        },
        network("between nodes of A100", &["a100-40gb"]),
        network("between nodes of H100", H100),
    ]
}

/// A row's plan and the seconds that it took with the machines it was last priced for.
struct Case {
    index: usize,
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

/// Fits, and prints what was found and how good it is.
pub fn run(rows: &[Row], machines: impl Fn(&Row) -> Result<Cluster>) -> Result<()> {
    let mut cases = Vec::new();
    for (index, row) in rows.iter().enumerate() {
        let Some(measured) = row.measured else { continue };
        let cluster = machines(row)?;
        let plan = plan(row, &cluster)?;
        cases.push(Case { index, plan, measured, cluster, known: None });
    }
    let constants = constants();
    println!("at first: mean |ln| {:.4}", error(&mut cases)?);
    for step in [1.3, 1.1, 1.1, 1.03] {
        for constant in &constants {
            improve(&mut cases, constant, step)?;
        }
        println!("steps of {step}: mean |ln| {:.4}", error(&mut cases)?);
    }
    for constant in &constants {
        if let Some(case) = cases.iter().find(|case| concerns(constant, case)) {
            println!("{}: {:.4}", constant.name, (constant.value)(&case.cluster));
        }
    }
    let predicted = cases.iter_mut().map(Case::seconds).collect::<Result<Vec<f64>>>()?;
    let measured: Vec<Row> = rows.iter().filter(|row| row.measured.is_some()).cloned().collect();
    print!("{}", judge::summary(&measured, &predicted));
    Ok(())
}

fn concerns(constant: &Constant, case: &Case) -> bool {
    constant.clusters.is_empty() || constant.clusters.contains(&case.cluster.name.as_str())
}

/// Mean error over the rows that are fitted to.
fn error(cases: &mut [Case]) -> Result<f64> {
    let (mut sum, mut count) = (0.0, 0usize);
    for case in cases.iter_mut().filter(|case| case.index % 2 == 0) {
        sum += case.error()?;
        count += 1;
    }
    Ok(sum / count.max(1) as f64)
}

/// Moves a constant up, or else down, as long as that helps.
fn improve(cases: &mut [Case], constant: &Constant, step: f64) -> Result<()> {
    let mut best = error(cases)?;
    for factor in [step, 1.0 / step] {
        let mut moved = false;
        for _ in 0..MOST_MOVES {
            let before: Vec<Cluster> = cases.iter().map(|case| case.cluster.clone()).collect();
            for case in cases.iter_mut().filter(|case| concerns(constant, case)) {
                (constant.scale)(&mut case.cluster, factor);
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

/// Moves of one constant in a round.
const MOST_MOVES: usize = 6;
