//! Finds a plan from shifted costs by a dive, which gives up half of the labels at a time.
//!
//! The labels that the costs speak against most go first. Costs are then shifted on over the rest, until what is left
//! is narrow or each variable has one label.
//!
//! Labels that are chosen one by one ([`Dual::decode`](super::dual::Dual::decode)) cannot know what later ones will
//! have in common. An example is a tensor that twenty layers read in one layout. In a dive each label has a say
//! before anything is settled. DenseNet-121 on 2x4 ends 10 % higher without it.

use super::minimise::NetworkSearch;

/// The share of the labels beside the best of each variable that is kept in a step. With a quarter DenseNet-121 on 2x4
/// ends 9.9 %, ResNet on 2x4 1.2 % and MobileNetV2 on 2x4 0.4 % higher; with three quarters experts on 2x2x2 end 3.5 %
/// lower.
const KEPT: f64 = 0.5;
/// The number of sweeps between steps. With half or twice as many DenseNet-121 on 2x4 ends 0.9 or 0.2 % higher; with twice as many experts on 2x2x2
/// end 2.9 % lower.
const SWEEPS: usize = 4;

impl NetworkSearch<'_> {
    /// Searches for a better plan than the best, as long as entries may be read. The kept labels are restored afterwards.
    pub(crate) fn dive(&mut self, left: &mut usize) {
        let (dual, kept) = (self.dual.clone(), self.kept.clone());
        // What is given up must not be counted on by anything that is left.
        self.dual.forbids = true;
        self.descend(left);
        (self.dual, self.kept) = (dual, kept);
    }

    fn descend(&mut self, left: &mut usize) {
        while self.halve_labels() {
            if self.solve_kept().is_some_and(f64::is_finite) {
                return;
            }
            let work = SWEEPS * self.dual.sweep_size();
            if work > *left {
                return;
            }
            *left -= work;
            (0..SWEEPS).for_each(|_| self.dual.sweep());
            self.offer_decoded();
            if self.dual.bound() >= self.proof_limit() {
                return;
            }
        }
    }

    /// Gives up the labels whose bounds are furthest above that of the best label of their variable. Returns `false` if each variable has one label.
    fn halve_labels(&mut self) -> bool {
        let mut above = self.dual.label_bounds();
        for bounds in &mut above {
            let best = bounds.iter().copied().fold(f64::INFINITY, f64::min);
            bounds.iter_mut().for_each(|bound| *bound -= best);
        }
        let best = |above: &Vec<f64>| above.iter().position(|&above| above == 0.0).unwrap_or(0);
        let best: Vec<usize> = above.iter().map(best).collect();
        let best = &best;
        let labels = |variable: usize| 0..above[variable].len();
        let others = |v: usize| {
            let of = above[v].iter().enumerate();
            of.filter(move |(label, _)| *label != best[v]).map(|(_, &above)| above)
        };
        let mut all: Vec<f64> = (0..above.len()).flat_map(others).collect();
        if all.is_empty() {
            return false;
        }
        let middle = (all.len() as f64 * KEPT) as usize;
        let (_, &mut most, _) = all.select_nth_unstable_by(middle, f64::total_cmp);
        let is_kept = |v: usize, label: usize| label == best[v] || above[v][label] < most;
        let keep = |v: usize| labels(v).filter(|&label| is_kept(v, label)).collect();
        let kept: Vec<Vec<usize>> = (0..above.len()).map(keep).collect();
        self.restrict(&kept);
        true
    }
}
