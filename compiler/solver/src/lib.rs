//! Minimises cost-function networks: variables with few labels, costs of labels, of pairs of labels, and of tensors
//! that several variables read.
//!
//! The solver knows no graphs of ops and no meshes. Its users know what a label stands for. Each step is exact or a
//! bound of the problem as posed:
//!
//! 1. Variables with at most two neighbours are eliminated ([`eliminate`]): nodes that follow others, states,
//!    updates.
//! 2. Costs are shifted between terms and variables, by message passing ([`dual`]). A shift keeps the cost of every
//!    plan, so the sum of all least entries is a lower bound at any time. Of the planner's problems it is nearly
//!    always tight.
//! 3. Labels that are chosen one by one along the shifted costs are a plan. In the second round a dive finds a better
//!    one ([`dive`]).
//! 4. A label whose own bound is no better than the best plan is in no better plan, and is dropped ([`minimise`]). So
//!    an optimum is never lost.
//! 5. What is left is eliminated as soon as its tables are small. Otherwise steps 2 to 4 repeat until bound and plan
//!    meet, or the work limit ends them.
//! 6. A gap that shifting costs cannot close is divided by branch and bound ([`subdivide`]). What is open when the
//!    work is spent is reported as a gap.
//!
//! Two problems beside it have solvers of their own: which prices of memory to try next ([`cutting_planes`]), and minimum cuts ([`cut`]).
//!
//! Start reading with [`minimise::minimise_network`].

#![warn(unreachable_pub)]

pub mod bound;
pub mod branch_and_bound;
mod bucket;
pub mod cut;
pub mod cutting_planes;
mod dive;
pub mod dual;
mod eliminate;
mod joint;
pub mod meter;
pub mod minimise;
pub mod network;
mod quotient;
pub mod share;
mod subdivide;
pub mod tables;
mod terms;
