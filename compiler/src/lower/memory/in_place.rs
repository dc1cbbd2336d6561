//! Finds registers that share memory: an actor writes its result over an operand that nobody reads later, or the
//! result is the operand's bytes under another shape.
//!
//! The last reader of the operand is the actor itself, or it is known to have ended when the actor begins. Each op
//! says once which pairs these may be (`Operation::in_place`). Lowering, the proof in `ir/plan/src/check/memory.rs` and
//! the tests of kernels read that.

use std::cmp::Reverse;

use graphc_ir::ids::RegisterId;
use graphc_plan::in_place::{Pair, in_place_pairs};
use graphc_plan::{Action, Actor, Layout, Register, RegisterKind};

use super::flow::Flow;
use super::lifetimes::{Life, StepAction as Step, count_slots};

/// A set of registers in one memory.
#[derive(Clone, Debug)]
pub(in crate::lower) struct RegisterGroup {
    /// The registers, the first made first.
    pub members: Vec<usize>,
    /// The lives of the contents: from the first member's to the last read of any; none of variables.
    pub lives: Vec<Life>,
    /// Slots that every member has.
    pub slots: u32,
}

impl RegisterGroup {
    /// Whether all that touches a content is known to have ended when the content is made that takes its slot. Whoever makes a
    /// register waits for those that read it, but not for those of the other stream that read what has taken its memory over.
    pub(in crate::lower) fn is_known(&self, flow: &Flow) -> bool {
        let next = self.lives.iter().skip(self.slots as usize);
        let mut pairs = self.lives.iter().zip(next);
        pairs.all(|(before, next)| next.touched == [None; 2] || flow.is_over(before, next.made))
    }
}

/// The input of the search for sharing.
pub(in crate::lower) struct Sharing<'a> {
    /// The registers.
    pub registers: &'a [Register],
    /// The actors.
    pub actors: &'a [Actor],
    /// Layouts of the plan.
    pub layouts: &'a [Layout],
    /// The actions of a step.
    pub order: &'a [Step],
    /// The lives of each register's contents.
    pub lives: &'a [Vec<Life>],
    /// The knowledge of streams about each other.
    pub flow: &'a Flow,
    /// Number of microbatches.
    pub microbatches: usize,
}

impl Sharing<'_> {
    /// Finds all groups, and for each register the one whose memory it takes over.
    pub(in crate::lower) fn find_groups(&self) -> (Vec<RegisterGroup>, Vec<Option<RegisterId>>) {
        let times = ActionTimes::new(self);
        let mut groups: Vec<RegisterGroup> =
            (0..self.registers.len()).map(|r| self.single_group(r)).collect();
        let mut group_of: Vec<usize> = (0..self.registers.len()).collect();
        let mut shares = vec![None; self.registers.len()];
        let mut seen = vec![false; self.actors.len()];
        for step in self.order {
            if std::mem::replace(&mut seen[step.actor], true) {
                continue;
            }
            let actor = &self.actors[step.actor];
            let mut allowed = in_place_pairs(actor, self.microbatches);
            if matches!(actor.action, Action::Fused(_)) {
                // Over what was made last: what a chain has from the forward pass stays whole until the chain has
                // ended, so a device may begin to write the chain's result while it still reads that.
                allowed.sort_by_key(|pair| Reverse(self.moment_made(actor, *pair)));
            }
            for &pair in &allowed {
                let (Some(&input), Some(&output)) =
                    (actor.inputs.get(pair.input), actor.outputs.get(pair.output))
                else {
                    continue;
                };
                let (into, from) = (group_of[input.index()], group_of[output.index()]);
                // Other operands may lie in that memory too: the output must be allowed over all of them.
                let over = |(index, operand): (usize, &RegisterId)| {
                    let other = |p: &Pair| (p.output, p.input) == (pair.output, index);
                    group_of[operand.index()] != into || allowed.iter().any(other)
                };
                let clear = actor.inputs.iter().enumerate().all(over);
                if shares[output.index()].is_some() || into == from || !clear {
                    continue;
                }
                let merged =
                    self.merge_groups(&times, &groups[into], &groups[from], step.actor, pair);
                if let Some(merged) = merged.filter(|_| self.are_alike(input, output, pair)) {
                    shares[output.index()] = Some(input);
                    groups[from].members.clear();
                    for &member in &merged.members {
                        group_of[member] = into;
                    }
                    groups[into] = merged;
                }
            }
        }
        groups.retain(|group| !group.members.is_empty());
        (groups, shares)
    }

    /// Returns the place in the order where the operand of a pair was made; 0 for variables.
    fn moment_made(&self, actor: &Actor, pair: Pair) -> usize {
        let lives = actor.inputs.get(pair.input).map(|input| &self.lives[input.index()]);
        lives.and_then(|lives| lives.first()).map_or(0, |life| life.made)
    }

    fn single_group(&self, register: usize) -> RegisterGroup {
        let lives = self.lives[register].clone();
        RegisterGroup { members: vec![register], slots: count_slots(&lives), lives }
    }

    /// Whether a register can take the memory of another: both hold equally many bytes, and elementwise results have the same shape and type.
    fn are_alike(&self, input: RegisterId, output: RegisterId, pair: Pair) -> bool {
        let (a, b) = (&self.registers[input.index()], &self.registers[output.index()]);
        let dtype = |register: &Register| self.layouts[register.layout.index()].dtype;
        let elements = |register: &Register| register.shape.iter().product::<usize>();
        let shapes = a.shape == b.shape || pair.same_bytes && elements(a) == elements(b);
        let rates = a.rate == b.rate || self.microbatches == 1;
        shapes && dtype(a) == dtype(b) && rates && elements(a) > 0
    }

    /// Merges two groups; `None` if an overwritten content would still be read, or it would take more memory.
    fn merge_groups(
        &self,
        times: &ActionTimes,
        into: &RegisterGroup,
        from: &RegisterGroup,
        actor: usize,
        pair: Pair,
    ) -> Option<RegisterGroup> {
        let members = [into.members.as_slice(), &from.members].concat();
        let variable = |r: &usize| matches!(self.registers[*r].kind, RegisterKind::Variable { .. });
        if let Some(&variable) = into.members.iter().find(|member| variable(member)) {
            let kept =
                pair.same_bytes && times.read_before_update(self.flow, variable, &from.lives);
            return kept.then(|| RegisterGroup { members, lives: Vec::new(), slots: 1 });
        }
        if into.lives.len() != from.lives.len() {
            return None;
        }
        let places = &times.acts[actor];
        // Whatever reads the content has ended when the actor begins.
        let overwritten = |(content, life): (usize, &Life)| {
            let at = |&&place: &&usize| place == life.last && self.flow.is_last(life, place);
            places.get(content).filter(at).is_none()
        };
        if !pair.same_bytes && into.lives.iter().enumerate().any(overwritten) {
            return None;
        }
        let both = into.lives.iter().zip(&from.lives);
        let lives: Vec<Life> = both.map(|(a, b)| a.followed_by(b)).collect();
        let slots = count_slots(&lives);
        (slots <= into.slots + from.slots).then_some(RegisterGroup { members, lives, slots })
    }
}

/// The places in the order at which actors act.
struct ActionTimes {
    /// The places of each actor in the order.
    acts: Vec<Vec<usize>>,
    /// The first place where each register is updated.
    updated: Vec<usize>,
}

impl ActionTimes {
    fn new(sharing: &Sharing<'_>) -> Self {
        let mut acts = vec![Vec::new(); sharing.actors.len()];
        for (place, step) in sharing.order.iter().enumerate() {
            acts[step.actor].push(place);
        }
        let mut updated = vec![usize::MAX; sharing.registers.len()];
        for (actor, places) in sharing.actors.iter().zip(&acts) {
            let first = places.first().copied().unwrap_or(usize::MAX);
            for update in &actor.updates {
                updated[update.index()] = updated[update.index()].min(first);
            }
        }
        Self { acts, updated }
    }

    /// Whether all reads of these contents come before the variable is overwritten.
    fn read_before_update(&self, flow: &Flow, variable: usize, lives: &[Life]) -> bool {
        let update = self.updated[variable];
        lives.iter().all(|life| update == usize::MAX || flow.is_over(life, update))
    }
}
