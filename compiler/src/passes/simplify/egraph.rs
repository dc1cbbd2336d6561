//! The e-graph of a region: its terms are ops on terms, and its leaves are values that come from elsewhere.
//!
//! Every class knows its tensor type. A rule that would change the type has no effect.

use std::collections::{BTreeMap, HashMap};

use egg::{Analysis, DidMerge, EGraph, Id, Language};
use graphc_ir::ids::ValueId;
use graphc_ir::op::Op;
use graphc_ir::types::TensorType;

/// Rounds of rules: each sees the terms that the one before has made.
const ROUNDS: usize = 8;

/// The head of a term. Terms are compared and hashed far more often than ops come in, so an op is looked up once and
/// stands here by its number. The numbers are also the order of a class's terms: of those that cost the same that one
/// is taken which was there first, which is what the author wrote.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Symbol {
    /// A value from elsewhere.
    Leaf(u32),
    /// An op, by its index in the region's table.
    Op(u32),
}

/// A term over classes.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct ClassTerm {
    /// Its head.
    pub symbol: Symbol,
    /// Its operands.
    pub children: Vec<Id>,
}

impl Language for ClassTerm {
    type Discriminant = Symbol;

    fn discriminant(&self) -> Symbol {
        self.symbol
    }

    fn matches(&self, other: &Self) -> bool {
        self.symbol == other.symbol && self.children.len() == other.children.len()
    }

    fn children(&self) -> &[Id] {
        &self.children
    }

    fn children_mut(&mut self) -> &mut [Id] {
        &mut self.children
    }
}

/// The ops and leaves of a region. The data of a class is its tensor type.
pub(super) struct RegionTypes {
    ops: Vec<Op>,
    index: HashMap<Op, u32>,
    leaves: Vec<ValueId>,
    leaf_index: BTreeMap<ValueId, u32>,
    /// The type of the term that is being added.
    pending: Option<TensorType>,
}

impl RegionTypes {
    /// The number of an op, a new one if it was not there yet.
    fn op_number(&mut self, op: &Op) -> u32 {
        if let Some(&number) = self.index.get(op) {
            return number;
        }
        let number = self.ops.len() as u32;
        self.ops.push(op.clone());
        self.index.insert(op.clone(), number);
        number
    }
}

impl Analysis<ClassTerm> for RegionTypes {
    type Data = TensorType;

    fn make(egraph: &mut EGraph<ClassTerm, Self>, _term: &ClassTerm, _id: Id) -> TensorType {
        egraph.analysis.pending.clone().expect("a term is added with its type")
    }

    fn remake(egraph: &mut EGraph<ClassTerm, Self>, _term: &ClassTerm, id: Id) -> TensorType {
        egraph[id].data.clone()
    }

    fn merge(&mut self, _a: &mut TensorType, _b: TensorType) -> DidMerge {
        DidMerge(false, false)
    }
}

/// A result of a rule: classes under new ops.
#[derive(Clone, Debug)]
pub(super) enum Built {
    /// A class that is there.
    Class(Id),
    /// An op on what is built.
    Node(Op, Vec<Built>),
}

/// A rewrite of one term: what it equals. The op, its operands and its type are given; the region shows what else the
/// operands are. What comes out with another type, or does not fit, has no effect.
pub(super) struct RewriteRule {
    /// The name.
    #[cfg_attr(not(test), allow(dead_code))]
    pub name: &'static str,
    /// The terms that it equals.
    pub apply: fn(&EgraphRegion, &Op, &[Id], &TensorType) -> Vec<Built>,
}

/// An e-graph with its ops.
pub(super) struct EgraphRegion {
    egraph: EGraph<ClassTerm, RegionTypes>,
}

impl EgraphRegion {
    /// An e-graph without terms.
    pub(super) fn new() -> Self {
        let types = RegionTypes {
            ops: Vec::new(),
            index: HashMap::new(),
            leaves: Vec::new(),
            leaf_index: BTreeMap::new(),
            pending: None,
        };
        Self { egraph: EGraph::new(types) }
    }

    /// The class of a value from elsewhere.
    pub(super) fn add_leaf(&mut self, value: ValueId, ty: &TensorType) -> Id {
        let types = &mut self.egraph.analysis;
        let next = types.leaves.len() as u32;
        let leaf = *types.leaf_index.entry(value).or_insert(next);
        if leaf == next {
            types.leaves.push(value);
        }
        types.pending = Some(ty.clone());
        self.egraph.add(ClassTerm { symbol: Symbol::Leaf(leaf), children: Vec::new() })
    }

    /// The value that is a leaf.
    pub(super) fn leaf_value(&self, leaf: u32) -> ValueId {
        self.egraph.analysis.leaves[leaf as usize]
    }

    /// The class of an op whose result has this type.
    pub(super) fn add_op(&mut self, op: &Op, children: Vec<Id>, ty: &TensorType) -> Id {
        let types = &mut self.egraph.analysis;
        let index = types.op_number(op);
        types.pending = Some(ty.clone());
        self.egraph.add(ClassTerm { symbol: Symbol::Op(index), children })
    }

    /// The payload of a term; `None` of a leaf.
    pub(super) fn op(&self, term: &ClassTerm) -> Option<&Op> {
        match term.symbol {
            Symbol::Leaf(_) => None,
            Symbol::Op(index) => Some(&self.egraph.analysis.ops[index as usize]),
        }
    }

    /// The class that a class has become.
    pub(super) fn find_class(&self, class: Id) -> Id {
        self.egraph.find(class)
    }

    /// The type of a class.
    pub(super) fn ty(&self, class: Id) -> &TensorType {
        &self.egraph[class].data
    }

    /// The terms of a class.
    pub(super) fn terms(&self, class: Id) -> &[ClassTerm] {
        &self.egraph[class].nodes
    }

    /// The ops of a class with their operands.
    pub(super) fn ops(&self, class: Id) -> impl Iterator<Item = (&Op, &[Id])> {
        self.terms(class).iter().filter_map(|term| Some((self.op(term)?, term.children.as_slice())))
    }

    /// All classes, ascending.
    pub(super) fn classes(&self) -> Vec<Id> {
        let mut classes: Vec<Id> = self.egraph.classes().map(|class| class.id).collect();
        classes.sort_unstable();
        classes
    }

    /// Applies rules until nothing changes, within limits of rounds and of terms.
    pub(super) fn saturate(&mut self, rules: &[RewriteRule]) {
        let limit = 100 + 3 * self.egraph.total_number_of_nodes();
        for _ in 0..ROUNDS {
            let mut changed = false;
            for (class, built) in self.find_matches(rules) {
                if self.egraph.total_number_of_nodes() > limit {
                    break;
                }
                let ty = self.ty(class).clone();
                if let Some(other) = self.build_class(&built).filter(|&other| *self.ty(other) == ty)
                {
                    changed |= self.egraph.union(class, other);
                }
            }
            self.egraph.rebuild();
            if !changed {
                return;
            }
        }
    }

    /// Lists the results of rules on terms as they are now.
    pub(super) fn find_matches(&self, rules: &[RewriteRule]) -> Vec<(Id, Built)> {
        let mut matches = Vec::new();
        for class in self.classes() {
            for (op, children) in self.ops(class) {
                for rule in rules {
                    let built = (rule.apply)(self, op, children, self.ty(class));
                    matches.extend(built.into_iter().map(|built| (class, built)));
                }
            }
        }
        matches
    }

    /// The class of what a rule makes; `None` where an op does not take its operands.
    fn build_class(&mut self, built: &Built) -> Option<Id> {
        match built {
            Built::Class(class) => Some(self.egraph.find(*class)),
            Built::Node(op, operands) => {
                let children = operands
                    .iter()
                    .map(|built| self.build_class(built))
                    .collect::<Option<Vec<_>>>()?;
                let types: Vec<&TensorType> =
                    children.iter().map(|&child| self.ty(child)).collect();
                let mut results = op.infer_types(&types).ok()?;
                let ty = results.pop().filter(|_| results.is_empty())?;
                Some(self.add_op(op, children, &ty))
            }
        }
    }
}
