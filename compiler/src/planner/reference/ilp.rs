//! Builds the integer programme of [`super`], letter by letter and with nothing reduced, and hands it to a solver in
//! one function.
//!
//! The solver is microlp, or HiGHS with the feature `highs` of `graphc` and `graphc-compiler`. HiGHS closes models of
//! some hundred nodes. It is built from source, which takes minutes and needs cmake, a C++ compiler and libclang:
//! `apt-get install cmake g++ libclang-dev`, or `pip install cmake libclang` with `LIBCLANG_PATH` on the folder of
//! its `libclang.so`.
//!
//! Plans never depend on the feature, which changes this reference alone. The example `full_ilp` of the compiler compares the planner with the whole
//! programme on models.

use good_lp::{
    Constraint, Expression, ProblemVariables, ResolutionError, Solution, SolverModel, Variable,
    constraint, variable,
};

use graphc_ir::ids::NodeId;

use crate::planner::problem::layouts::{PlacementId, SbpId};
use crate::planner::problem::lifetimes::Span;
use crate::planner::problem::size::{DemandLayouts, write_back_layouts};
use crate::planner::problem::{Demand, Problem, WriteBack};

/// The name of the solver.
pub const SOLVER: &str = if cfg!(feature = "highs") { "HiGHS" } else { "microlp" };

/// Finds the optimum with an integer programming solver: its seconds and the candidate of each node. `None` if nothing fits the memory.
///
/// # Errors
/// Returns an error if the solver gives up.
pub fn solve_ilp(problem: &Problem<'_>) -> Result<Option<(f64, Vec<usize>)>, ResolutionError> {
    let mut model = IlpModel::new(problem);
    for demand in problem.demands.iter() {
        model.add_demand(problem, demand);
    }
    for back in problem.write_backs.iter() {
        model.write_back(problem, back);
    }
    model.add_made(problem);
    model.solve()
}

struct IlpModel {
    variables: ProblemVariables,
    /// The variables x, by node and candidate.
    x: Vec<Vec<Variable>>,
    objective: Expression,
    constraints: Vec<Constraint>,
    /// The memory by domain and position.
    memory: Vec<Vec<Expression>>,
}

impl IlpModel {
    /// Adds (a), (b), and the compute part of (g).
    fn new(problem: &Problem<'_>) -> Self {
        let mut variables = ProblemVariables::new();
        let x: Vec<Vec<Variable>> = problem
            .candidates
            .iter()
            .map(|all| all.iter().map(|_| variables.add(variable().binary())).collect())
            .collect();
        let mut objective = Expression::from(0.0);
        let mut constraints = Vec::new();
        for (candidates, x) in problem.candidates.iter().zip(&x) {
            let chosen: Expression = x.iter().sum();
            constraints.push(constraint!(chosen == 1.0));
            for (candidate, &x) in candidates.iter().zip(x) {
                objective.add_mul(to_microseconds(candidate.seconds), x);
            }
        }
        let empty = vec![Expression::from(0.0); problem.lifetimes.len()];
        let memory = vec![empty; problem.lifetimes.domains.len()];
        Self { variables, x, objective, constraints, memory }
    }

    /// Adds (c), (d), and their part of (f) and (g).
    fn add_demand(&mut self, problem: &Problem<'_>, demand: &Demand) {
        let shape = DemandLayouts::new(problem, demand);
        let made: Vec<SbpId> = (0..problem.candidates_of(demand.producer).len())
            .map(|label| problem.source_layout(demand, label))
            .collect();
        for (&target, takers) in shape.targets.iter().zip(&shape.takers) {
            let boxed = self.variables.add(variable().min(0.0).max(1.0));
            for (node, labels) in takers {
                let taken: Expression =
                    labels.iter().map(|&label| self.x[node.index()][label]).sum();
                self.constraints.push(constraint!(boxed >= taken));
            }
            let mut all = Expression::from(0.0);
            for &source in &shape.sources {
                let z = self.variables.add(variable().min(0.0).max(1.0));
                let x = &self.x[demand.producer.index()];
                let labels = (0..made.len()).filter(|&label| made[label] == source);
                let of_source: Expression = labels.map(|label| x[label]).sum();
                self.constraints.push(constraint!(z <= of_source));
                all += z;
                let price = problem.price_demand(demand, source, target);
                self.objective.add_mul(to_microseconds(demand.times * price.seconds), z);
                for (span, bytes) in problem.kept_bytes(demand, source, target, price) {
                    self.add_memory(problem, demand.placement, span, bytes, z);
                }
            }
            self.constraints.push(constraint!(all == boxed));
        }
    }

    /// Adds (e), and its part of (f) and (g).
    fn write_back(&mut self, problem: &Problem<'_>, back: &WriteBack) {
        let (sources, targets) = write_back_layouts(problem, back);
        let made = |node: NodeId, result: usize, of: SbpId| -> Vec<usize> {
            let candidates = problem.candidates_of(node);
            (0..candidates.len()).filter(|&label| candidates[label].results[result] == of).collect()
        };
        let rows: Vec<_> = sources.iter().map(|&s| made(back.update, back.result, s)).collect();
        let columns: Vec<_> = targets.iter().map(|&t| made(back.variable, 0, t)).collect();
        let mut w = Vec::new();
        for &source in &sources {
            for &target in &targets {
                let both = self.variables.add(variable().min(0.0).max(1.0));
                let price = problem.back_price(back, source, target);
                self.objective.add_mul(to_microseconds(price.seconds), both);
                let bytes = back.kept_bytes(&problem.layouts, source, price);
                self.add_memory(problem, back.placement, back.span, bytes, both);
                w.push(both);
            }
        }
        let width = targets.len();
        for (row, labels) in rows.iter().enumerate() {
            let all: Expression = (0..width).map(|column| w[row * width + column]).sum();
            let x: Expression =
                labels.iter().map(|&label| self.x[back.update.index()][label]).sum();
            self.constraints.push(constraint!(all == x));
        }
        for (column, labels) in columns.iter().enumerate() {
            let all: Expression = (0..rows.len()).map(|row| w[row * width + column]).sum();
            let x: Expression =
                labels.iter().map(|&label| self.x[back.variable.index()][label]).sum();
            self.constraints.push(constraint!(all == x));
        }
    }

    /// Adds the memory of the results of nodes: a part of (f).
    fn add_made(&mut self, problem: &Problem<'_>) {
        for made in problem.made.iter() {
            for label in 0..problem.candidates_of(made.producer).len() {
                let sbp = problem.candidates_of(made.producer)[label].results[made.index];
                let bytes = problem.layouts.bytes(made.class, sbp);
                let x = self.x[made.producer.index()][label];
                let taken = match made.beside {
                    None => x,
                    Some(beside) => self.unless_beside(problem, x, sbp, beside),
                };
                self.add_memory(problem, made.placement, made.span, bytes, taken);
            }
        }
    }

    /// Adds a variable that is at least 1 if `x` is chosen and another node's result does not have the layout `sbp`.
    fn unless_beside(
        &mut self,
        problem: &Problem<'_>,
        x: Variable,
        sbp: SbpId,
        (node, result): (NodeId, usize),
    ) -> Variable {
        let taken = self.variables.add(variable().min(0.0).max(1.0));
        let labels = problem.candidates_of(node).iter().zip(&self.x[node.index()]);
        let same = labels.filter(|(candidate, _)| candidate.results[result] == sbp);
        let beside: Expression = same.map(|(_, &x)| x).sum();
        self.constraints.push(constraint!(taken >= x - beside));
        taken
    }

    fn add_memory(
        &mut self,
        problem: &Problem<'_>,
        on: PlacementId,
        span: Span,
        bytes: u64,
        of: Variable,
    ) {
        if bytes == 0 {
            return;
        }
        let share = bytes as f64 / problem.limit as f64;
        for domain in problem.lifetimes.domains_of(problem.layouts.placement(on)) {
            let rows = &mut self.memory[domain];
            rows[span.start..=span.end].iter_mut().for_each(|row| row.add_mul(share, of));
            if let Some((first, last)) = problem.lifetimes.looped {
                let others = share * span.others as f64;
                rows[first..=last].iter_mut().for_each(|row| row.add_mul(others, of));
            }
        }
    }

    fn solve(self) -> Result<Option<(f64, Vec<usize>)>, ResolutionError> {
        let memory = self.memory.into_iter().flatten();
        let memory = memory.map(|row| constraint!(row <= 1.0 + 1e-9));
        let constraints: Vec<Constraint> = self.constraints.into_iter().chain(memory).collect();
        let solution = match find_optimum(self.variables, &self.objective, constraints) {
            Ok(solution) => solution,
            Err(ResolutionError::Infeasible) => return Ok(None),
            Err(error) => return Err(error),
        };
        let chosen = |x: &Vec<Variable>| x.iter().position(|&x| solution.value(x) > 0.5);
        let assignment: Option<Vec<usize>> = self.x.iter().map(chosen).collect();
        let assignment = assignment.ok_or(ResolutionError::Other("a node without a signature"))?;
        Ok(Some((solution.eval(&self.objective) * 1e-6, assignment)))
    }
}

/// Calls the solver for the least objective under the constraints, to 1e-7 of it.
fn find_optimum(
    variables: ProblemVariables,
    objective: &Expression,
    constraints: Vec<Constraint>,
) -> Result<impl Solution + use<>, ResolutionError> {
    let unsolved = variables.minimise(objective);
    #[cfg(not(feature = "highs"))]
    let mut model = unsolved.using(good_lp::microlp);
    // One thread: the same optimum every time. Limits are gaps, and signatures are numbers to 1e-9.
    #[cfg(feature = "highs")]
    let mut model = unsolved
        .using(good_lp::highs)
        .set_threads(1)
        .set_option("mip_rel_gap", 1e-7)
        .set_option("mip_abs_gap", 1e-9)
        .set_option("mip_feasibility_tolerance", 1e-9)
        .set_option("primal_feasibility_tolerance", 1e-9);
    for constraint in constraints {
        model.add_constraint(constraint);
    }
    model.solve()
}

/// Converts seconds to millionths, so that coefficients are near 1.
fn to_microseconds(seconds: f64) -> f64 {
    seconds * 1e6
}
